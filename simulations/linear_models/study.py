"""Methods on one problem: tuned on its validation part, and drawn against ε."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from fedpriv.hashes import document_sha256
from simulations.linear_models.problems import Problem, problem
from simulations.linear_models.training import majority, not_private, public_only
from simulations.reproduction.items import TUNING_SEED, Split
from simulations.reproduction.study import (
    Row,
    Spec,
    bars,
    drawing,
    note_below,
    save,
    spread,
    synthetic_words,
)

Settings = Mapping[str, Any]

#: What a page of the reduced size says first.
REDUCED = (
    "**Reduced size: SYNTHETIC data of a few hundred rows, and two settings of each "
    "method. That it runs is all that these figures say.**"
)
#: Rows of one value each that every table of a problem has.
LEVELS = ("majority class", "public examples alone (ε = 0)", "not private")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values of one setting that may be tried.

    Attributes:
        values: Ascending.
        first: Those of the first grid; the others are tried where the best so far is next to them.
        least: Why there is nothing below the first value; "" if the axis merely ends there.
        most: Why there is nothing above the last value; likewise.

    Raises:
        ValueError: If values do not ascend, or `first` has others or none.
    """

    values: tuple[float, ...]
    first: tuple[float, ...]
    least: str = ""
    most: str = ""

    def __post_init__(self) -> None:
        if list(self.values) != sorted(set(self.values)):
            raise ValueError(f"values {self.values} do not ascend; sort them")
        if not self.first or not set(self.first) <= set(self.values):
            raise ValueError(f"first {self.first} must be some of the values {self.values}")


