"""Runs over settings on synthetic corpora.

Cells are `{"kind", "users", "epsilon", "runs": [...]}`, such as `grid` has. A run gives rounds,
rate, q, start factor and either the clip norm or the noise that it leads to on every logit,
`logit_noise`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.experiments.experiment import Settings
from fedpriv.experiments.settings import choose_settings, public_update_norms
from fedpriv.mechanisms.event import Relation
from fedpriv.tree import interpolate
from simulations.defaults import quick, shapes

_SHRUNK = (0.25, 0.5, 0.75)


def runs_of(cells: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield everything that decides each run of cells, those of one corpus together."""
    for cell in cells:
        for run in cell["runs"]:
            yield {**{name: value for name, value in cell.items() if name != "runs"}, **run}


def perform(corpora: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run reached; corpora are kept in the folder."""
    place = asked.get("users"), asked.get("number", 0), asked.get("words")
    return measured(_bench(corpora, asked["kind"], *place), asked)


@lru_cache(maxsize=1)
def _bench(corpora: Path, kind: str, users: int, number: int, words: int | None) -> quick.Bench:
    if kind == "onstartups":
        return quick.bench(resolve_corpus(None, allow_synthetic=False), split="validation")
    shape = shapes.KINDS[kind]
    return quick.bench(shapes.corpus(corpora, shape, users, number=number, max_words=words))


def measured(bench: quick.Bench, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run reached, with the facts that a rule may look at."""
    began = time.perf_counter()
    users, epsilon, factor = bench.num_users, asked["epsilon"], asked.get("factor")
    single = quick.sigma_of(1.0, 1, epsilon, users) / users
    public = _public_length(bench, factor, asked["rate"])
    if asked.get("by_rule"):
        chosen = settings_of(bench, asked, public[1])
        rounds, norm = chosen.rounds, chosen.l2_clip_norm
        q = asked.get("q") or chosen.cohort / users
    else:
        rounds, q = asked["rounds"], asked.get("q", 1.0)
        norm = asked.get("norm") or asked["logit_noise"] / (rounds * single)
    start, rate = bench.start(factor), asked["rate"]
    sigma = quick.sigma_of(q, rounds, epsilon, users)
    drawn = min(q, asked.get("drawn", q))  # fewer users than are paid for save time, not noise
    setup = quick.Settings(
        rounds=rounds,
        rate=rate,
        norm=norm,
        q=drawn,
        sigma=sigma * drawn / q,
        decay=asked.get("decay", 0.9),
        quantile=asked.get("quantile"),
    )
    ends, mean_norm = quick.run(bench, start, setup, asked.get("seed", 0))
    found = {
        f"{name} {share:g}": round(bench.accuracy(interpolate(start, ends[name], share)), 3)
        for name in ends
        for share in (*_SHRUNK, 1.0)
    }
    return {
        "accuracy": found,
        "public_only": round(bench.accuracy(bench.found.model), 3),
        "start": round(bench.accuracy(start), 3),
        "facts": {
            "users": users,
            "params": bench.num_params,
            "tags": len(bench.view.tags),
            "words": len(bench.view.words),
            "public_users": len(bench.view.public_users),
            "public_examples": bench.found.num_examples,
            "factor": bench.found.choices.by_loss.factor,
            "single": single,
            "norm": norm,
            "mean_norm": mean_norm,
            "sigma": sigma,
            "noise_on_mean_per_norm": sigma / (q * users),
            "rounds": rounds,
            "q": q,
            "public_length": [round(float(v), 3) for v in public],
            "synthetic": bool(bench.view.synthetic),
        },
        "seconds": round(time.perf_counter() - began, 2),
    }


def settings_of(bench: quick.Bench, asked: Mapping[str, Any], length: float) -> Settings:
    """Return what the rule says."""
    users = bench.num_users
    return choose_settings(
        num_users=users,
        epsilon=asked["epsilon"],
        delta=users**-1.1,
        relation=Relation.ADD_REMOVE,
        update_norm=length,
        num_params=bench.num_params,
        num_public_examples=bench.found.num_examples,
    )


_LENGTHS: dict[tuple[Any, ...], np.ndarray] = {}


def _public_length(bench: quick.Bench, factor: float | None, rate: float) -> np.ndarray:
    """Return quartiles and the 90th percentile of public users' update norms."""
    place = bench.view.name, bench.num_params, factor, rate
    if place not in _LENGTHS:
        experiment = bench.experiment.with_options(
            {"local-learning-rate": rate, "start-factor": factor}
        )
        found, _ = public_update_norms(experiment, bench.task)
        _LENGTHS[place] = np.quantile(found or [1.0], (0.25, 0.5, 0.75, 0.9))
    return _LENGTHS[place]


_PLATEAU = (None, 0.7, 0.8)  # of the noise on a logit: None is the rule's own
_VARIED = (
    "words",
    "decay",
    "quantile",
    "seed",
    "clip_share",
    "factor",
    "most_rounds",
)


def cells(
    lines: Iterable[Mapping[str, Any]],
) -> dict[tuple[str, int, float], list[Mapping[str, Any]]]:
    """Return runs by kind, users and ε; those of smaller vocabularies are of other corpora."""
    found = defaultdict(list)
    for line in lines:
        asked = line["spec"]
        if "words" not in asked:
            found[asked["kind"], line["facts"]["users"], asked["epsilon"]].append(line)
    return dict(sorted(found.items()))


def is_rule(asked: Mapping[str, Any]) -> bool:
    """Return whether a run is what the rule says, with nothing changed."""
    return (
        bool(asked.get("by_rule"))
        and asked["rate"] == 10.0
        and asked.get("logit_noise") in _PLATEAU
        and not any(name in asked for name in _VARIED)
    )


def gain(line: Mapping[str, Any]) -> float:
    """Return the last model's gain over public-only."""
    return line["accuracy"]["last 1"] - line["public_only"]


def grid() -> list[dict[str, Any]]:
    """Return cells that compare the rule with a grid of settings, where users are many."""
    found: list[dict[str, Any]] = []
    for users, drawn in ((3_000, 0.3), (10_000, 0.1)):
        runs: list[dict[str, Any]] = [{"by_rule": True, "rate": 10.0, "drawn": drawn}]
        for rounds in (100, 250):
            for noise in (0.35, 0.7, 1.4):
                given = {"rounds": rounds, "rate": 10.0, "q": 0.3, "drawn": drawn}
                runs.append({**given, "logit_noise": noise})
        for kind in shapes.EVALUATION:
            found.append({"kind": kind.name, "users": users, "epsilon": 8.0, "runs": runs})
    return found
