"""The plot of an audit: canaries' scores in and out, with the bounds and the stated ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.audit.run import Audit
from fedpriv.privacy.epsilon import format_delta
from fedpriv.report import theme

_BINS = 60


def write_audit_plot(audit: Audit, path: Path) -> None:
    """Write the plot; the same audit gives the same file.

    Raises:
        ValueError: As `fedpriv.report.theme.check_plot_file`.
    """
    theme.check_plot_file(path)
    path.write_bytes(theme.as_svg(_drawn(audit, theme.LIGHT), "audit"))


def _drawn(audit: Audit, colours: Mapping[str, str]) -> Any:
    figure = theme.new_figure(8.0, 5.2)
    _scores(theme.plain_axes(figure, (0.06, 0.5, 0.88, 0.32)), audit, colours)
    _bounds(theme.plain_axes(figure, (0.27, 0.12, 0.67, 0.25)), audit, colours)
    stated = "simulated" if audit.mode == "simulation" else "secure"
    figure.text(
        0.03, 0.945, f"Audit of {audit.name}: {'refuted' if audit.refuted else 'consistent'}",
        fontsize=13, weight="bold", color=colours["warn" if audit.refuted else "ink"],
    )  # fmt: skip
    figure.text(
        0.03, 0.9,
        f"{len(audit.scores):,} canary users, {audit.num_rounds:,} rounds; stated ({stated}) "
        f"at δ = {format_delta(audit.stated.delta)}, {audit.stated.relation.value}, "
        f"per {audit.stated.unit}, by {audit.stated.accountant}",
        fontsize=9.5, color=colours["muted"],
    )  # fmt: skip
    return figure


def _scores(axes: Any, audit: Audit, colours: Mapping[str, str]) -> None:
    every = np.concatenate([audit.scores.inside, audit.scores.outside])
    low, high = np.quantile(every, [0.001, 0.999])
    edges = np.linspace(low, high if high > low else low + 1.0, _BINS + 1)
    for scores, role, said in (
        (audit.scores.outside, "s8", "without records"),
        (audit.scores.inside, "s2", "with records"),
    ):
        counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)
        shares = counts / len(scores)
        axes.stairs(shares, edges, color=colours[role], linewidth=1.8, label=said)
        axes.stairs(shares, edges, fill=True, color=colours[role], alpha=0.14)
    axes.set_yticks([])
    axes.set_xlabel(
        "score of a canary: log likelihood ratio under the stated mechanism",
        fontsize=9, color=colours["muted"],
    )  # fmt: skip
    axes.legend(frameon=False, fontsize=9, labelcolor=colours["muted"], loc="upper right")


def _bounds(axes: Any, audit: Audit, colours: Mapping[str, str]) -> None:
    rows = (
        ("many canaries, 99.95 %", audit.simultaneous.epsilon),
        ("Clopper-Pearson, 99.95 %", audit.clopper_pearson.epsilon),
    )
    stated = audit.stated.value
    high = 1.12 * max(stated, *(value for _, value in rows))
    for place, (_, value) in enumerate(rows):
        colour = colours["warn" if value > stated else "s1"]
        axes.plot([0, value], [place, place], color=colour, linewidth=2.0)
        axes.plot(
            [value], [place], marker="|", markersize=11, markeredgewidth=2.2, color=colour,
            linestyle="",
        )  # fmt: skip
        axes.annotate(
            f"{math.floor(value * 100) / 100:.2f}", (value, place), xytext=(8, -3.5),
            textcoords="offset points", fontsize=9, color=colour,
        )  # fmt: skip
    axes.axvline(stated, color=colours["ink"], linewidth=1.4)
    axes.annotate(
        f"stated ε = {stated:.2f}", (stated, -0.62), xytext=(0, 3), textcoords="offset points",
        fontsize=9, color=colours["ink"], ha="center", va="bottom", annotation_clip=False,
    )  # fmt: skip
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlim(0, high)
    axes.grid(axis="x", color=colours["grid"], linewidth=1)
    axes.set_xlabel("lower bound on ε", fontsize=9, color=colours["muted"])