@dataclass(frozen=True, slots=True)
class Grid:
    """Settings of a method: a first grid, and what lies around it.

    Attributes:
        axes: By the setting's name.
    """

    axes: Mapping[str, Axis]

    def first(self) -> list[Settings]:
        """Return the settings of the first grid."""
        chosen = product(*(axis.first for axis in self.axes.values()))
        return [dict(zip(self.axes, values, strict=True)) for values in chosen]

    def neighbours(self, settings: Settings) -> Iterator[Settings]:
        """Yield settings that differ in one value, which is the next one on its axis."""
        for name, axis in self.axes.items():
            place = axis.values.index(settings[name])
            for near in (place - 1, place + 1):
                if 0 <= near < len(axis.values):
                    yield {**settings, name: axis.values[near]}

    def edges(self, settings: Settings) -> dict[str, str]:
        """Return which of the settings are the least or the most of their axis, and why it ends.

        An axis of one value was not tuned and has no edge.
        """
        found = {}
        for name, axis in self.axes.items():
            if len(axis.values) > 1 and settings[name] in (axis.values[0], axis.values[-1]):
                found[name] = axis.least if settings[name] == axis.values[0] else axis.most
        return found

    def holding(self, **fixed: float) -> Grid:
        """Return the grid with some settings held at one value."""
        held = {n: replace(self.axes[n], values=(v,), first=(v,)) for n, v in fixed.items()}
        return Grid({**self.axes, **held})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Result of a search over a grid.

    Attributes:
        settings: The best.
        values: What everything that was tried reaches, in the order of trials.
    """

    settings: Settings
    values: Sequence[float]


def search(grid: Grid, value: Callable[[Settings], float], *, most: int | None = None) -> Tuned:
    """Return the settings with the highest value, the first of equals.

    After the first grid whatever is next to the best so far is tried, until no neighbour is better.
    So the best is on an edge only where its axis ends.

    Args:
        grid: What may be tried.
        value: Of settings; the higher the better.
        most: Only so many in the middle of the first grid are tried, and nothing around them; None
            for all.
    """
    found: dict[tuple[tuple[str, Any], ...], float] = {}
    todo = grid.first()
    if most is not None:
        start = max(0, (len(todo) - most) // 2)
        todo = todo[start : start + most]
    while todo:
        for settings in todo:
            found[tuple(settings.items())] = value(settings)
        best = dict(max(found, key=found.__getitem__))
        near = [] if most is not None else list(grid.neighbours(best))
        todo = [settings for settings in near if tuple(settings.items()) not in found]
    return Tuned(settings=best, values=list(found.values()))


def settings_in_words(grid: Grid, settings: Settings) -> str:
    """Return settings in words: † where an axis ends for a reason, * where it merely ends."""
    marks = {name: "†" if why else "*" for name, why in grid.edges(settings).items()}
    return ", ".join(f"{n.replace('_', ' ')} {v:g}{marks.get(n, '')}" for n, v in settings.items())


def edge_notes(chosen: Iterable[tuple[str, Grid, Settings]], *, tiny: bool = False) -> str:
    """Return what the marks of `settings_in_words` mean, and whether any edge is open.

    Args:
        chosen: Label of a method, its grid, and settings that were chosen of it.
        tiny: Whether `search` tried two settings alone, of which each is an edge.
    """
    bounds, open_, inside = dict[str, None](), dict[str, None](), False
    for label, grid, settings in chosen:
        edges = grid.edges(settings)
        inside |= any(len(a.values) > 1 and n not in edges for n, a in grid.axes.items())
        for name, why in edges.items():
            words = f"{name.replace('_', ' ')} of {label}"
            (bounds if why else open_)[f"{words} ({why})" if why else words] = None
    parts = []
    if bounds:
        parts.append(f"†: an end of what may be tried: "
                     f"{'; '.join(bounds)}.")  # fmt: skip
    if open_:
        parts.append(f"*: an edge of what was tried; the method may do better beyond it: "
                     f"{'; '.join(open_)}.")  # fmt: skip
    if tiny:
        parts.append("Two settings of each method at most were tried, so that every chosen "
                     "one is an edge of what was tried.")  # fmt: skip
    elif not open_ and inside:
        which = "any other edge" if bounds else "an edge"
        parts.append(f"No chosen setting is on {which} of what was tried.")
    elif bounds and not open_:
        parts.append("Every chosen setting is at such an end.")
    return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Runs on one problem.

    Attributes:
        key: Of the problem.
        perform: From everything that decides a run to its row, with its "accuracy".
        grids: Settings that each method chooses from.
        shared: What decides every run too.
        seeds: How many are reported.
        epsilons: At which.
        tiny: Synthetic data and two settings of each method, to see whether everything runs.
        rows: Of runs that have ended, by digest of all that decides them; each is done once.
    """

    key: str
    perform: Callable[[Spec], Row] = field(repr=False)
    grids: Mapping[str, Grid] = field(repr=False)
    shared: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 5
    epsilons: Sequence[float] = ()
    tiny: bool = False
    rows: dict[str, Row] = field(default_factory=dict, repr=False)

    @property
    def problem(self) -> Problem:
        """The problem."""
        return problem(self.key, tiny=self.tiny)

    @property
    def title(self) -> str:
        """Of the problem, with whether its data are synthetic."""
        return self.problem.title + synthetic_words(self.problem.data.synthetic)

    def row(
        self, settings: Settings, *, split: Split = "test", seed: int = TUNING_SEED, **place: Any
    ) -> Row:
        """Return one run: of a place, such as a method and an ε, in these settings."""
        return self._once(
            {
                "problem": self.key,
                **self.shared,
                **place,
                "settings": dict(settings),
                "split": split,
                "seed": seed,
                "tiny": self.tiny,
            },
            self.perform,
        )

    def _once(self, spec: Spec, perform: Callable[[Spec], Row]) -> Row:
        name = document_sha256(json.loads(json.dumps(spec)))
        if name not in self.rows:
            self.rows[name] = {"spec": spec, **perform(spec)}
        return self.rows[name]

    def tuned(self, grid: Grid | None = None, **place: Any) -> Tuned:
        """Return the settings that are best on the validation part, on one seed of its own."""

        def accuracy(settings: Settings) -> float:
            return self.row(settings, split="validation", **place)["accuracy"]

        return self.search(self.grids[place["method"]] if grid is None else grid, accuracy)

    def search(self, grid: Grid, value: Callable[[Settings], float]) -> Tuned:
        """Return what `search` finds; in the tiny size of two settings."""
        return search(grid, value, most=2 if self.tiny else None)

    def reported(self, settings: Settings, *, seeds: int | None = None, **place: Any) -> list[Row]:
        """Return the runs that a page reports, one a seed."""
        number = self.seeds if seeds is None else seeds
        return [self.row(settings, seed=seed, **place) for seed in range(number)]

    def references(self) -> dict[str, float]:
        """Return `LEVELS`, and how many examples are private and public."""

        def found(_: object) -> Row:
            data, classes = self.problem.data, self.problem.num_classes
            values = (majority(data), public_only(data, classes), not_private(data, classes))
            sizes = {"num_train": data.num_train, "num_public": data.num_public}
            return {**dict(zip(LEVELS, values, strict=True)), **sizes}

        row = self._once({"problem": self.key, "references": True, "tiny": self.tiny}, found)
        return {name: value for name, value in row.items() if name != "spec"}

    def sizes(self) -> str:
        """Return what the data are called, and how many there are."""
        data, own = self.problem.data, self.references()
        return (
            f"Data: {data.name}{', synthetic' * data.synthetic}; {int(own['num_train']):,} private "
            f"and {int(own['num_public']):,} public examples."
        )


