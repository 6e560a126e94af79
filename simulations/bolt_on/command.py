r"""Bolt-on beside SCS13, BST14 and DP-SGD: tunes, runs, prints a page and draws.

    python -m simulations.bolt_on.command --study mnist pair-svm --side batches time excess \
        --results docs/results/runs.jsonl --out docs/results/bolt-on.md \
        --plot docs/results/bolt-on.png
    python -m simulations.bolt_on.command --tiny     # seconds, made-up data

What has been run is in --results and is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.runs.progress import Pace
from simulations.bolt_on.methods import EPSILONS, METHODS, PASSES, Guarantee
from simulations.bolt_on.page import Batches, Excess, page, plot, plot_excess
from simulations.bolt_on.study import Study, found
from simulations.bolt_on.timing import timed
from simulations.linear_models.problems import problem
from simulations.linear_models.store import Store
from simulations.reproduction.items import Script

_PASSED = ("seeds", "results", "out", "plot")
_TINY = ("--tiny", "--seeds", "2", "--target-epsilon", "1", "--passes", "1")
_ROWS = (500, 1_000, 2_000, 4_000, 8_000, 11_862)

#: Problem and loss by name.
STUDIES: Mapping[str, tuple[str, str]] = {
    "mnist": ("mnist", "softmax"),
    "pair-logistic": ("mnist-3-8", "logistic"),
    "pair-svm": ("mnist-3-8", "huber"),
    "covertype": ("covertype", "logistic"),
    "imdb": ("imdb", "logistic"),
    "mnist-ova": ("mnist-projected", "one-vs-all"),
}
SIDES = ("batches", "time", "excess")

REPRODUCTIONS = (
    *(
        Script(
            name=f"bolt-on-{name}",
            title=f"Bolt-on against noise in every step, {title}",
            module="simulations.bolt_on.command",
            calls=(("--study", name, *more),),
            reduced=(("--study", name, *_TINY),) if name != "imdb" else (),
            minutes=(minutes, 0.3),
            passes=_PASSED,
        )
        for name, title, minutes, *more in (
            ("mnist", "MNIST, softmax", 20),
            ("mnist-ova", "MNIST, one against all", 15, "--passes", "1", "10"),
            ("pair-logistic", "MNIST 3 or 8, logistic", 5),
            ("pair-svm", "MNIST 3 or 8, Huber SVM", 5),
            ("covertype", "Covertype, logistic", 15),
            ("imdb", "IMDB, logistic", 15),
        )
    ),
    *(
        Script(
            name=f"bolt-on-{side}",
            title=title,
            module="simulations.bolt_on.command",
            calls=(("--study", "--side", side),),
            minutes=(minutes, 0.3),
            passes=_PASSED,
        )
        for side, title, minutes in (
            ("batches", "Bolt-on on MNIST, b from 1 to m", 10),
            ("time", "Bolt-on on MNIST, training time by pairs", 2),
            ("excess", "Excess risk of bolt-on and BST14 against m", 5),
        )
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run studies, or one of the three sides, and print one page of them."""
    parser = argparse.ArgumentParser(description=__doc__, prog="simulations.bolt_on.command")
    parser.add_argument("--study", nargs="*", default=["mnist"], choices=tuple(STUDIES))
    parser.add_argument("--side", nargs="*", default=[], choices=SIDES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--target-epsilon", dest="epsilon", type=float, nargs="+", default=list(EPSILONS)
    )
    parser.add_argument("--passes", type=int, nargs="+", default=list(PASSES))
    parser.add_argument("--tiny", action="store_true", help="synthetic data and a grid of two")
    parser.add_argument("--results", type=Path, default=None, help="JSON lines of all runs")
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    parser.add_argument("--plot", type=Path, default=None, help="draw into this PNG or SVG")
    given = parser.parse_args(arguments)
    made, pictures, store = [], [], Store.at(_own(given.results))

    def study(name: str) -> Study:
        key, loss = STUDIES[name]
        return Study(
            problem_key=key,
            loss=loss,
            store=store,
            seeds=given.seeds,
            epsilons=tuple(given.epsilon),
            passes=tuple(given.passes),
            tiny=given.tiny,
        )

    def picture(name: str) -> Path:
        return given.plot.with_stem(f"{given.plot.stem}-{name}")

    for name in given.study:
        made.append(found(study(name)))
        if given.plot is not None:
            plot(made[-1], picture(name))
            pictures.append(picture(name).name)
    sides: dict[str, Any] = {}
    if "batches" in given.side:
        sides["batches"] = over_batches(study("mnist"))
    if "time" in given.side:
        sides["times"] = timed(*STUDIES["mnist"], tiny=given.tiny)
    if "excess" in given.side:
        sides["excess"] = over_rows(study("pair-logistic"))
        if given.plot is not None:
            plot_excess(sides["excess"], picture("excess"))
            sides["excess_picture"] = picture("excess").name
    named = [*given.study, *given.side]
    own = f"-{named[0]}" if len(named) == 1 else ""
    size = "--reduced" if given.tiny else f"--seeds {given.seeds}"
    command = f"fedpriv reproduce bolt-on{own} {size}"
    text = page(
        made, seeds=given.seeds, command=command, pictures=pictures, reduced=given.tiny, **sides
    )
    print(text)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, "utf-8")


def over_batches(study: Study, sizes: Sequence[int] = (1, 10, 50, 500), passes: int = 5) -> Batches:
    """Return accuracies of bolt-on at ε = 1 for each b, and for b = m."""
    number = problem(study.problem_key, tiny=study.tiny).data.num_train
    few = replace(study, seeds=min(3, study.seeds))
    places: list[tuple[Guarantee, int]] = [
        (guarantee, size) for size in (*sizes, number) for guarantee in METHODS
    ]
    pace = Pace(len(places), of="cells", rows=study.store.rows)

    def accuracies(guarantee: Guarantee, size: int) -> list[float]:
        cell = partial(few.cell, guarantee, "bolt-on", 1.0, passes, batch=size)
        return [row["accuracy"] for row in pace.work(f"{guarantee}, b = {size}", cell)]

    return {place: accuracies(*place) for place in places}


def over_rows(study: Study, sizes: Sequence[int] = _ROWS, passes: int = 10) -> Excess:
    """Return excess risks of a study of two classes, for each number of rows."""
    methods = ("bolt-on", "bst14")
    pace = Pace(len(methods) * len(sizes), of="cells", rows=study.store.rows)

    def excess(method: str, m: int) -> list[float]:
        risk = partial(study.excess, "approximate", method, 1.0, passes, m)
        return pace.work(f"{method}, m = {m:,}", risk)

    return {method: {m: excess(method, m) for m in sizes} for method in methods}


def _own(results: Path | None) -> Path | None:
    """Return a file of its own beside that of tables and figures, whose rows are others."""
    return None if results is None else results.with_name(f"bolt-on-{results.name}")


if __name__ == "__main__":
    main()
