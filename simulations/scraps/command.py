r"""Recycling checkpoints on synthetic convex problems: measures, prints a page and draws.

python -m simulations.scraps.command --out docs/results/checkpoints.md \
        --plot docs/results/checkpoints.png
python -m simulations.scraps.command --tiny     # seconds
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedpriv.runs.progress import Pace
from simulations.reproduction.items import Script
from simulations.scraps.control import best_rate, control
from simulations.scraps.intervals import KS, coverage, widths
from simulations.scraps.last_iterate import STEPS, hard_ratio, ordinary_ratios
from simulations.scraps.output import publish
from simulations.scraps.page import FASTER, Found, page, plot

REPRODUCTIONS = (
    Script(
        name="scraps-convex",
        title="Checkpoint aggregates, Theorem 3.2 and intervals on synthetic convex problems",
        module="simulations.scraps.command",
        calls=((),),
        reduced=(("--tiny",),),
        minutes=(6, 0.5),
        passes=("out", "plot"),
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the studies and print their page."""
    parser = argparse.ArgumentParser(description=__doc__, prog="simulations.scraps.command")
    parser.add_argument(
        "--target-epsilon", dest="epsilon", type=float, nargs="+", default=[8.0, 1.0]
    )
    parser.add_argument("--tiny", action="store_true", help="few runs, short ones")
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    parser.add_argument("--plot", type=Path, default=None, help="draw into this PNG or SVG")
    given = parser.parse_args(arguments)
    found = measured(tuple(given.epsilon), tiny=given.tiny)
    if given.plot is not None:
        plot(found, given.plot)
    picture = "" if given.plot is None else given.plot.name
    text = page(found, command="fedpriv reproduce scraps-convex", picture=picture)
    publish(text, given.out)


def measured(epsilons: tuple[float, ...], *, tiny: bool = False) -> Found:
    """Return what the studies give at these ε, and without noise."""
    steps = STEPS[:3] if tiny else STEPS
    kinds = (None, *epsilons)
    runs, seeds, of_runs = (5, 4, 20) if tiny else (50, 50, 400)
    ks = KS[:2] if tiny else KS
    total = 2 * len(steps) + (1 + len(FASTER)) * len(kinds) + len(ks) + len(epsilons)
    run = Pace(total, of="parts").work
    return Found(  # the long ones first, so that what is left is not said to be short
        widths=[
            run(f"widths, ε = {e:g}", partial(widths, e, repeats=2 if tiny else 20))
            for e in epsilons
        ],
        coverage=[
            one
            for k in ks
            for one in run(f"coverage, k = {k}", partial(coverage, runs=of_runs, ks=[k]))
        ],
        rates={e: run(f"rate, ε = {e}", partial(best_rate, e)) for e in kinds},
        control={
            (e, by): run(f"control, ε = {e}", partial(control, e, faster=by, seeds=seeds))
            for by in FASTER
            for e in kinds
        },
        ordinary={t: run(f"T = {t}", partial(ordinary_ratios, t, runs=runs)) for t in steps},
        hard={t: run(f"T = {t}, hard", partial(hard_ratio, t)) for t in steps},
    )


if __name__ == "__main__":
    main()
