"""Methods on one problem: tuned on its validation part, kept in a store, and drawn against ε."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from simulations.linear_models.problems import Problem, problem
from simulations.linear_models.training import majority, not_private, public_only
from simulations.reproduction.items import TUNING_SEED, Split
from simulations.reproduction.study import (
    Row,
    Spec,
    Store,
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
class Study:
    """Runs on one problem.

    Attributes:
        key: Of the problem.
        store: Of finished runs.
        perform: From everything that decides a run to its row, with its "accuracy".
        grids: Settings that each method chooses from.
        shared: What decides every run too.
        seeds: How many are reported.
        epsilons: At which.
        tiny: Synthetic data, to see whether everything runs.
    """

    key: str
    store: Store
    perform: Callable[[Spec], Row] = field(repr=False)
    grids: Mapping[str, tuple[Settings, ...]] = field(repr=False)
    shared: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 5
    epsilons: Sequence[float] = ()
    tiny: bool = False

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
        return self.store.row(
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

    def tuned(
        self, grid: Sequence[Settings] | None = None, **place: Any
    ) -> tuple[Settings, list[float]]:
        """Return the settings that are best on the validation part, and what all of them reach.

        Of a method that has no run at all there, no settings and nothing.
        """
        grid = self.grids[place["method"]] if grid is None else grid
        found = [self.row(s, split="validation", **place)["accuracy"] for s in grid]
        return ({}, []) if None in found else (grid[found.index(max(found))], found)

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

        row = self.store.row({"problem": self.key, "references": True, "tiny": self.tiny}, found)
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


#: Colours that are told apart without red and green.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One method.

    Attributes:
        label: Its name.
        points: Values of every seed, by what stands below.
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
        scale: What values are multiplied by.
        log_y: Whether the axis on the left is logarithmic too.
    """
    from matplotlib.ticker import LogLocator

    width = 4.2 * len(panels) + 0.6
    figure = drawing(width, 5.4)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    seen: dict[str, Any] = {}
    for axis, panel in zip(axes, panels, strict=True):
        for curve in panel.curves:
            known = {x: [scale * v for v in values] for x, values in curve.points.items() if values}
            axis.errorbar(
                list(known),
                [mean(values) for values in known.values()],
                yerr=[spread(values) for values in known.values()],
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
