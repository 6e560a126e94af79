"""Bias of judging a released model by threads that made its start, against runs without them.

    python -m simulations.defaults.cross_fitted RUNS.jsonl --corpora FOLDER

`fedpriv.runs.selection` takes out of a released model what a fold of public threads made of its
start. What that comes to can be known in a study alone: private training is done again from starts
that were made without the fold, which a run could not do without spending ε again. A line of each
corpus of fitting and target gives the gain over public-only, in points, judged both ways.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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

SIZES, EPSILONS, RATE = (300, 1_000, 3_000), (8.0, 2.0), 10.0
_KEY = Key.simulation(0)


def main() -> None:
    """Make runs that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--corpora", type=Path, default=Path("runs/synthetic"))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    given = parser.parse_args()
    done = [(line["kind"], line["users"]) for line in shapes.read(given.runs)]
    for size in given.sizes:
        for kind in shapes.FITTING:
            if (kind.name, size) not in done:
                for line in judged(quick.bench(shapes.corpus(given.corpora, kind, size))):
                    shapes.keep(given.runs, {"kind": kind.name, "users": size, **line})


def judged(bench: quick.Bench, epsilons: Sequence[float] = EPSILONS) -> Iterator[dict[str, Any]]:
    """Yield, for each target, the gain of the last model as the selection judges it, and as it is.

    Args:
        bench: Of a corpus whose public threads can be dealt into folds.
        epsilons: Targets.
    """
    norms, _ = public_update_norms(bench.experiment, bench.task)
    folds = bench.task.public_folds()
    alone = [one for fold in folds if (one := public_only(fold, _KEY)) is not None]
    choice = replace(bench.found.choices.by_loss, factor=1.0)
    wholes = [learn(fold.public_learner(_KEY, choosing=False), choice).params for fold in folds]
    fresh = bench.task.init_params(_KEY)
    public = np.concatenate(
        [fold.values(one.model.params) for fold, one in zip(folds, alone, strict=True)]
    )
    for target in epsilons:
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

        yield {
            "target": target,
            "examples": len(public),
            "taken_out": gain(taken),
            "trained_again": gain(again),
            "left_in": gain([last] * len(folds)),
            "on_rostered": round(
                bench.accuracy(last) - bench.accuracy(bench.found.model.params), 2
            ),
        }


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines as Markdown."""
    rows = [
        [
            one["kind"], f"{one['users']:,}", f"{one['target']:g}", f"{one['examples']:,}",
            *(f"{one[name]:+.1f}" for name in ("left_in", "taken_out", "trained_again")),
        ]
        for one in lines
    ]  # fmt: skip
    head = ["SYNTHETIC corpus", "users", "ε", "public examples",
            "judged with the fold left in", "as runs judge it",
            "trained again without the fold"]  # fmt: skip
    gaps = [one["taken_out"] - one["trained_again"] for one in lines]
    return [
        markdown_table(head, rows),
        "",
        f"As runs judge it less trained again: {np.mean(gaps):+.1f} points in the mean, "
        f"{np.median(np.abs(gaps)):.1f} in the median of absolute values.",
    ]


if __name__ == "__main__":
    main()
