r"""Recycling checkpoints of photographs and conversions: trains, prints a page and draws.

    python -m simulations.scraps.by_example.command cifar10 --reduced
    python -m simulations.scraps.by_example.command pcvr

The sizes that are not reduced need a GPU, but for conversions, whose log is synthetic.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedpriv.reproduction import Script
from simulations.scraps.by_example.page import page, plot
from simulations.scraps.by_example.problem import PROBLEMS, within
from simulations.scraps.by_example.runs import found

_TITLES = {
    "cifar10": ("Recycling checkpoints: DP-SGD on CIFAR-10", (2000, 10)),
    "cifar100": ("Recycling checkpoints: averages of public training as a start", (2000, 10)),
    "pcvr": ("Recycling checkpoints: predicted conversions, synthetic log", (10, 0.2)),
}
REPRODUCTIONS = tuple(
    Script(
        name=f"scraps-{name}",
        title=title,
        module="simulations.scraps.by_example.command",
        calls=((name,),),
        reduced=((name, "--reduced"),),
        minutes=minutes,
        passes=("seeds", "results", "out", "plot"),
    )
    for name, (title, minutes) in _TITLES.items()
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="simulations.scraps.by_example.command"
    )
    parser.add_argument("what", choices=tuple(PROBLEMS))
    parser.add_argument("--reduced", action="store_true", help="little, on two cores")
    parser.add_argument("--seeds", type=int, default=None, help="of each run; by default its own")
    parser.add_argument("--folder", default=None, help="of CIFAR's files; none to look around")
    parser.add_argument("--results", type=Path, default=Path("results/scraps-by-example.jsonl"))
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    parser.add_argument("--plot", type=Path, default=None, help="draw into this PNG or SVG")
    given = parser.parse_args(arguments)
    if given.seeds is not None and given.seeds < 1:
        raise ValueError(f"--seeds {given.seeds} must be at least 1")
    if given.plot is not None and given.plot.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--plot {given.plot} must end in .png or .svg")
    problem = PROBLEMS[given.what](reduced=given.reduced)
    if given.seeds is not None:
        problem = replace(problem, seeds=given.seeds)
    if given.folder is not None:
        problem = within(problem, given.folder)
    results = given.results.with_suffix("").with_suffix(".jsonl")
    measured = found(problem, results, partial(print, file=sys.stderr, flush=True))
    if given.plot is not None:
        plot(problem, measured, given.plot)
    reduced = " --reduced" if given.reduced else ""
    text = page(
        problem,
        measured,
        command=f"fedpriv reproduce {problem.name} --seeds {problem.seeds}{reduced}",
        picture="" if given.plot is None else given.plot.name,
    )
    print(text)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
