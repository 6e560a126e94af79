"""A drawing of gains over the last iterate: a row for each method, a mark for each case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """One case.

    Attributes:
        label: In the legend.
        gains: By method, the mean and half of its interval; a method that is missing has no mark.
        color: Of matplotlib.
        filled: Or the marks' outlines alone.
    """

    label: str
    gains: Mapping[str, tuple[float, float]]
    color: str
    filled: bool = True


def draw_gains(axis: Any, names: Sequence[str], cases: Sequence[Marks]) -> None:
    """Draw cases side by side in each method's row; an infinite interval has no bar.

    Args:
        axis: Of matplotlib.
        names: Methods, from the top.
        cases: In the legend's order.
    """
    for place, case in enumerate(cases):
        rows = [row for row, name in enumerate(names) if name in case.gains]
        aside = 0.7 * (place - (len(cases) - 1) / 2) / max(len(cases), 5)
        values = [case.gains[names[row]] for row in rows]
        axis.errorbar(
            [mean for mean, _ in values], [row + aside for row in rows],
            xerr=[half if math.isfinite(half) else 0 for _, half in values],
            fmt="osDv^P"[place % 6], color=case.color, markersize=4, capsize=2, label=case.label,
            markerfacecolor=None if case.filled else "white",
        )  # fmt: skip
    axis.axvline(0, color="#666666", linewidth=0.8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()


def save(figure: Any, path: Path) -> None:
    """Write a figure as its name's ending says; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130 if path.suffix == ".png" else "figure")
