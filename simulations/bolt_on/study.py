r"""Bolt-on beside SCS13, BST14 and DP-SGD: tunes, runs, prints a page and draws.

    python -m simulations.bolt_on.study --study mnist pair-svm --side batches time excess \
        --results docs/results/runs.jsonl --out docs/results/bolt-on.md \
        --plot docs/results/bolt-on.png
    python -m simulations.bolt_on.study --tiny     # seconds, made-up data

What has been run is in --results and is not run again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from fedpriv.privacy.epsilon import rounded_up_to
from fedpriv.runs.progress import Pace
from simulations.bolt_on.methods import (
    BATCH,
    EPSILONS,
    GRIDS,
    HUBER_GRID,
    LABELS,
    METHODS,
    OF_ONE_LINE,
    PASSES,
    Guarantee,
    Settings,
    Timed,
    model_of,
    perform,
    spec,
    timed,
)
from simulations.linear_models.drawing import Curve, Panel, draw
from simulations.linear_models.problems import problem
from simulations.linear_models.training import REDUCED, references, shown, softmax_fit, spread
from simulations.reproduction.items import Script
from simulations.reproduction.study import (
    Row,
    Store,
    parse_study,
    publish,
    results_of,
    study_parser,
)

#: Comparators with noise in every step keep the settings that were best in one pass.
TUNED_IN_ONE_PASS = ("scs13", "bst14", "dp-sgd")
#: Beyond five passes they are run at these ε only: a run of them asks a question a batch.
LONG_RUNS = (0.1, 1.0, 4.0)

Cell = tuple[Guarantee, str, float, int]  # method, ε, passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One loss on one problem.

    Attributes:
        problem_key: Its name.
        loss: "softmax", "one-vs-all", "logistic" or "huber".
        store: Of finished runs.
        seeds: How many are reported; of methods that are noised in every step 3 at most beyond
            one pass.
        epsilons: At which.
        passes: k.
        tiny: Made-up data and a grid of two, to see whether everything runs.
    """

    problem_key: str
    loss: str
    store: Store
    seeds: int = 5
    epsilons: Sequence[float] = EPSILONS
    passes: Sequence[int] = PASSES
    tiny: bool = False

    def grid(self, method: str) -> tuple[Settings, ...]:
        """Return the settings that a method chooses from."""
        huber = self.loss == "huber" and method == "bolt-on"
        grid = HUBER_GRID if huber else GRIDS[method]
        return grid[1:3] if self.tiny else grid

    def methods(self, guarantee: Guarantee, passes: int) -> tuple[str, ...]:
        """Return the methods under a guarantee; objective perturbation has no passes."""
        whole = self.loss in OF_ONE_LINE and passes == self.passes[0]
        return tuple(name for name in METHODS[guarantee] if whole or name != "objective")

    def chosen(
        self, guarantee: Guarantee, method: str, epsilon: float, passes: int, **rest: Any
    ) -> tuple[Settings, list[float]]:
        """Return the settings that are best on the validation part, and what all of them reach."""
        if method in TUNED_IN_ONE_PASS:
            passes = 1
        found = [
            self.row(guarantee, method, epsilon, passes, settings, split="validation", **rest)[
                "accuracy"
            ]
            for settings in self.grid(method)
        ]
        return self.grid(method)[found.index(max(found))], found

    def cell(
        self, guarantee: Guarantee, method: str, epsilon: float, passes: int, **rest: Any
    ) -> list[Row]:
        """Return the reported runs of a method; none where a long one is left out."""
        slow = method in TUNED_IN_ONE_PASS
        if slow and passes > 5 and epsilon not in LONG_RUNS:
            return []
        settings, _ = self.chosen(guarantee, method, epsilon, passes, **rest)
        few = slow and passes > 1
        return [
            self.row(guarantee, method, epsilon, passes, settings, seed=seed, **rest)
            for seed in range(min(self.seeds, 3) if few else self.seeds)
        ]

    def row(
        self,
        guarantee: Guarantee | None,
        method: str,
        epsilon: float,
        passes: int,
        settings: Settings,
        **rest: Any,
    ) -> Row:
        """Return one run."""
        asked = spec(
            self.problem_key, self.loss, guarantee, method, epsilon, passes, settings,
            tiny=self.tiny, **rest,
        )  # fmt: skip
        return self.store.row(asked, perform)

    def references(self) -> dict[str, float]:
        """Return the rows that every table has."""
        return references(self.store, self.problem_key, tiny=self.tiny)

    def excess(
        self, guarantee: Guarantee, method: str, epsilon: float, passes: int, rows: int
    ) -> list[float]:
        """Return excess risk on so many training rows, of the setting with the least of it.

        The setting is chosen by the same figure on a seed of its own: a diagnostic, not private.
        """
        model = model_of(self.problem_key, self.loss, "test", rows, self.tiny)
        fitted = softmax_fit(np.asarray(model.data.x_train), model.data.y_train, 2, 1e-9)
        best = {
            "weight": fitted["kernel"][:, 1] - fitted["kernel"][:, 0],
            "bias": fitted["bias"][1:] - fitted["bias"][:1],
        }
        least = model.mean_loss({n: a.astype(np.float32) for n, a in best.items()})

        def objective(settings: Settings, **rest: Any) -> float:
            done = self.row(guarantee, method, epsilon, passes, settings, rows=rows, **rest)
            return float(done["objective"])

        chosen = min(self.grid(method), key=objective)
        return [objective(chosen, seed=seed) - least for seed in range(self.seeds)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a study came to.

    Attributes:
        title: Of the problem.
        loss: Of the models.
        data: What its data are called.
        synthetic: Whether they were made up.
        references: Rows of one figure each.
        cells: Reported runs.
        grids: Accuracies of all settings on the validation part.
    """

    title: str
    loss: str
    data: str
    synthetic: bool
    references: Mapping[str, float]
    cells: Mapping[Cell, Sequence[Row]] = field(repr=False)
    grids: Mapping[Cell, Sequence[float]] = field(repr=False)

    def best(self, guarantee: Guarantee, method: str, epsilon: float) -> tuple[int, Sequence[Row]]:
        """Return the number of passes with the best mean, and its runs."""
        found = [
            (passes, rows)
            for (own, name, e, passes), rows in self.cells.items()
            if (own, name, e) == (guarantee, method, epsilon) and rows
        ]
        return max(found, key=lambda pair: mean(row["accuracy"] for row in pair[1]))


def found(study: Study) -> Found:
    """Do what a study still needs, and return what it came to."""
    own = problem(study.problem_key, tiny=study.tiny)
    cells: dict[Cell, Sequence[Row]] = {}
    grids: dict[Cell, Sequence[float]] = {}
    places: list[Cell] = [
        (guarantee, method, epsilon, passes)
        for passes in study.passes
        for guarantee in METHODS
        for method in study.methods(guarantee, passes)
        for epsilon in study.epsilons
    ]
    # Passes, as a cell of ten takes about ten times as long as one of one.
    total = sum(passes for *_, passes in places)
    pace = Pace(total, of="passes", rows=study.store.rows)
    for place in places:
        said = f"{study.problem_key} {study.loss} {place}"
        cells[place] = pace.work(said, partial(study.cell, *place), counts=place[-1])
        _, grids[place] = study.chosen(*place)
    return Found(
        title=own.title,
        loss=study.loss,
        data=own.data.name,
        synthetic=own.data.synthetic,
        references=study.references(),
        cells=cells,
        grids=grids,
    )


_LEVELS = ("majority class", "public examples alone (ε = 0)", "not private")
_TITLES: Mapping[Guarantee, str] = {"pure": "pure ε, δ = 0", "approximate": "(ε, δ = 1/m²)"}

Excess = Mapping[str, Mapping[int, Sequence[float]]]
Batches = Mapping[tuple[Guarantee, int], Sequence[float]]


def page(
    items: Sequence[Found],
    *,
    seeds: int,
    command: str,
    pictures: Sequence[str] = (),
    times: Sequence[Timed] = (),
    excess: Excess | None = None,
    excess_picture: str | None = None,
    batches: Batches | None = None,
    reduced: bool = False,
) -> str:
    """Return the page.

    Args:
        items: One problem and loss after the other.
        seeds: How many a figure is of.
        command: That makes it.
        pictures: Addresses of the plots, in the same order; none leaves them out.
        times: Of training.
        excess: Excess risk by method and training rows.
        excess_picture: Address of its plot.
        batches: Accuracies by guarantee and b.
        reduced: Whether they are of made-up data, and of a grid of two.
    """
    lines = [
        "# Bolt-on against noise in every step",
        "",
        f"`{command}`",
        "",
        *((REDUCED, "") if reduced else ()),
        f"Accuracy on test in per cent, mean of {seeds} seeds (3 of methods noised in every step "
        f"beyond one pass) ± half a 95 % t-interval; b = {BATCH}, k passes. ε is of one example "
        "that is there or whose place stays empty, so that how many there are is public "
        "(add-remove, per example, simulated), pure ε by composition and (ε, δ) by PLD; the "
        "papers' replaced example, which `relation` is of by default, would be 2ε, for every "
        "method alike. Each method has five settings of one number, chosen on a tenth of the "
        "training set for each ε, and no ε "
        f"covers that choice; {', '.join(LABELS[m] for m in TUNED_IN_ONE_PASS)} keep beyond one "
        "pass what was best in one, and are run beyond five at three ε only. BST14 has its step "
        "sizes and projection and the least noise that today's accountant allows, which favours "
        "it over the published one. Rows are projected to 50 columns by a fixed Gaussian matrix "
        "(IMDB 300, Covertype as it is) and have length at most 1. Left out: DP-SVRG, Protein, "
        "and the non-convex random start.",
        *_notes(items),
    ]
    for number, item in enumerate(items):
        lines += ["", f"## {item.title}, {item.loss}{' (SYNTHETIC data)' * item.synthetic}", ""]
        own = item.references
        lines += [
            f"Data: {item.data}{', synthetic' * item.synthetic}; {int(own['num_train']):,} private "
            f"and {int(own['num_public']):,} public examples.",
        ]
        if pictures:
            lines += ["", f"![Accuracy against ε, {item.title}]({pictures[number]})"]
        for guarantee in METHODS:
            lines += ["", f"### {_TITLES[guarantee]}", "", *_table(item, guarantee)]
            lines += ["", *_verdict(item, guarantee)]
        lines += ["", "### Over the grid", "", *_grids(item)]
    if batches:
        lines += ["", "## Batch size", "", *_batches(batches)]
    if times:
        lines += ["", "## Time", "", *_times(times)]
    if excess:
        lines += ["", "## Excess risk", "", *_excess(excess)]
        if excess_picture is not None:
            lines += ["", f"![Excess risk against m]({excess_picture})"]
    return "\n".join(lines) + "\n"


def _notes(items: Sequence[Found]) -> list[str]:
    lines = []
    if any(item.loss in OF_ONE_LINE for item in items):
        lines += [
            "",
            "Objective perturbation releases an approximate minimum, noised for what is not exact "
            "about it; its number is the share of ε that its regulariser costs. It has no passes, "
            "and wants a loss whose gradients are along one line.",
        ]
    if any(item.loss == "one-vs-all" for item in items):
        lines += [
            "",
            "One-vs-all is ten logistic regressions in one vector, perturbed by their joint Δ₂, "
            "√10 times that of one. Under pure ε that is as much noise as with ε/10 for each, "
            "under (ε, δ) about √10 times less. Gradients of the others are bounded by 1 over all "
            "classes. Public examples alone, and not private, are softmax regression.",
        ]
    return lines


def plot(item: Found, path: Path) -> None:
    """Draw accuracy against ε at the best number of passes, one panel a guarantee."""
    place = {name: number for number, name in enumerate(LABELS)}
    panels = [
        Panel(
            title=_TITLES[guarantee],
            curves=[
                Curve(
                    label=LABELS[method],
                    points={
                        e: [row["accuracy"] for row in item.best(guarantee, method, e)[1]]
                        for e in _epsilons(item)
                    },
                    place=place[method],
                )
                for method in _methods(item, guarantee)
            ],
            levels={name: item.references[name] for name in _LEVELS},
        )
        for guarantee in METHODS
    ]
    draw(
        panels,
        path,
        title=f"Bolt-on against noise in every step: {item.title}, {item.loss}"
        f"{' (SYNTHETIC data)' * item.synthetic}",
        below=f"ε (add-remove, per example, simulated), b = {BATCH}, at the best of "
        f"{', '.join(map(str, _passes(item)))} passes for each. Data: {item.data}.",
    )


def _methods(item: Found, guarantee: Guarantee) -> list[str]:
    known = {(own, method) for own, method, *_ in item.cells}
    return [method for method in METHODS[guarantee] if (guarantee, method) in known]


def _epsilons(item: Found) -> list[float]:
    return sorted({epsilon for _, _, epsilon, _ in item.cells})


def _passes(item: Found) -> list[int]:
    return sorted({passes for *_, passes in item.cells})


def _table(item: Found, guarantee: Guarantee) -> list[str]:
    columns = _epsilons(item)
    lines = [
        "| | k | " + " | ".join(f"ε = {e:g}" for e in columns) + " |",
        "|---|---:|" + "---:|" * len(columns),
    ]
    for name in _LEVELS:
        lines.append(f"| {name} | – |" + f" {100 * item.references[name]:.1f} |" * len(columns))
    for method in _methods(item, guarantee):
        for passes in _passes(item)[: 1 if method == "objective" else None]:
            cells = [
                shown([row["accuracy"] for row in item.cells[guarantee, method, e, passes]])
                for e in columns
            ]
            named = "–" if method == "objective" else str(passes)
            lines.append(f"| {LABELS[method]} | {named} | " + " | ".join(cells) + " |")
    return lines


def _verdict(item: Found, guarantee: Guarantee) -> list[str]:
    """Say where bolt-on wins, each method at its best number of passes."""
    known = _methods(item, guarantee)
    noisy = [m for m in known if m in TUNED_IN_ONE_PASS]
    lines = [
        "Bolt-on at its best, against the best of those with noise in every step, each with the k "
        f"that these very figures favour: {_against(item, guarantee, noisy)}."
    ]
    if "objective" in known:
        found = _against(item, guarantee, ["objective"])
        lines += ["", f"Against objective perturbation, likewise: {found}."]
    return lines


def _against(item: Found, guarantee: Guarantee, others: Sequence[str]) -> str:
    parts = []
    for epsilon in _epsilons(item):
        own, name = max(
            (mean(_best(item, guarantee, m, epsilon)), m)
            for m in METHODS[guarantee]
            if m.startswith("bolt-on")
        )
        other, theirs = max((mean(_best(item, guarantee, m, epsilon)), m) for m in others)
        half = math.hypot(
            *(spread(_best(item, guarantee, method, epsilon)) for method in (name, theirs))
        )
        said = "ahead of" if own > other else "behind"
        if abs(own - other) <= half:
            said = "even with"
        parts.append(
            f"ε {rounded_up_to(epsilon, 3):g}: {said} {LABELS[theirs]} ({100 * own:.1f} to "
            f"{100 * other:.1f}, {own / other:.2f} times)"
        )
    return "; ".join(parts)


def _best(item: Found, guarantee: Guarantee, method: str, epsilon: float) -> list[float]:
    return [row["accuracy"] for row in item.best(guarantee, method, epsilon)[1]]


def _grids(item: Found) -> list[str]:
    lines = [
        "Accuracy on the validation part over the five settings, one pass: worst to best, and the "
        "standard deviation. What spreads less is easier to tune.",
        "",
        "| guarantee | method | " + " | ".join(f"ε = {e:g}" for e in _epsilons(item)) + " |",
        "|---|---|" + "---|" * len(_epsilons(item)),
    ]
    first = _passes(item)[0]
    for guarantee in METHODS:
        for method in _methods(item, guarantee):
            cells = []
            for epsilon in _epsilons(item):
                found = [100 * v for v in item.grids[guarantee, method, epsilon, first]]
                cells.append(f"{min(found):.1f} to {max(found):.1f} (sd {stdev(found):.1f})")
            row = f"| {_TITLES[guarantee]} | {LABELS[method]} | "
            lines.append(row + " | ".join(cells) + " |")
    return lines


def _batches(batches: Batches) -> list[str]:
    sizes = sorted({size for _, size in batches})
    lines = [
        "Bolt-on, convex, constant step, ε = 1, 5 passes, the step chosen for each b; the largest "
        "b is m, which is full gradient descent.",
        "",
        "| | " + " | ".join(f"b = {size:,}" for size in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    for guarantee in METHODS:
        cells = [shown(batches[guarantee, size]) for size in sizes]
        lines.append(f"| {_TITLES[guarantee]} | " + " | ".join(cells) + " |")
    return lines


def _times(times: Sequence[Timed]) -> list[str]:
    return [
        f"CPU seconds of one pass over MNIST (softmax, b = {BATCH}), medians of "
        f"{len(times[0].ratios)} pairs in turns, and the ratio of pairs: median and range. Each "
        "method next to the same without noise. Both kinds go through the door: permutation SGD "
        "asks one question, the others one a batch, and so pay for a charge, a cohort and a record "
        "each time, with noise or without; the difference between rows is mostly that.",
        "",
        "| | with noise | without | ratio |",
        "|---|---:|---:|---:|",
        *(item.shown for item in times),
    ]


def slope(points: Mapping[int, Sequence[float]]) -> float:
    """Return the exponent of m in mean excess risk, by least squares of logarithms."""
    x = [math.log(m) for m in points]
    y = [math.log(max(1e-12, mean(values))) for values in points.values()]
    return float(np.polyfit(x, y, 1)[0])


def _excess(excess: Excess) -> list[str]:
    sizes = sorted({m for points in excess.values() for m in points})
    lines = [
        "Mean training loss above its minimum, logistic regression on MNIST 3 or 8, (ε = 1, δ = "
        "1/m²), 10 passes, the best of five settings by this very figure on another seed. Last: "
        "the exponent of m.",
        "",
        "| | " + " | ".join(f"m = {m:,}" for m in sizes) + " | exponent |",
        "|---|" + "---:|" * (len(sizes) + 1),
    ]
    for method, points in excess.items():
        cells = [f"{mean(points[m]):.4f} ± {spread(points[m]):.4f}" for m in sizes]
        lines.append(f"| {LABELS[method]} | " + " | ".join(cells) + f" | {slope(points):.2f} |")
    return lines


def plot_excess(excess: Excess, path: Path) -> None:
    """Draw excess risk against m."""
    curves = [
        Curve(
            label=LABELS[method],
            points={float(m): v for m, v in points.items()},
            place=list(LABELS).index(method),
        )
        for method, points in excess.items()
    ]
    draw(
        [Panel(title="logistic regression, MNIST 3 or 8", curves=curves)],
        path,
        title="Excess risk against the number of training examples",
        below="(ε = 1, δ = 1/m²) (add-remove, per example, simulated), b = 50, 10 passes.",
        xlabel="training examples m",
        ylabel="mean training loss above its minimum",
        scale=1.0,
        log_y=True,
    )


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
            module="simulations.bolt_on.study",
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
            module="simulations.bolt_on.study",
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
    parser = study_parser(
        __doc__,
        "simulations.bolt_on.study",
        seeds=5,
        epsilons=EPSILONS,
        tiny="synthetic data and a grid of two",
    )
    parser.add_argument("--study", nargs="*", default=["mnist"], choices=tuple(STUDIES))
    parser.add_argument("--side", nargs="*", default=[], choices=SIDES)
    parser.add_argument("--passes", type=int, nargs="+", default=list(PASSES))
    given = parse_study(parser, arguments)
    made, pictures, store = [], [], Store.at(results_of("bolt-on", given.results))

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
    publish(text, given.out)


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


if __name__ == "__main__":
    main()
