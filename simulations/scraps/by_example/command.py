r"""Recycling checkpoints of photographs and conversions: trains, prints a page and draws.

    python -m simulations.scraps.by_example.command cifar10 --reduced
    python -m simulations.scraps.by_example.command pcvr

The sizes that are not reduced need a GPU, but for conversions, whose log is synthetic.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simulations.reproduction.items import Script
from simulations.scraps.by_example.page import page, plot
from simulations.scraps.by_example.problem import PROBLEMS, within
from simulations.scraps.by_example.runs import found
from simulations.scraps.output import add_output, check_output, publish

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
    parser.add_argument("--folder", default=None, help="of CIFAR's files; none to look around")
    parser.add_argument("--results", type=Path, default=Path("results/scraps-by-example.jsonl"))
    add_output(parser, seeds="its own")
    given = parser.parse_args(arguments)
    check_output(given)
    problem = PROBLEMS[given.what](reduced=given.reduced)
    if given.seeds is not None:
        problem = replace(problem, seeds=given.seeds)
    if given.folder is not None and given.what == "pcvr":
        raise ValueError(f"--folder {given.folder} is of photographs; the log is synthetic")
    if given.folder is not None:
        problem = within(problem, given.folder)
    results = given.results.with_suffix("").with_suffix(".jsonl")
    measured = found(problem, results)
    if given.plot is not None:
        plot(problem, measured, given.plot)
    reduced = " --reduced" if given.reduced else ""
    text = page(
        problem,
        measured,
        command=f"fedpriv reproduce {problem.name} --seeds {problem.seeds}{reduced}",
        picture="" if given.plot is None else given.plot.name,
    )
    publish(text, given.out)


if __name__ == "__main__":
    main()
