"""A study's folder, written without training anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.checkpoints.tensor_files import BY_USER, write_tensors
from fedpriv.report.run_record import read_run
from fedpriv.studies.record import StudyRecord, read_study
from tests.harness.resealed import edit_json
from tests.report.conftest import write_run

NUM_USERS, DATA = 40, "onstartups"
METHODS = {"AdaDPS": 0.25, "DP-FedAvg": 0.22}
NOISE = {2.0: 1.4, 8.0: 0.72}
NONE: Mapping[Any, Any] = {}


def write_study(
    directory: Path,
    *,
    methods: Mapping[str, float] = METHODS,
    noise: Mapping[float, float] = NOISE,
    seeds: int = 2,
    by_user: bool = True,
    failures: Mapping[tuple[str, float | None, int], str] = NONE,
    document: Mapping[str, Any] = NONE,
    nonprivate: bool = True,
    options: Mapping[str, Mapping[str, Any]] = NONE,
) -> StudyRecord:
    """Write the folder of a study whose values follow smooth curves, and return what it holds.

    Args:
        directory: Where.
        methods: What each reaches at a large ε, by name.
        noise: The noise multiplier of each target ε.
        seeds: How many.
        by_user: Whether each user's sums are written.
        failures: Reasons of the trials that fail, by method, ε and seed.
        document: Changes of `study.json`.
        nonprivate: Whether methods are trained without privacy too.
        options: Further options of each run, by method.
    """
    directory.mkdir(parents=True)
    rows, ended = [], []
    levels = [*noise, *([None] if nonprivate else [])]
    for method, ceiling in methods.items():
        for level in levels:
            for seed in range(seeds):
                key = hashlib.sha256(repr((method, level, seed)).encode()).hexdigest()[:16]
                row = {"key": key, "method": method, "epsilon": level, "data": DATA, "seed": seed}
                reason = failures.get((method, level, seed))
                rows.append(row)
                ended.append({**row, "seconds": 4.2 + seed, "failure": reason})
                if reason is not None:
                    continue
                loss = 0.0 if level is None else 0.04 / level**0.5
                folder = write_run(
                    directory / "trials" / key,
                    name=method,
                    noise_multiplier=None if level is None else noise[level],
                    ceiling=ceiling - loss,
                    seed=seed,
                    synthetic=True,
                    public_only=0.18,
                    rounds=10,
                    every=2,
                    options={"target_epsilon": level, "precondition": method}
                    | options.get(method, {}),
                )
                multiplier = 0.0 if level is None else noise[level]
                edit_summary(folder, seconds_per_round=0.42, noise_multiplier=multiplier)
                if by_user:
                    _write_sums(folder / BY_USER, folder, seed)
    text = {
        "format": "fedpriv-study",
        "version": 1,
        "name": "which method",
        "methods": list(methods),
        "epsilons": levels,
        "seeds": list(range(seeds)),
        "data": [DATA],
        "trials": rows,
        "versions": {"fedpriv": "0.1.0", "python": "3.11.9", "torch": "2.13.0"},
        "command": "fedpriv study which-method.toml --out runs/which-method",
    }
    (directory / "study.json").write_text(json.dumps({**text, **document}), "utf-8")
    lines = "".join(json.dumps(row) + "\n" for row in ended)
    (directory / "trials.jsonl").write_text(lines, "utf-8")
    return read_study(directory)


def edit_summary(folder: Path, **changes: Any) -> None:
    """Change what a run's summary says."""
    edit_json(folder / "summary.json", **changes)


def _write_sums(path: Path, folder: Path, seed: int) -> None:
    """Write sums by user that add up to what the run reached, users differing as they do."""
    reached = read_run(folder).summary["accuracy"]
    count = np.random.default_rng(7).integers(0, 30, NUM_USERS).astype(np.int64)
    habits = np.random.default_rng(11).normal(0, 0.15, NUM_USERS)
    chance = np.random.default_rng(seed).normal(0, 0.02, NUM_USERS)
    value = count * (0.2 + habits + chance)
    value += count * (reached - value.sum() / count.sum())
    public = count * (0.18 + habits)
    public += count * (0.18 - public.sum() / count.sum())
    write_tensors(path, {"count": count, "value": value, "public_value": public}, {})


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., StudyRecord]:
    """Return a function that writes a study's folder."""

    def make(folder: str = "study", **arguments: Any) -> StudyRecord:
        return write_study(tmp_path / folder, **arguments)

    return make
