"""Error bars from a run's own last rounds: how far the noise moves a released figure.

Made of released figures alone, which are those of released checkpoints: post-processing, at no ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpriv.checkpoints.uncertainty import lag_autocorrelation, uncertainty
from fedpriv.report.plots.lines import Line

LAST = 5
"""Of how many evaluated rounds an interval is made."""
_CORRELATED_OVER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Banded:
    """A line with its intervals, and what has to be said of them.

    Attributes:
        line: With `low` and `high`, which meet the line where there are too few rounds before.
        note: One paragraph, in plain words.
    """

    line: Line
    note: str


def banded(line: Line, *, turn: str, share: bool) -> Banded | None:
    """Return a line of released figures with f̄ ± t √S of its last five, at each point.

    Args:
        line: Each evaluated round's figure, of the last iterate: those of aggregates share most of
            their models, and would make an interval much too narrow.
        turn: What a round is called.
        share: Whether figures lie within 0 and 1; intervals are then cut off there.

    Returns:
        None if there are fewer than five points.
    """
    if len(line.y) < LAST:
        return None
    low, high = list(line.y[: LAST - 1]), list(line.y[: LAST - 1])
    for end in range(LAST, len(line.y) + 1):
        found = uncertainty(line.y[end - LAST : end])
        mean, half = float(found.mean), float(found.draw_half_width)
        low.append(max(mean - half, 0.0) if share else mean - half)
        high.append(min(mean + half, 1.0) if share else mean + half)
    newest = line.y[-_CORRELATED_OVER:]
    neighbours, correlated = lag_autocorrelation(newest), ""
    if not math.isnan(neighbours):
        correlated = (
            f" Neighbouring figures are correlated (lag 1, over the last {len(newest)}: "
            f"{neighbours:.2g}); the more they are, the narrower it is than it should be."
        )
    note = (
        f"Shaded: mean ± t · standard deviation (95 %, one draw) of the {LAST} {turn}s that were "
        f"evaluated last, from released figures alone. It shows how the noise, the draws and the "
        "progress of training move the figure. It does not cover sampling error: who took part, "
        f"and which examples it is measured on.{correlated}"
    )
    return Banded(line=replace(line, low=low, high=high), note=note)
