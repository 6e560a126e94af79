"""Synthetic run folders."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.checkpoints.vocabulary import Vocabulary, vocabulary_bytes
from fedpriv.hashes import file_sha256
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.statement.stated import round_values
from tests.harness.resealed import reseal
from tests.privacy.costing import cohort_plan

WORDS = ("startup", "equity", "visa", "<URL>", "founder")
TAGS = ("legal", "funding", "hiring")


def make_plan(
    num_rounds: int, noise_multiplier: float | None, delta: float | None, unit: str = "user"
) -> Plan:
    """Return a plan of ordinary size; None is one without noise."""
    return cohort_plan(
        num_users=7055,
        expected_cohort_size=350.0,
        num_rounds=num_rounds,
        bound="clip",
        l2_bound=20.0,
        noise="none" if noise_multiplier is None else "gaussian",
        noise_multiplier=noise_multiplier or 0.0,
        delta=delta,
        max_examples_per_user=256 if unit == "user" else None,
        unit=unit,
        roster_sha256="ab" * 32,
    )


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_run(
    directory: Path,
    *,
    name: str = "adadps-tags",
    rounds: int = 20,
    planned: int | None = None,
    noise_multiplier: float | None = 0.72,
    ceiling: float = 0.26,
    seed: int = 0,
    every: int = 5,
    mode: str = "simulation",
    synthetic: bool = False,
    options: dict[str, Any] | None = None,
    corpus: dict[str, Any] | None = None,
    delta: float | None = None,
    checkpoints: bool = False,
    unit: str = "user",
    backend: str = "serial",
    public_only: float | None = None,
    label: str | None = None,
) -> Path:
    """Write a run folder whose figures follow a smooth curve, and return it.

    With `public_only` it has a summary that tells it, and the gain over it.
    """
    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True)
    planned = planned or rounds
    made = make_plan(planned, noise_multiplier, delta, unit)
    private, total = made.is_private, made.epsilon(planned).value
    experiment = {
        "task.roster": None,
        "task.inputs": "tff",
        "precondition": "local",
        "precondition.side_information": "rank",
        "bound": "clip",
        "bound.l2_clip_norm": 20.0,
        "noise": "gaussian" if private else "none",
        "noise.multiplier": noise_multiplier,
        "target_epsilon": None,
        "rounds": planned,
        "cohort": 350.0,
        "local.learning_rate": 10.0,
        "server": "ema-momentum",
        "server.momentum": 0.9,
        "aggregate": "none",
        "seed": seed,
        "eval_every": every,
    } | (options or {})
    description = {
        "format": "fedpriv-run",
        "version": 1,
        "name": name,
        "description": "AdaDPS with local preconditioning by the rank of public words.",
        "experiment": experiment,
        "plan": made.to_json(),
        "corpus": {
            "name": "onstartups",
            "synthetic": synthetic,
            "roster": "onstartups-all",
            "roster_sha256": "ab" * 32,
            "num_users": 7055,
            "num_public_users": 411,
            "num_words": 10_000,
            "num_tags": 500,
            "licence": "CC BY-SA 3.0",
            "credit": "Contributors of Answers on Startups",
            "provenance": {"words": "public users", "foreign_text_share": 0.906},
        }
        | (corpus or {}),
        "mode": mode,
        "backend": backend,
        "reference": name,
        "versions": {"fedpriv": "0.1.0", "python": "3.11.9", "numpy": "2.4.6", "torch": "2.13.0"},
        "baseline": {"majority_class_accuracy": 0.119},
    }
    if label is not None:
        description["label"] = label
    if checkpoints:
        description["files"] = _write_vocabulary(directory)
    (directory / "experiment.json").write_text(json.dumps(description), encoding="utf-8")
    released, diagnosed = [], []
    for round_num in range(1, rounds + 1):
        share = 0.12 + (ceiling - 0.12) * (1 - math.exp(-4 * round_num / planned))
        accuracy = share + float(rng.normal(0, 0.004))
        evaluated = round_num % every == 0 or round_num == rounds
        released.append(
            {
                "round_num": round_num,
                "attempt": 1,
                # The right one takes a while, and only who exports a model looks.
                "epsilon": total * math.sqrt(round_num / planned) if private else None,
                "delta": made.delta if private else None,
                **(round_values(made, round_num) if checkpoints else {}),
                "accuracy_public": accuracy - 0.02 if evaluated else None,
                "recall_at_5_public": 2 * accuracy - 0.03 if evaluated else None,
                "update_norm": 0.8 / math.sqrt(round_num),
            }
        )
        diagnosed.append(
            {
                "round_num": round_num,
                "attempt": 1,
                "cohort_size": int(rng.poisson(350)),
                "num_failed": 0,
                "accuracy": accuracy if evaluated else None,
                "recall_at_5": 2 * accuracy if evaluated else None,
                "loss": 4.2 - share,
                "seconds": 0.42,
                "covered_by_epsilon": False,
            }
        )
    _lines(directory / "rounds.jsonl", released)
    _write_ledger(directory, made, mode, rounds, checkpoints=checkpoints)
    reseal(directory)
    if mode == "simulation":
        _lines(directory / "diagnostics.jsonl", diagnosed)
    if public_only is not None:
        reached = diagnosed[-1]["accuracy"]
        summary = {"accuracy": reached, "accuracy_public_only": public_only}
        summary |= {"gain": reached - public_only, "stopped_early": None}
        (directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return directory


def edit_rows(file: Path, **changes: Any) -> None:
    """Change what every line of a file of records says."""
    _lines(file, [json.loads(line) | changes for line in file.read_text("utf-8").splitlines()])


def _write_ledger(
    directory: Path, plan: Plan, mode: str, rounds: int, *, checkpoints: bool
) -> None:
    # Nothing here has to survive a power cut, and a sync for every line would take seconds.
    store = CheckpointStore(directory / "checkpoints")
    with (
        pytest.MonkeyPatch.context() as patch,
        Ledger.create(directory / "ledger.jsonl", plan, mode=mode) as ledger,
    ):
        patch.setattr(os, "fsync", lambda descriptor: None)
        for round_num in range(1, rounds + 1):
            ledger.charge(round_num, 1)
            if kept := checkpoints and round_num >= rounds - 1:
                metadata = {"round_num": str(round_num), "ledger_head": ledger.head}
                store.save(round_num, _model(round_num / rounds), metadata)
            digest = store.digest(round_num) if kept else "ab" * 32
            ledger.release(round_num, 1, digest)


def _model(share: float) -> dict[str, np.ndarray]:
    kernel = np.zeros((len(WORDS), len(TAGS)), np.float32)
    kernel[0] = [0, 4, 0]
    kernel[2] = [6, 0, 0]
    tensors = {"kernel": kernel * np.float32(share), "bias": np.float32([0, 0, 0.5])}
    return tensors | {f"ema/{key}": value / 2 for key, value in tensors.items()}


def _write_vocabulary(directory: Path) -> dict[str, str]:
    """Write the model's vocabulary, and return its digest by its name."""
    file = directory / "vocabulary.json"
    file.write_bytes(vocabulary_bytes(Vocabulary(words=WORDS, tags=TAGS)))
    return {file.name: file_sha256(file)}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a run folder into a folder of its own."""

    def make(folder: str = "run", **arguments: Any) -> Path:
        return write_run(tmp_path / folder, **arguments)

    return make
