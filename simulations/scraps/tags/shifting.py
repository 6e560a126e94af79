"""Periodic shift of what tag models are trained on: accuracy over a period, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedpriv.checkpoints.aggregates import ema, upa
from fedpriv.datasets.stackexchange.sentence_store import OWN, SentenceStore
from fedpriv.training.periodic_shift import Shift
from fedpriv.transform import State, Transform
from fedpriv.tree import Params
from simulations.scraps.checkpoints import LAST, states
from simulations.scraps.tags.runs import Site, right_of
from simulations.scraps.tags.study import Epsilon, Family, Size, options

#: What alternates: text in threads that its writer asked against the rest, or two halves of tags.
Halves = Literal["questions", "tags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """What is shifted, and how.

    Attributes:
        halves: What alternates.
        rounds: Of a period; the first half of it has one of the two alone.
        seeds: From 0.
        decays: Of moving averages, at inference.
    """

    halves: Halves
    rounds: int = 20
    seeds: int = 3
    decays: Sequence[float] = (0.9, 0.95)


def one_half(site: Site, halves: Halves) -> np.ndarray:
    """Return which rows of a site's training text are of the first of two halves, bool (rows,).

    "questions": who wrote a sentence asked its thread, too. "tags": its tag has an even number.
    """
    view = site.view()
    if halves == "tags":
        return np.asarray(view.columns.labels) % 2 == 0
    own: set[tuple[str, int]] = set()
    for batch in SentenceStore(site.corpus.directory).batches(view.roster):
        asked = np.flatnonzero(batch.askers == OWN)
        own |= {(view.roster[batch.users[i]], int(batch.threads[i])) for i in asked}
    found = np.zeros(len(view.columns.labels), bool)
    threads = np.asarray(view.threads)
    for user in view.roster:
        rows = np.concatenate([np.arange(0), *view.rows([user], "train")])
        found[rows] = [(user, int(thread)) in own for thread in threads[rows]]
    return found


def accuracies(
    site: Site, family: Family, size: Size, rate: float, epsilon: Epsilon, period: Period
) -> dict[str, np.ndarray]:
    """Return accuracy on test threads of all kinds after every round of the last period.

    Returns:
        By aggregate, float64 (seeds, rounds of a period).
    """
    given = options(site, family, size, epsilon, rate)
    found = [_run(site, family, given, seed, period) for seed in range(period.seeds)]
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def _run(site: Site, family: Family, given: Any, seed: int, period: Period) -> dict[str, Any]:
    experiment = site.experiment(family.experiment, given, seed=seed)

    def make() -> dict[str, np.ndarray]:
        made = site.components(experiment, period.halves, lambda: one_half(site, period.halves))
        shift = Shift(kind="blocks", period=period.rounds)
        algorithm: Any = made.algorithm
        made = replace(made, algorithm=replace(algorithm, tensors=shift.tensors))
        ways = _ways(period)
        held: dict[str, State] = {}
        seen: dict[str, list[float]] = {name: [] for name in (LAST, *ways)}
        total = int(experiment.options()["rounds"])  # type: ignore[arg-type]
        for state in states(experiment, made, seed):
            params: Params = state.params
            models = {LAST: params}
            for name, way in ways.items():
                if state.round_num == 0:
                    held[name] = way.init(params)
                else:
                    _, held[name] = way.next(dict(params), held[name])
                models[name] = held[name]["average"]
            if state.round_num > total - period.rounds:
                for name, model in models.items():
                    seen[name].append(float(right_of(made.task, model).mean()))
        return {name: np.array(values) for name, values in seen.items()}

    facts = {
        "shift": period.halves,
        "of": "halves",
        "period": period.rounds,
        **experiment.options(),
    }
    facts |= {"decays": list(period.decays)}
    found = site.found(facts, make)
    return {name: found[name] for name in (LAST, *_ways(period))}


def _ways(period: Period) -> dict[str, Transform]:
    emas = {f"EMA {decay:g}": ema(decay) for decay in period.decays}
    return {**emas, **{f"UPA {k}": upa(k) for k in (period.rounds // 2, period.rounds)}}
