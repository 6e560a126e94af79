r"""DP-AGD beside its comparators at ε 0.1 to 1.6: tunes, runs, prints a page and draws.

    python -m simulations.agd.study --problem mnist-3-8 covertype imdb --ablate mnist-3-8 \
        --results docs/results/runs.jsonl --out docs/results/agd.md --plot docs/results/agd.png
    python -m simulations.agd.study --tiny     # seconds, made-up data

What has been run is in --results and is not run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from fedpriv.privacy.epsilon import format_delta, rounded_up_to
from fedpriv.runs.progress import Pace
from simulations.agd.methods import (
    ABLATIONS,
    DELTA,
    EPSILONS,
    GRIDS,
    LABELS,
    LOSS_KINDS,
    Settings,
    perform,
    spec,
)
from simulations.linear_models.drawing import Curve, Panel, draw
from simulations.linear_models.problems import problem
from simulations.linear_models.training import REDUCED, references, shown, spread
from simulations.reproduction.items import Script
from simulations.reproduction.page import edges_of
from simulations.reproduction.study import (
    Row,
    Store,
    parse_study,
    publish,
    results_of,
    study_parser,
)

Cell = tuple[str, str, float]  # loss, method, ε

_Made = TypeVar("_Made")
_NONE: Settings = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One problem.

    Attributes:
        problem_key: Its name.
        store: Of finished runs.
        seeds: How many are reported.
        epsilons: At which.
        tiny: Made-up data and a grid of two, to see whether everything runs.
    """

    problem_key: str
    store: Store
    seeds: int = 5
    epsilons: Sequence[float] = EPSILONS
    tiny: bool = False

    def grid(self, method: str) -> tuple[Settings, ...]:
        """Return the settings that a method chooses from."""
        return GRIDS[method][:2] if self.tiny else GRIDS[method]

    def chosen(self, loss: str, method: str, epsilon: float) -> tuple[Settings, list[float]]:
        """Return the settings that are best on the validation part, and what all of them reach."""
        found = [
            self._row(loss, method, epsilon, settings, split="validation")["accuracy"]
            for settings in self.grid(method)
        ]
        if any(value is None for value in found):
            return _NONE, []
        return self.grid(method)[found.index(max(found))], found

    def cell(self, loss: str, method: str, epsilon: float) -> list[Row]:
        """Return the reported runs of a method; none where it has no run at all at this ε."""
        settings, found = self.chosen(loss, method, epsilon)
        if not found:
            return []
        return self._reported(loss, method, epsilon, settings)

    def ablation(self, loss: str, epsilon: float) -> dict[str, list[Row]]:
        """Return DP-AGD's runs with one thing changed, by what."""
        settings, _ = self.chosen(loss, "agd", epsilon)
        return {
            label: self._reported(loss, "agd", epsilon, {**settings, **changed})
            for label, changed in ABLATIONS.items()
        }

    def plain(self, loss: str, epsilon: float) -> list[Row]:
        """Return DP-AGD's runs in ten iterations, whatever was best."""
        return self._reported(loss, "agd", epsilon, {"iterations": 10, "largest_step": 2.0})

    def over_steps(self, loss: str, epsilon: float) -> dict[int, list[Row]]:
        """Return noisy gradient descent's runs for each T, at the best rate for it."""
        found = {}
        for steps in dict.fromkeys(s["steps"] for s in self.grid("fixed")):
            rated = [s for s in self.grid("fixed") if s["steps"] == steps]
            tried = [
                self._row(loss, "fixed", epsilon, settings, split="validation")["accuracy"]
                for settings in rated
            ]
            best = rated[tried.index(max(tried))]
            found[steps] = self._reported(loss, "fixed", epsilon, best)
        return found

    def references(self) -> dict[str, float]:
        """Return the rows that every table has."""
        return references(self.store, self.problem_key, tiny=self.tiny)

    def _reported(self, loss: str, method: str, epsilon: float, settings: Settings) -> list[Row]:
        return [
            self._row(loss, method, epsilon, settings, split="test", seed=seed)
            for seed in range(self.seeds)
        ]

    def _row(self, loss: str, method: str, epsilon: float, settings: Settings, **rest: Any) -> Row:
        asked = spec(self.problem_key, loss, method, epsilon, settings, tiny=self.tiny, **rest)
        return self.store.row(asked, perform)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a study came to.

    Attributes:
        title: Of the problem.
        data: What its data are called.
        synthetic: Whether they were made up.
        references: Rows of one figure each.
        cells: Reported runs.
        grids: Accuracies of all settings on the validation part.
        settings: That were chosen.
        ablations: By loss and ε.
        over_steps: Of noisy gradient descent, by loss and ε.
        plain: DP-AGD's runs in ten iterations, α_max 2, which nothing was chosen for.
    """

    title: str
    data: str
    synthetic: bool
    references: Mapping[str, float]
    cells: Mapping[Cell, Sequence[Row]] = field(repr=False)
    grids: Mapping[Cell, Sequence[float]] = field(repr=False)
    settings: Mapping[Cell, Settings] = field(repr=False)
    ablations: Mapping[tuple[str, float], Mapping[str, Sequence[Row]]] = field(repr=False)
    over_steps: Mapping[tuple[str, float], Mapping[int, Sequence[Row]]] = field(repr=False)
    plain: Mapping[tuple[str, float], Sequence[Row]] = field(repr=False)


def found(study: Study, *, ablated: Sequence[float] = ()) -> Found:
    """Do what a study still needs, and return what it came to.

    Args:
        study: The problem.
        ablated: At which ε one thing at a time is changed.
    """
    own = problem(study.problem_key, tiny=study.tiny)
    cells: dict[Cell, Sequence[Row]] = {}
    grids: dict[Cell, Sequence[float]] = {}
    settings: dict[Cell, Settings] = {}
    places = list(product(LOSS_KINDS, study.epsilons))
    changed = [(loss, e) for loss, e in places if e in ablated]
    total = len(places) * (len(GRIDS) + 2) + len(changed) + 1
    pace = Pace(total, of="cells", rows=study.store.rows)

    def work(what: str, make: Callable[..., _Made], *at: Any) -> _Made:
        return pace.work(" ".join(map(str, (study.problem_key, what, *at))), partial(make, *at))

    for (loss, epsilon), method in product(places, GRIDS):
        place = (loss, method, epsilon)
        cells[place] = work("tuned", study.cell, *place)
        settings[place], grids[place] = study.chosen(*place)
    return Found(
        title=own.title,
        data=own.data.name,
        synthetic=own.data.synthetic,
        references=work("references", study.references),
        cells=cells,
        grids=grids,
        settings=settings,
        ablations={at: work("ablation", study.ablation, *at) for at in changed},
        over_steps={at: work("over steps", study.over_steps, *at) for at in places},
        plain={at: work("plain", study.plain, *at) for at in places},
    )


_LEVELS = ("majority class", "public examples alone (ε = 0)", "not private")
#: Where the paper has SGD by the old bound overtake DP-AGD.
_CROSSOVER = 0.8
_RIVALS = ("output", "objective", "fixed", "sgd")
_PROMISE = (
    f"ε at δ = {format_delta(DELTA)} (add-remove, per example, simulated): "
    "DP-AGD and T steps by zCDP, the others by PLD"
)


def page(
    found: Sequence[Found],
    *,
    seeds: int,
    command: str,
    pictures: Sequence[str] = (),
    reduced: bool = False,
) -> str:
    """Return the page.

    Args:
        found: One problem after the other.
        seeds: How many a figure is of.
        command: That makes it.
        pictures: Addresses of the plots, in the same order; none leaves them out.
        reduced: Whether they are of made-up data, and of a grid of two.
    """
    lines = [
        "# DP-AGD at small ε",
        "",
        f"`{command}`",
        "",
        *((REDUCED, "") if reduced else ()),
        f"Accuracy on test in per cent, mean of {seeds} seeds ± half a 95 % t-interval. "
        f"{_PROMISE}. Settings are the best of 12 on a tenth of the training set, one seed, for "
        "each ε; that choice looks at private examples, and no ε covers it. Rows are projected by "
        "a fixed Gaussian matrix (MNIST to 50, IMDB to 300 columns) and have length 1; C_grad 1, "
        "C_obj 3, |Φ| = 21, γ 0.1, half of each price for the gradient, λ 1e-4. The hinge has a "
        "corner, so output and objective perturbation take the Huber loss in its place. Objective "
        "perturbation releases an approximate minimum, noised for what is not exact about it, and "
        "chooses the share of ε that its regulariser costs.",
        "",
        "The row by the old moments bound is an *artefact*: orders up to 32, the last one alone. "
        f"It says ln(1e8)/32 = 0.5756 for any single step at δ = {format_delta(DELTA)}, so that it "
        "has no run at all below; what its runs truly cost stands in brackets. Left out: PrivGene.",
    ]
    for number, item in enumerate(found):
        lines += ["", f"## {_title(item)}", "", *_sizes(item)]
        if pictures:
            lines += ["", f"![Accuracy against ε, {_title(item)}]({pictures[number]})"]
        for loss in LOSS_KINDS:
            lines += ["", f"### {loss}", "", *_table(item, loss)]
            lines += ["", *_verdicts(item, loss)]
        lines += ["", "### What DP-AGD did", "", *_steps(item)]
        lines += ["", "### Noisy gradient descent over T", "", *_over_steps(item)]
        if item.ablations:
            lines += ["", "### One thing changed at a time", "", *_ablations(item)]
        lines += ["", "### Chosen settings", "", *_settings(item)]
    return "\n".join(lines) + "\n"


def plot(item: Found, path: Path) -> None:
    """Draw accuracy against ε, one panel a loss."""
    methods = list(LABELS)
    panels = [
        Panel(
            title=loss,
            curves=[
                Curve(
                    label=LABELS[method],
                    points={e: _accuracies(item, loss, method, e) for e in _epsilons(item)},
                    dashed=method == "sgd-old",
                    place=place,
                )
                for place, method in enumerate(methods)
            ],
            levels={name: item.references[name] for name in _LEVELS},
        )
        for loss in LOSS_KINDS
    ]
    draw(
        panels,
        path,
        title=f"DP-AGD and what its paper compares it with: {_title(item)}",
        below=f"{_PROMISE}. Dashed: at the ε that the old moments bound says, which is none of "
        f"ours. Data: {item.data}{', SYNTHETIC' if item.synthetic else ''}.",
    )


def _title(item: Found) -> str:
    return item.title + (" (SYNTHETIC data)" if item.synthetic else "")


def _sizes(item: Found) -> list[str]:
    own = item.references
    return [
        f"Data: {item.data}{', synthetic' if item.synthetic else ''}; "
        f"{int(own['num_train']):,} private and {int(own['num_public']):,} public examples."
    ]


def _epsilons(item: Found) -> list[float]:
    return sorted({epsilon for _, _, epsilon in item.cells})


def _accuracies(item: Found, loss: str, method: str, epsilon: float) -> list[float]:
    return [row["accuracy"] for row in item.cells[loss, method, epsilon]]


def _table(item: Found, loss: str) -> list[str]:
    columns = _epsilons(item)
    lines = [
        "| | " + " | ".join(f"ε = {e:g}" for e in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name in _LEVELS:
        lines.append(f"| {name} |" + f" {100 * item.references[name]:.1f} |" * len(columns))
    for method, label in LABELS.items():
        cells = []
        for epsilon in columns:
            values = _accuracies(item, loss, method, epsilon)
            text = shown(values) if values else "no step"
            if method == "sgd-old" and values:
                true = item.cells[loss, method, epsilon][0]["true_epsilon"]
                text += f" (truly {true:.2f})"
            cells.append(text)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def ahead(item: Found, loss: str, first: str, second: str) -> list[float]:
    """Return the ε at which one method is ahead by more than the interval of the difference."""
    found = []
    for epsilon in _epsilons(item):
        own, other = (_accuracies(item, loss, name, epsilon) for name in (first, second))
        if own and other and mean(own) - mean(other) > math.hypot(spread(own), spread(other)):
            found.append(epsilon)
    return found


def _above(item: Found, loss: str, level: str) -> list[float]:
    return [
        e
        for e in _epsilons(item)
        if (own := _accuracies(item, loss, "agd", e))
        and mean(own) - spread(own) > item.references[level]
    ]


def _verdicts(item: Found, loss: str) -> list[str]:
    """Say what came out, at which ε by more than the interval."""
    lines = [
        "- DP-AGD beats " + "; ".join(
            f"{words} at {_list(places)}"
            for words, places in (
                ("the majority class", _above(item, loss, "majority class")),
                ("public examples alone", _above(item, loss, "public examples alone (ε = 0)")),
                *((LABELS[m], ahead(item, loss, "agd", m)) for m in _RIVALS),
            )
        ) + ".",
        "- DP-SGD by PLD beats DP-AGD at " + _list(ahead(item, loss, "sgd", "agd"))
        + "; T steps beat it at " + _list(ahead(item, loss, "fixed", "agd"))
        + "; objective perturbation beats it at " + _list(ahead(item, loss, "objective", "agd"))
        + ", and DP-SGD at " + _list(ahead(item, loss, "objective", "sgd")) + ".",
    ]  # fmt: skip
    said = [e for e in _epsilons(item) if item.cells[loss, "sgd-old", e]]
    lines.append(
        f"- By the old bound SGD has a run only at {_list(said)}: the crossover that the paper "
        "finds near 0.8 is where that bound first leaves room for one. "
        + _crossover(ahead(item, loss, "sgd", "agd"))
    )
    return lines


def _crossover(sgd_ahead: Sequence[float]) -> str:
    below = [e for e in sgd_ahead if e < _CROSSOVER]
    if below:
        return f"It does not survive correct accounting: DP-SGD is ahead from ε {min(below):g} on."
    if sgd_ahead:
        return f"By correct accounting DP-SGD is ahead from ε {min(sgd_ahead):g} on."
    return "By correct accounting DP-SGD is ahead nowhere here."


def _list(epsilons: Sequence[float]) -> str:
    return "ε " + ", ".join(f"{e:g}" for e in epsilons) if epsilons else "no ε"


def _steps(item: Found) -> list[str]:
    lines = [
        "The share of accepted steps in which the true objective fell is a diagnostic of the "
        "simulation: it looks at the raw loss. Steps by noise alone would be accepted 20 times in "
        "21 and fall half of the time or less.",
        "",
        "| loss | ε | accepted | rejections | objective fell | the same in ten iterations | "
        "step sizes of seed 0 | ρ of its gradients |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for loss in LOSS_KINDS:
        for epsilon in _epsilons(item):
            rows = item.cells[loss, "agd", epsilon]
            first = rows[0]
            accepted = mean(row["accepted"] for row in rows)
            lines.append(
                f"| {loss} | {rounded_up_to(epsilon, 3):g} | {accepted:.1f} | "
                f"{mean(row['rejections'] for row in rows):.1f} | "
                f"{_fell(rows)} | {_fell(item.plain[loss, epsilon])} | "
                f"{_few(first['step_sizes'])} | {_few(first['rho_gradient'])} |"
            )
    return lines


def _fell(rows: Sequence[Row]) -> str:
    accepted = sum(row["accepted"] for row in rows)
    fell = sum(row["fell"] for row in rows)
    return f"{fell} of {accepted} ({100 * fell / max(1, accepted):.0f} %)"


def _few(values: Sequence[float]) -> str:
    shown_values = [f"{value:.3g}" for value in values]
    if len(shown_values) > 6:
        shown_values = [*shown_values[:3], "…", *shown_values[-2:]]
    return ", ".join(shown_values)


def _over_steps(item: Found) -> list[str]:
    steps = list(next(iter(item.over_steps.values())))
    lines = [
        "| loss | ε | " + " | ".join(f"T = {t}" for t in steps) + " | DP-AGD |",
        "|---|---:|" + "---:|" * (len(steps) + 1),
    ]
    for (loss, epsilon), runs in item.over_steps.items():
        cells = [shown([row["accuracy"] for row in runs[t]]) for t in steps]
        own = shown(_accuracies(item, loss, "agd", epsilon))
        lines.append(
            f"| {loss} | {rounded_up_to(epsilon, 3):g} | " + " | ".join(cells) + f" | {own} |"
        )
    return lines


def _ablations(item: Found) -> list[str]:
    places = list(item.ablations)
    lines = [
        "| | " + " | ".join(f"{loss}, ε = {e:g}" for loss, e in places) + " |",
        "|---|" + "---:|" * len(places),
    ]
    for label in next(iter(item.ablations.values())):
        cells = [_shown_rows(item.ablations[place][label]) for place in places]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def _shown_rows(rows: Sequence[Row]) -> str:
    return shown([row["accuracy"] for row in rows])


def _settings(item: Found) -> list[str]:
    columns = _epsilons(item)
    lines = [
        "A star: the least or the most of the grid, which was not extended; the method may do "
        "better beyond it.",
        "",
        "| loss | method | " + " | ".join(f"ε = {e:g}" for e in columns)
        + " | worst to best of the grid at the largest ε |",
        "|---|---|" + "---|" * (len(columns) + 1),
    ]  # fmt: skip
    for loss in LOSS_KINDS:
        for method, label in LABELS.items():
            chosen = [_said(item.settings[loss, method, e], method) for e in columns]
            grid = item.grids[loss, method, columns[-1]]
            span = f"{100 * min(grid):.1f} to {100 * max(grid):.1f}" if grid else "–"
            lines.append(f"| {loss} | {label} | " + " | ".join(chosen) + f" | {span} |")
    return lines


def _said(settings: Settings, method: str) -> str:
    """Return settings in words, with a star where one is the least or the most of its grid."""
    values: dict[str, Any] = dict(settings)
    edges = {name.split(" ")[0] for name in edges_of(values, GRIDS[method])}
    words = (f"{n.replace('_', ' ')} {v:g}{'*' * (n in edges)}" for n, v in values.items())
    return ", ".join(words) or "–"


_PASSES = ("seeds", "results", "out", "plot")
_LITTLE = "synthetic data and a grid of two"
_TINY = ("--tiny", "--seeds", "2", "--target-epsilon", "0.4", "1.6")

REPRODUCTIONS = tuple(
    Script(
        name=f"agd-{name}",
        title=f"DP-AGD at ε 0.1 to 1.6 and its comparators, {title}",
        module="simulations.agd.study",
        calls=(("--problem", name, *more),),
        reduced=(("--problem", "mnist-3-8" if name == "imdb" else name, *_TINY),),
        minutes=minutes,
        passes=_PASSES,
    )
    for name, title, more, minutes in (
        ("mnist-3-8", "MNIST 3 or 8", ("--ablate", "mnist-3-8"), (25, 0.5)),
        ("covertype", "Covertype", (), (20, 0.5)),
        ("imdb", "IMDB", (), (20, 0.5)),
    )
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the studies of problems and print one page of them."""
    parser = study_parser(
        __doc__, "simulations.agd.study", seeds=5, epsilons=EPSILONS, tiny=_LITTLE
    )
    parser.add_argument("--problem", nargs="+", default=["mnist-3-8"])
    parser.add_argument(
        "--ablate", nargs="*", default=[], help="problems of which one thing at a time is changed"
    )
    given = parse_study(parser, arguments)
    store, made, pictures = Store.at(results_of("agd", given.results)), [], []
    for name in given.problem:
        study = Study(
            problem_key=name,
            store=store,
            seeds=given.seeds,
            epsilons=tuple(given.epsilon),
            tiny=given.tiny,
        )
        made.append(found(study, ablated=(0.4, 1.6) if name in given.ablate else ()))
        if given.plot is not None:
            pictures.append(given.plot.with_stem(f"{given.plot.stem}-{name}"))
            plot(made[-1], pictures[-1])
    own = f"-{given.problem[0]}" if len(made) == 1 else ""
    size = "--reduced" if given.tiny else f"--seeds {given.seeds}"
    command = f"fedpriv reproduce agd{own} {size}"
    text = page(
        made,
        seeds=given.seeds,
        command=command,
        pictures=[p.name for p in pictures],
        reduced=given.tiny,
    )
    publish(text, given.out)


if __name__ == "__main__":
    main()
