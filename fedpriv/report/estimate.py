"""Means over seeds with 95 % intervals.

Where simulations measured each user, the interval is of a bootstrap over users and seeds
(`fedpriv.report.bootstrap`), which one run is enough for; elsewhere it is Student's t over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedpriv.checkpoints.tensor_files import BY_USER, read_tensors
from fedpriv.report.bootstrap import REPLICATES, Interval, Ratio, resampled
from fedpriv.report.run_record import RunRecord

_TOLERANCE = 1e-6  # for the order of a sum of floats
FEWEST_SEEDS = 4
"""Runs from which on a t-interval over seeds is given: half of it is 12.7 standard errors of two
runs and 4.3 of three, wider than most differences between methods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % interval.

    Attributes:
        mean: The mean, or the value of a single run.
        half_width: Half the interval; None where there is none, as of few seeds.
        count: Number of runs.
        by_user: Whether the interval is of a bootstrap over users and seeds; else it is Student's t
            over seeds.
    """

    mean: float
    half_width: float | None
    count: int
    by_user: bool = False

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the interval; None where there is none."""
        if self.half_width is None:
            return None
        return self.mean - self.half_width, self.mean + self.half_width


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
        return Estimate(mean=mean, half_width=None, count=count)
    from scipy.special import stdtrit  # slow to import; `fedpriv --help` does without

    variance = math.fsum((value - mean) ** 2 for value in known) / (count - 1)
    half_width = float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)
    return Estimate(mean=mean, half_width=half_width, count=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSums:
    """Headline measure of the model that a run returns, user by user: a diagnostic, without ε.

    Attributes:
        count: int64 (n_users,), held-out examples of each user of the roster.
        value: float64 (n_users,), the sum of the measure over them.
        public_value: The same of the model of public data alone, or None.
    """

    count: np.ndarray
    value: np.ndarray
    public_value: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("value", "public_value"):
            sums = getattr(self, name)
            if sums is not None and sums.shape != self.count.shape:
                raise ValueError(
                    f"{name} is of shape {sums.shape} and count of {self.count.shape}; both have "
                    "one number for each user of the roster"
                )

    @property
    def over_public(self) -> np.ndarray | None:
        """The sums minus those of the public-only model; None if those are unknown."""
        return None if self.public_value is None else self.value - self.public_value


def read_user_sums(run: RunRecord) -> UserSums | None:
    """Return the sums by user of a finished run; None where users were not measured one by one.

    Raises:
        ValueError: If the file is not what a run writes, or does not add up to the run's headline.
    """
    file = run.directory / BY_USER
    if not run.finished or not run.figures or not file.is_file():
        return None
    found, _ = read_tensors(file)
    arrays = [found[name] for name in ("count", "value", "public_value") if name in found]
    if not {"count", "value"} <= found.keys() or not all(
        array.ndim == 1 and array.dtype.kind in "if" and np.isfinite(array).all()
        for array in arrays
    ):
        raise ValueError(
            f"{file} is not what a run writes; delete it, and intervals are over seeds alone"
        )
    sums = UserSums(
        count=found["count"], value=found["value"], public_value=found.get("public_value")
    )
    measure, total = run.figures[0], float(sums.count.sum())
    reached = run.summary.get(measure.name)
    if reached is None or not total:
        return None
    mean = float(sums.value.sum()) / total
    if not math.isclose(mean, reached, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        raise ValueError(
            f"{file} gives {measure.label} {mean!r}, but its run has {reached!r}; the file is of "
            "another run: delete it, and intervals are over seeds alone"
        )
    return sums


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
        return replace(found, half_width=None)
    return replace(found, half_width=(ends.high - ends.low) / 2, by_user=True)


def user_interval(
    counts: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    generator: np.random.Generator | None = None,
    replicates: int = REPLICATES,
) -> Interval | None:
    """Return the 95 % interval of a mean over examples, users and seeds drawn anew.

    Args:
        counts: int64 (n_users,), examples of each user, for each seed.
        values: float64 (n_users,), sums over them, for each seed.
        generator: Draws; None for one of a fixed seed.
        replicates: How many.

    Returns:
        None where seeds do not share the users' held-out examples, so that there are no clusters of
        all of them, or where fewer than two users have any.
    """
    there = same_clusters(counts)
    if len(there) < 2:
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
