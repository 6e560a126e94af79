"""Bolt-on beside SCS13, BST14 and DP-SGD: tunes, runs, prints a page and draws.

    python -m simulations.bolt_on.command --problem mnist --loss softmax --out page.md --plot a.png
    python -m simulations.bolt_on.command --tiny     # seconds, made-up data

What has been run is in --results and is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.reproduction import Script
from simulations.bolt_on.methods import EPSILONS, METHODS, PASSES
from simulations.bolt_on.page import Batches, Excess, page, plot, plot_excess
from simulations.bolt_on.study import Study, found
from simulations.bolt_on.timing import timed
from simulations.linear_models.problems import problem
from simulations.linear_models.store import Store

_PASSED = ("seeds", "results", "out", "plot")
_TINY = ("--tiny", "--seeds", "2", "--epsilon", "1", "--passes", "1")
_ROWS = (500, 1_000, 2_000, 4_000, 8_000, 11_862)

REPRODUCTIONS = tuple(
    Script(
        name=f"bolt-on-{name}",
        title=f"Bolt-on: {title}",
        module="simulations.bolt_on.command",
        calls=(call,),
        reduced=((*call, *_TINY),) if small else (),
        minutes=minutes,
        passes=_PASSED,
    )
    for name, title, call, minutes, small in (
        (
            "mnist",
            "beside noise in every step, MNIST, softmax",
            ("--problem", "mnist", "--loss", "softmax"),
            (40, 0.3),
            True,
        ),
        (
            "pair-logistic",
            "beside noise in every step, MNIST 3 or 8, logistic",
            ("--problem", "mnist-3-8", "--loss", "logistic"),
            (15, 0.3),
            True,
        ),
        (
            "pair-svm",
            "beside noise in every step, MNIST 3 or 8, Huber SVM",
            ("--problem", "mnist-3-8", "--loss", "huber"),
            (15, 0.3),
            True,
        ),
        (
            "covertype",
            "beside noise in every step, Covertype, logistic",
            ("--problem", "covertype", "--loss", "logistic"),
            (30, 0.3),
            True,
        ),
        (
            "imdb",
            "beside noise in every step, IMDB, logistic",
            ("--problem", "imdb", "--loss", "logistic"),
            (20, 0.3),
            False,
        ),
        (
            "batches",
            "MNIST, b from 1 to m",
            ("--only", "batches"),
            (15, 0.3),
            False,
        ),
        ("time", "MNIST, training time by pairs", ("--only", "time"), (2, 0.3), False),
        ("excess", "and BST14, excess risk against m", ("--only", "excess"), (5, 1), False),
    )
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study of a problem, or one of its three sides, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, prog="simulations.bolt_on.command")
    parser.add_argument("--problem", default="mnist")
    parser.add_argument("--loss", default="softmax", choices=("softmax", "logistic", "huber"))
    parser.add_argument("--only", choices=("batches", "time", "excess"), default=None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--passes", type=int, nargs="+", default=list(PASSES))
    parser.add_argument("--tiny", action="store_true", help="made-up data and a grid of two")
    parser.add_argument("--results", type=Path, default=None, help="JSON lines of all runs")
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    parser.add_argument("--plot", type=Path, default=None, help="draw into this PNG or SVG")
    given = parser.parse_args(arguments)
    study = Study(
        problem_key=given.problem,
        loss=given.loss,
        store=Store.at(_own(given.results)),
        seeds=given.seeds,
        epsilons=tuple(given.epsilon),
        passes=tuple(given.passes),
        tiny=given.tiny,
    )
    command = f"fedpriv reproduce bolt-on-{_name(given)}"
    shared = {"seeds": given.seeds, "command": command}
    match given.only:
        case "batches":
            text = page([], batches=over_batches(study), **shared)
        case "time":
            text = page([], times=timed(study.problem_key, study.loss, tiny=study.tiny), **shared)
        case "excess":
            excess = over_rows(study)
            text = page([], excess=excess, **shared)
            if given.plot is not None:
                plot_excess(excess, given.plot)
        case _:
            made = found(study)
            text = page([made], **shared)
            if given.plot is not None:
                plot(made, given.plot)
    print(text)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, "utf-8")


def over_batches(study: Study, sizes: Sequence[int] = (1, 10, 50, 500), passes: int = 5) -> Batches:
    """Return accuracies of bolt-on at ε = 1 for each b, and for b = m."""
    number = problem(study.problem_key, tiny=study.tiny).data.num_train
    few = replace(study, seeds=min(3, study.seeds))
    return {
        (guarantee, size): [
            row["accuracy"] for row in few.cell(guarantee, "bolt-on", 1.0, passes, batch=size)
        ]
        for size in (*sizes, number)
        for guarantee in METHODS
    }


def over_rows(study: Study, sizes: Sequence[int] = _ROWS, passes: int = 10) -> Excess:
    """Return excess risks of logistic regression on the pair, for each number of rows."""
    pair = replace(study, problem_key="mnist-3-8", loss="logistic")
    return {
        method: {m: pair.excess("approximate", method, 1.0, passes, m) for m in sizes}
        for method in ("bolt-on", "bst14")
    }


def _name(given: argparse.Namespace) -> str:
    if given.only is not None:
        return str(given.only)
    named = {("mnist-3-8", "logistic"): "pair-logistic", ("mnist-3-8", "huber"): "pair-svm"}
    return str(named.get((given.problem, given.loss), given.problem))


def _own(results: Path | None) -> Path | None:
    """Return a file of its own beside that of tables and figures, whose rows are others."""
    return None if results is None else results.with_name(f"bolt-on-{results.name}")


if __name__ == "__main__":
    main()
