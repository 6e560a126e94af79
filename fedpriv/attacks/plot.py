"""The plot of a membership attack: true against false positives, and what the run's ε allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.attacks.figures import AttackScores, allowed_share, auc
from fedpriv.attacks.outcome import FALSE_POSITIVES, Membership
from fedpriv.audit.plot import check_plot_file, plain_axes, saved
from fedpriv.privacy.epsilon import format_delta, rounded_up
from fedpriv.report.plots import theme


def write_membership_plot(found: Membership, path: Path) -> None:
    """Write the plot; the same attack gives the same file.

    Raises:
        ValueError: As `fedpriv.audit.plot.check_plot_file`.
    """
    check_plot_file(path)
    path.write_bytes(saved(_drawn(found, theme.LIGHT), "membership"))


def _drawn(found: Membership, colours: Mapping[str, str]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(6.6, 6.2), facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    axes = plain_axes(figure, (0.11, 0.1, 0.84, 0.74), colours)
    grid = np.linspace(0.0, 1.0, 401)
    epsilon = found.epsilon
    if math.isfinite(epsilon.value):
        most = [allowed_share(float(share), epsilon.value, epsilon.delta) for share in grid]
        axes.fill_between(grid, most, 1.0, color=colours["s8"], alpha=0.13, linewidth=0)
        axes.plot(grid, most, color=colours["s8"], linewidth=1.2, label="the most that ε allows")
    axes.plot([0, 1], [0, 1], color=colours["rule"], linewidth=1.2)
    if found.control is not None:
        said = f"the reference alone, AUC {auc(found.control):.3f}"
        axes.plot(
            *_curve(found.control), color=colours["s2"], linewidth=1.5, linestyle=(0, (5, 3)),
            label=said,
        )  # fmt: skip
    said = f"the released model, AUC {auc(found.scores):.3f}"
    axes.plot(*_curve(found.scores), color=colours["s1"], linewidth=2.0, label=said)
    for share in FALSE_POSITIVES:
        drawn, _ = found.at(share)
        axes.plot([share, share], [drawn.low, drawn.high], color=colours["s1"], linewidth=1.2)
        axes.plot([share], [drawn.value], marker="o", markersize=5, color=colours["s1"])
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.005)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(color=colours["grid"], linewidth=1)
    axes.set_xlabel("non-members called members", fontsize=9.5, color=colours["muted"])
    axes.set_ylabel("members called members", fontsize=9.5, color=colours["muted"])
    axes.legend(frameon=False, fontsize=9, labelcolor=colours["muted"], loc="lower right")
    figure.text(
        0.03, 0.945, f"Membership attack on {found.name}", fontsize=13, weight="bold",
        color=colours["ink"],
    )  # fmt: skip
    stated = f"no guarantee: {epsilon.reason}"
    if math.isfinite(epsilon.value):
        stated = (
            f"simulated ε = {rounded_up(epsilon.value, 2):.2f} at "
            f"δ = {format_delta(epsilon.delta)}, {epsilon.relation.value}, per {epsilon.unit}, "
            f"by {epsilon.accountant}"
        )
    figure.text(
        0.03, 0.87,
        f"{len(found.scores.members):,} members, {len(found.scores.nonmembers):,} non-members\n"
        f"{stated}",
        fontsize=8.5, color=colours["muted"],
    )  # fmt: skip
    return figure


def _curve(scores: AttackScores) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positives at every threshold, both rising from 0 to 1."""
    thresholds = np.unique(np.concatenate([scores.members, scores.nonmembers]))[::-1]
    shares = []
    for values in (scores.nonmembers, scores.members):
        ordered = np.sort(values)
        above = len(values) - np.searchsorted(ordered, thresholds, side="left")
        shares.append(np.concatenate([[0.0], above / len(values)]))
    return shares[0], shares[1]
