"""Panels of curves with their intervals, into PNG or SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from simulations.linear_models.training import spread

#: Colours that are told apart without red and green.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_GREY = "#666666"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One method.

    Attributes:
        label: Its name.
        points: Figures of every seed, by what stands below.
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
        scale: What figures are multiplied by.
        log_y: Whether the axis on the left is logarithmic too.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    width = 4.2 * len(panels) + 0.6
    figure = Figure(figsize=(width, 5.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
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
            axis.axhline(scale * value, color=_GREY, linestyle=style, linewidth=1.1, label=name)
        axis.set_xscale("log")
        if log_y:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.yaxis.set_major_formatter("{x:g}")
        ticks = sorted({x for curve in panel.curves for x in curve.points})
        axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axis.minorticks_off()
        axis.set_xlabel(xlabel)
        if number == 0:
            axis.set_ylabel(ylabel)
        axis.set_title(panel.title, fontsize=10)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    seen: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            seen.setdefault(label, handle)
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
    figure.supxlabel(
        textwrap.fill(below, int(16 * width)), fontsize=7.5, color=_GREY, x=0.01, ha="left"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".svg":
        import matplotlib

        with matplotlib.rc_context({"svg.hashsalt": path.stem}):
            figure.savefig(path, format="svg", metadata={"Date": None})
    else:
        figure.savefig(path, dpi=150, format="png")
