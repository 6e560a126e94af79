"""Paired bootstrap of means over clusters and seeds: means, differences, shares of a gap.

Sentences of one thread share title and label, and those of one user their habits, so clusters are
the sample and not examples: a replicate draws as many clusters as there are, with replacement, and
every mean is taken with each example weighted by how often its cluster was drawn. All means of
one call see the same draws, so differences and ratios of them are paired. Clusters are drawn as
multinomial weights on sums by cluster, and no example is copied.

Seeds are the second level, crossed with the clusters: a method is what is compared, and not the
few models that it happened to give. S seeds are drawn S - 1 at a time, with replacement, since
drawing all S of so few gives a variance that is too small by (S - 1) / S (Rao and Wu, "Resampling
inference with complex survey data", 1988). What depends on both levels counts about three times
(Owen, "The pigeonhole bootstrap", 2007), so intervals err to the wide side. Seeds of the same
number stay together in all means that have as many: two figures of the same models differ by
exactly nothing. A mean of one seed is taken as it is, and its interval knows nothing of seeds.

Intervals are percentiles. They are of the models as trained: what another draw of training threads
would have given is in none of them. In simulations of 200 threads and five seeds, intervals of 95 %
of a difference held it in 95 % of 400 data sets where threads differ most, in 93 % where seeds
matter as much, and in 85 % where only seeds differ: of those, five are few.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

REPLICATES = 2000
#: Of every interval.
CONFIDENCE = 0.95
_BLOCK = 1 << 22  # weights that are held at once

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A percentile interval.

    Attributes:
        low: Its lower end.
        high: Its upper end.
    """

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A figure that is a sum over examples by another: a mean, or a share.

    Attributes:
        values: float (n, seeds), each example's part of the sum, for every seed.
        counts: float (n,), its part of what the sum is divided by: 1 for a mean.
    """

    values: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.counts.shape != self.values.shape[:1]:
            raise ValueError(
                f"values {self.values.shape} and counts {self.counts.shape} are not (n, seeds) and "
                "(n,) of the same examples"
            )
        if not self.values.shape[1]:
            raise ValueError("there is no seed; give at least one model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampled:
    """A figure, and what it is in every replicate.

    Attributes:
        value: Of all examples and the mean of all seeds; None where it has no meaning.
        draws: float64 (replicates,); NaN where it has no meaning. Empty of fewer than two
            clusters, which say nothing of others.
    """

    value: float | None
    draws: np.ndarray = field(repr=False)

    def __sub__(self, other: Resampled) -> Resampled:
        value = None if self.value is None or other.value is None else self.value - other.value
        return Resampled(value=value, draws=self.draws - other.draws)

    def share_of(self, low: Resampled, high: Resampled) -> Resampled:
        """Return which share of the gap between two figures this one closes.

        It has no meaning where the gap is not above 0, and is ±∞ in such a replicate, where
        the share goes as the gap closes. So it has no interval where the gap's own reaches 0.
        """
        gap, gain = high - low, self - low
        value = None
        if gap.value is not None and gain.value is not None and gap.value > 0:
            value = gain.value / gap.value
        with np.errstate(divide="ignore", invalid="ignore"):
            open_ = gain.draws / gap.draws
        draws = np.where(gap.draws > 0, open_, np.copysign(np.inf, gain.draws))
        draws = np.where(np.isnan(gain.draws) | np.isnan(gap.draws), np.nan, draws)
        return Resampled(value=value, draws=draws)

    def interval(self) -> Interval | None:
        """Return the percentile interval of `CONFIDENCE`; None where the draws give none."""
        if self.value is None or not len(self.draws) or np.isnan(self.draws).any():
            return None
        # To the wider side: interpolated between two draws an end is no draw, and NaN if one is ∞.
        tail = (1 - CONFIDENCE) / 2
        low = float(np.quantile(self.draws, tail, method="lower"))
        high = float(np.quantile(self.draws, 1 - tail, method="higher"))
        return Interval(low=low, high=high) if np.isfinite([low, high]).all() else None


def cluster_weights(
    generator: np.random.Generator, num_clusters: int, replicates: int
) -> Iterator[np.ndarray]:
    """Yield how often each cluster was drawn, float64 (some replicates, num_clusters) at a time.

    Raises:
        ValueError: If there is no cluster or no replicate.
    """
    if num_clusters < 1 or replicates < 1:
        raise ValueError(f"{num_clusters} clusters, {replicates} replicates: give at least 1 each")
    rows = max(1, _BLOCK // num_clusters)
    for first in range(0, replicates, rows):
        size = min(rows, replicates - first)
        drawn = generator.integers(0, num_clusters, (size, num_clusters))
        drawn += np.arange(size)[:, None] * num_clusters
        times = np.bincount(drawn.ravel(), minlength=size * num_clusters)
        yield times.reshape(size, num_clusters).astype(np.float64)


def resampled(
    clusters: np.ndarray,
    ratios: Iterable[tuple[Name, Ratio]],
    *,
    generator: np.random.Generator,
    replicates: int = REPLICATES,
) -> dict[Name, Resampled]:
    """Return figures with their replicates, all of the same draws.

    Args:
        clusters: int (n,), which cluster each example is of; any numbers.
        ratios: Figures of those examples with their names; each is summed up as it comes.
        generator: Draws seeds, then clusters.
        replicates: How often.

    Guarantees:
        * The order of the examples changes nothing but rounding.
        * Equal ratios have equal draws.

    Raises:
        ValueError: If a ratio is of other examples, or there are none.
    """
    found, numbers = np.unique(clusters, return_inverse=True)
    if not len(found):
        raise ValueError("there is no example to measure; give a split that holds some out")
    columns, num_seeds = [], {}
    for name, ratio in ratios:
        if len(ratio.counts) != len(numbers):
            raise ValueError(f"{name}: {len(ratio.counts)} examples, but {len(numbers)} clusters")
        num_seeds[name] = ratio.values.shape[1]
        for column in (*ratio.values.T, ratio.counts):
            columns.append(np.bincount(numbers, weights=column, minlength=len(found)))
    sums = np.stack(columns, axis=1) if columns else np.zeros((len(found), 0))
    seeds = {
        number: _seed_weights(generator, number, replicates)
        for number in sorted(set(num_seeds.values()))
    }
    drawn = np.zeros((0, sums.shape[1]))
    if len(found) > 1:
        blocks = cluster_weights(generator, len(found), replicates)
        drawn = np.concatenate([weights @ sums for weights in blocks])
    totals, result, first = sums.sum(axis=0), {}, 0
    for name, number in num_seeds.items():
        last = first + number
        above = (drawn[:, first:last] * seeds[number][: len(drawn)]).sum(axis=1)
        count, counts = float(totals[last]), drawn[:, last]
        with np.errstate(divide="ignore", invalid="ignore"):
            draws = np.where(counts > 0, above / counts, np.nan)
        value = float(totals[first:last].mean()) / count if count > 0 else None
        result[name] = Resampled(value=value, draws=draws)
        first = last + 1
    return result


def _seed_weights(generator: np.random.Generator, number: int, replicates: int) -> np.ndarray:
    """Return each seed's share in every replicate, float64 (replicates, number)."""
    if number == 1:
        return np.ones((replicates, 1))
    drawn = generator.integers(0, number, (replicates, number - 1))
    return (drawn[:, :, None] == np.arange(number)).sum(axis=1) / (number - 1)
