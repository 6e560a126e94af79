"""The knee of noise over cohort size: where a larger cohort stops paying.

At a fixed ε and number of rounds the noise on the mean falls like 1/cohort while cohorts are small,
since hardly more noise is needed, and not at all where they are large, since the noise needed grows
with the cohort. A doubling lowers it by a factor of 2 at the one end and of 1 at the other.

>>> print(knee_of(100, [(10.0, 1.0), (20.0, 0.55), (40.0, 0.45), (80.0, 0.42)]))
about 16
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

KNEE_FACTOR = math.sqrt(2.0)
"""Half way, on a logarithmic scale, between a doubling that halves the noise and one in vain."""


def knee_words(drawn: str) -> str:
    """Return what the knee is, in words; `drawn` is "cohort" or "batch"."""
    return (
        f"knee: the {drawn} from which on a doubling lowers the noise on the mean by less than a "
        f"factor of {KNEE_FACTOR:.2f} (√2), half way between 2, where it falls like 1/{drawn}, "
        "and 1, where it no longer falls"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where it lies for a number of rounds.

    Attributes:
        rounds: Of the line.
        cohort: The knee where `side` is "at"; else the end of the cohorts that were looked at:
            the knee lies at or below it, or above it. None where too few were.
        side: "at", "below", "above" or "unknown".
    """

    rounds: int
    cohort: float | None
    side: Literal["at", "below", "above", "unknown"]

    def __repr__(self) -> str:
        if self.cohort is None:
            return "unknown"
        shown = f"{float(f'{self.cohort:.2g}'):,g}"
        return {"at": f"about {shown}", "below": f"≤ {shown}", "above": f"> {shown}"}[self.side]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"rounds": self.rounds, "cohort": self.cohort, "side": self.side}


def knee_of(rounds: int, line: Sequence[tuple[float, float]]) -> Knee:
    """Return the knee of one line.

    Between cohorts, the logarithm of the noise is interpolated linearly in that of the cohort. A
    cohort is looked at where its double is on the line too.

    Args:
        rounds: Of the line.
        line: Cohorts, increasing, and noise on the mean.
    """
    logs = [(math.log(cohort), math.log(noise)) for cohort, noise in line]
    double, wanted = math.log(2.0), math.log(KNEE_FACTOR)
    if not logs or logs[0][0] + double > logs[-1][0] + 1e-9:
        return Knee(rounds=rounds, cohort=None, side="unknown")

    def gain(at: float) -> float:
        return _between(logs, at) - _between(logs, at + double)

    # The gain is linear between places where either end meets a cohort of the line.
    last = max(logs[-1][0] - double, logs[0][0])  # for one doubling, but for rounding
    places = {x for x, _ in logs} | {x - double for x, _ in logs} | {last}
    within = sorted(place for place in places if logs[0][0] <= place <= last)
    if gain(within[0]) < wanted:
        return Knee(rounds=rounds, cohort=math.exp(within[0]), side="below")
    for left, right in itertools.pairwise(within):
        high, low = gain(left), gain(right)
        if low < wanted:
            share = (high - wanted) / (high - low)
            at = math.exp(left + share * (right - left))
            return Knee(rounds=rounds, cohort=at, side="at")
    return Knee(rounds=rounds, cohort=math.exp(last), side="above")


def _between(logs: Sequence[tuple[float, float]], at: float) -> float:
    index = min(max(bisect.bisect_right([x for x, _ in logs], at), 1), len(logs) - 1)
    (left, low), (right, high) = logs[index - 1], logs[index]
    return low + (high - low) * (at - left) / (right - left)
