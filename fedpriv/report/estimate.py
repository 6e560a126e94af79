"""Means over seeds with 95 % intervals.

Where simulations measured each user, the interval is of a bootstrap over users and seeds
(`fedpriv.report.bootstrap`), which one run is enough for; elsewhere it is Student's t over seeds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedpriv.checkpoints.tensor_files import BY_USER, read_tensors
from fedpriv.measures import UserSums
from fedpriv.report.bootstrap import REPLICATES, Interval, Ratio, resampled
from fedpriv.report.run_record import RunRecord

_LOG = logging.getLogger(__name__)
FEWEST_SEEDS = 4
"""Runs from which on a t-interval over seeds is given: half of it is 12.7 standard errors of two
runs and 4.3 of three, wider than most differences between methods."""
FEWEST_USERS = 20
"""Users from which on an interval over them is given: of fewer a bootstrap's is far too narrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % interval.

    Attributes:
        mean: The mean, or the value of a single run.
        interval: Its ends; None where there is none, as of few seeds.
        count: Number of runs.
        by_user: Whether the interval is of a bootstrap over users and seeds; else it is Student's t
            over seeds.
    """

    mean: float
    interval: tuple[float, float] | None
    count: int
    by_user: bool = False

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width."""
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Return mean and 95 % interval over runs that differ in their seed; None without values.

    The interval is Student's t over independent runs; it speaks about seeds, not about users. Of
    fewer than `FEWEST_SEEDS` runs there is none.

    >>> estimate([0.62, 0.58, 0.65, 0.60, 0.55]).half_width  # doctest: +ELLIPSIS
    0.04728...
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    count, mean = len(known), math.fsum(known) / len(known)
    if known.count(known[0]) == count:
        mean = known[0]  # to its last digit
    if count < FEWEST_SEEDS:
        return Estimate(mean=mean, interval=None, count=count)
    from scipy.special import stdtrit  # slow to import; `fedpriv --help` does without

    variance = math.fsum((value - mean) ** 2 for value in known) / (count - 1)
    half = float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)
    return Estimate(mean=mean, interval=(mean - half, mean + half), count=count)


def read_user_sums(run: RunRecord) -> UserSums | None:
    """Return the sums by user of a finished run.

    Returns:
        None where users were not measured one by one, or the file is damaged or of another run: it
        is a diagnostic, for which no report fails.
    """
    file = run.folder / BY_USER
    if not run.finished or not run.figures or not file.is_file():
        return None
    headline = run.figures[0]
    try:
        found = UserSums(**read_tensors(file)[0])
        found.check(headline, run.summary.get(headline.name))
    except (ValueError, TypeError) as error:  # other tensors, or other names
        _LOG.warning("%s is left out, and with it intervals over users: %s", file, error)
        return None
    return found


SEED = 0x5EED  # of the bootstrap: equal folders give equal pages


def same_clusters(counts: Sequence[np.ndarray]) -> np.ndarray:
    """Return positions of users that have examples; none where seeds do not share examples."""
    if not counts or any(not np.array_equal(count, counts[0]) for count in counts[1:]):
        return np.empty(0, np.int64)
    return np.flatnonzero(counts[0])


def over_users(
    found: Estimate, counts: Sequence[np.ndarray], values: Sequence[np.ndarray]
) -> Estimate:
    """Return an estimate with the interval of `user_interval`, or with none."""
    ends = user_interval(counts, values) if counts and len(counts) == len(values) else None
    if ends is None:
        return replace(found, interval=None)
    return replace(found, interval=(ends.low, ends.high), by_user=True)


def user_interval(
    counts: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    generator: np.random.Generator | None = None,
    replicates: int = REPLICATES,
) -> Interval | None:
    """Return the 95 % interval of a mean over examples, users and seeds resampled.

    Args:
        counts: int64 (n_users,), examples of each user, for each seed.
        values: float64 (n_users,), sums over them, for each seed.
        generator: Draws; None for one of a fixed seed.
        replicates: How many.

    Returns:
        None where seeds do not share the users' held-out examples, so that there are no clusters of
        all of them, or where fewer than `FEWEST_USERS` have any.
    """
    there = same_clusters(counts)
    if len(there) < FEWEST_USERS:
        return None
    ratio = Ratio(
        values=np.stack(values, axis=1)[there], counts=counts[0][there].astype(np.float64)
    )
    drawn = resampled(
        there,
        [("mean", ratio)],
        generator=generator or np.random.default_rng(SEED),
        replicates=replicates,
    )
    return drawn["mean"].interval()
