"""Bias of judging a released model by threads that made its start, against runs without them.

    python -m simulations defaults-cross-fitted

`fedpriv.runs.selection` takes out of a released model what a fold of public threads made of its
start. What that comes to can be known in a study alone: private training is done again from starts
that were made without the fold, which a run could not do without spending ε again. A line of each
corpus of fitting and target gives the gain over public-only, in points, judged both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.experiments.settings import public_update_norms
from fedpriv.experiments.start import public_only
from fedpriv.rng import Key
from fedpriv.runs.selection import without_fold
from fedpriv.training.public_learning import learn
from fedpriv.tree import Params, interpolate
from simulations.defaults import quick, shapes
from simulations.defaults.sweep import settings_of
from simulations.reproduction.study import table as markdown_table

SIZES, RATE = (300, 1_000, 3_000), 10.0
_KEY = Key.simulation(0)


@lru_cache(maxsize=1)
def _bench(corpora: Path, kind: str, users: int) -> quick.Bench:
    return quick.bench(shapes.corpus(corpora, shapes.KINDS[kind], users))


def perform(corpora: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gain of the last model as the selection judges it, and as it is.

    Args:
        corpora: Folder of corpora, whose public threads can be dealt into folds.
        asked: "kind", "users", and "epsilon", the target.
    """
    bench, target = _bench(corpora, asked["kind"], asked["users"]), asked["epsilon"]
    norms, _ = public_update_norms(bench.experiment, bench.task)
    folds = bench.task.public_folds()
    alone = [one for fold in folds if (one := public_only(fold, _KEY)) is not None]
    choice = replace(bench.found.choices.by_loss, factor=1.0)
    wholes = [learn(fold.public_learner(_KEY, choosing=False), choice) for fold in folds]
    fresh = bench.task.init_params(_KEY)
    public = np.concatenate(
        [fold.values(one.model) for fold, one in zip(folds, alone, strict=True)]
    )
    chosen = settings_of(bench, {"epsilon": target, "rate": RATE}, float(np.median(norms)))
    share = chosen.cohort / bench.num_users
    run = quick.Settings(
        rounds=chosen.rounds,
        rate=RATE,
        norm=chosen.l2_clip_norm,
        q=share,
        sigma=quick.sigma_of(share, chosen.rounds, target, bench.num_users),
    )
    start = bench.start(chosen.start_factor)
    factor = chosen.start_factor or bench.found.choices.by_loss.factor
    begun = [interpolate(fresh, whole, factor) for whole in wholes]
    last = quick.run(bench, start, run, 1)[0]["last"]
    again = [quick.run(bench, one, run, 1)[0]["last"] for one in begun]
    taken = [without_fold(last, start, one) for one in begun]

    def gain(models: Sequence[Params]) -> float:
        values = [fold.values(one) for fold, one in zip(folds, models, strict=True)]
        return round(100 * float((np.concatenate(values) - public).mean()), 2)

    return {
        "examples": len(public),
        "taken_out": gain(taken),
        "trained_again": gain(again),
        "left_in": gain([last] * len(folds)),
        "on_rostered": round(bench.accuracy(last) - bench.accuracy(bench.found.model), 2),
    }


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the lines as Markdown."""
    rows = []
    for one in lines:
        target = one["spec"]["epsilon"]
        rows.append([
            one["spec"]["kind"], f"{one['spec']['users']:,}", f"{target:g}",
            f"{one['examples']:,}",
            *(f"{one[name]:+.1f}" for name in ("left_in", "taken_out", "trained_again")),
        ])  # fmt: skip
    head = ["SYNTHETIC corpus", "users", "ε", "public examples",
            "judged with the fold left in", "as runs judge it",
            "trained again without the fold"]  # fmt: skip
    return markdown_table(head, rows)
