r"""Recycling checkpoints on synthetic convex problems: measures, prints a page and draws.

python -m simulations.scraps.command --out docs/results/checkpoints.md \
        --plot docs/results/checkpoints.png
python -m simulations.scraps.command --tiny     # seconds
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedpriv.reproduction import Script
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
    runs, seeds = (5, 4) if tiny else (50, 50)
    return Found(
        hard={t: hard_ratio(t) for t in steps},
        ordinary={t: ordinary_ratios(t, runs=runs) for t in steps},
        control={(e, by): control(e, faster=by, seeds=seeds) for by in FASTER for e in kinds},
        rates={e: best_rate(e) for e in kinds},
        coverage=coverage(runs=20 if tiny else 400, ks=KS[:2] if tiny else KS),
        widths=[widths(e, repeats=2 if tiny else 20) for e in epsilons],
    )


if __name__ == "__main__":
    main()