def accuracies(rows: Sequence[Row]) -> list[float]:
    """Return the accuracies of runs."""
    return [row["accuracy"] for row in rows]


#: "not told apart": the interval of the difference covers 0.
Verdict = Literal["ahead", "not told apart", "behind"]


def verdict(first: Sequence[float], second: Sequence[float]) -> Verdict:
    """Return how the first mean compares, by the 95 % interval of the difference.

    Two means are "not told apart" where it covers 0, however wide it is: that is not to say that
    they are equal. Its half is √(a² + b²) of both means' halves. A single value has none, and two
    single values are not told apart.
    """
    gap = mean(first) - mean(second)
    single = len(first) == len(second) == 1
    if single or abs(gap) <= math.hypot(spread(first), spread(second)):
        return "not told apart"
    return "ahead" if gap > 0.0 else "behind"


#: Colours that are distinguished without red and green.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One method.

    Attributes:
        label: Its name.
        points: Values of every seed, by the label below.
        dashed: Whether it is not to be read as the others.
        place: Which colour and mark it has, from 0.
    """

    label: str
    points: Mapping[float, Sequence[float]]
    dashed: bool = False
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves over one axis.

    Attributes:
        title: Above.
        curves: In the order of the legend.
        levels: Straight lines by name: what needs no ε, or has none.
    """

    title: str
    curves: Sequence[Curve]
    levels: Mapping[str, float] = field(default_factory=dict)


def draw(
    panels: Sequence[Panel],
    path: Path,
    *,
    title: str,
    below: str,
    xlabel: str = "ε",
    ylabel: str = "accuracy on test, %",
    scale: float = 100.0,
    log_y: bool = False,
) -> None:
    """Draw panels side by side, means over seeds with 95 % t-intervals.

    Args:
        panels: What is drawn.
        path: Ends in .png or .svg.
        title: Above all of them.
        below: What ε is of, and the data.
        xlabel: Of the logarithmic axis below.
        ylabel: Of the axis on the left.
        scale: What values are multiplied by; 100 of shares, whose intervals end at 0 and 100.
        log_y: Whether the axis on the left is logarithmic too.
    """
    from matplotlib.ticker import LogLocator

    width, most = 4.2 * len(panels) + 0.6, scale if scale == 100.0 else math.inf
    figure = drawing(width, 5.4)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    seen: dict[str, Any] = {}
    for axis, panel in zip(axes, panels, strict=True):
        for curve in panel.curves:
            known = {x: [scale * v for v in values] for x, values in curve.points.items() if values}
            means = [mean(values) for values in known.values()]
            axis.errorbar(
                list(known),
                means,
                yerr=bars(means, [spread(values) for values in known.values()], most),
                label=curve.label,
                color=_COLOURS[curve.place % len(_COLOURS)],
                marker="osD^vP*"[curve.place % 7],
                linestyle="--" if curve.dashed else "-",
                markersize=5,
                linewidth=1.4,
                capsize=2.5,
            )
        for place, (name, value) in enumerate(panel.levels.items()):
            style = (":", "-.", (0, (6, 3)))[place % 3]
            axis.axhline(scale * value, color="#666666", linestyle=style, linewidth=1.1, label=name)
        axis.set_xscale("log")
        if log_y:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.yaxis.set_major_formatter("{x:g}")
        ticks = sorted({x for curve in panel.curves for x in curve.points})
        axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axis.minorticks_off()
        axis.set_xlabel(xlabel)
        axis.set_title(panel.title, fontsize=10)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            seen.setdefault(label, handle)
    axes[0].set_ylabel(ylabel)
    figure.legend(
        list(seen.values()),
        list(seen),
        loc="outside upper left",
        ncols=max(1, int(width // 3.9)),
        frameon=False,
        fontsize=8.5,
        title=textwrap.fill(title, int(10 * width)),
        title_fontproperties={"size": 12, "weight": "bold"},
        alignment="left",
    )
    note_below(figure, textwrap.fill(below, int(16 * width)))
    save(figure, path)
