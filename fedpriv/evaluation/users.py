"""What models reach user by user: a low percentile, and who is worse off than without them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpriv.evaluation.bootstrap import Ratio, Resampled, cluster_weights, resampled

PERCENTILES = (10, 50)


def user_means(users: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return each user's mean over its examples and all seeds, float64, in the users' order.

    Args:
        users: int (n,), each example's user.
        values: (n, seeds).
    """
    _, numbers, counts = np.unique(users, return_inverse=True, return_counts=True)
    # Over seeds first: of whole numbers it is then exact, and equal figures stay equal.
    return np.bincount(numbers, weights=values.sum(axis=1, dtype=np.float64)) / (
        counts * values.shape[1]
    )


def user_figures(
    users: np.ndarray,
    right: Mapping[str, np.ndarray],
    *,
    public_only: str,
    generator: np.random.Generator,
    replicates: int,
) -> dict[str, dict[str, Resampled]]:
    """Return figures of users by model and by name of `fedpriv.evaluation.result.USER_FIGURES`.

    Every user counts once, however many examples it has. A user's accuracy is the mean over its
    examples and over seeds, which are not drawn anew; it is worse off where that is below
    public-only's, and as well off where the two are equal. The 10th percentile is the smallest
    accuracy that at least a tenth of the users do not exceed. It is 0 where a tenth of them have
    none right, as is usual of users with few threads; the median is given with it.

    Args:
        users: int (n,), each example's user.
        right: By model, (n, seeds), whether an example was answered right.
        public_only: The model that users are compared with; it has no share worse off.
        generator: Draws users.
        replicates: How often.
    """
    means = {name: user_means(users, values) for name, values in right.items()}
    base = means[public_only]
    each, one = np.arange(len(base)), np.ones(len(base))
    shares: dict[tuple[str, str], Ratio] = {}
    for name, own in means.items():
        if name != public_only:
            below, above = (own < base)[:, None], (own > base)[:, None]
            shares[name, "worse_off"] = Ratio(values=below.astype(np.float64), counts=one)
            shares[name, "better_off"] = Ratio(values=above.astype(np.float64), counts=one)
    found = resampled(each, shares.items(), generator=generator, replicates=replicates)
    result: dict[str, dict[str, Resampled]] = {name: {} for name in means}
    for (name, percent), value in _percentiles(means, generator, replicates).items():
        result[name][f"percentile_{percent}"] = value
    for (name, figure), value in found.items():
        result[name][figure] = value
    return result


def _percentiles(
    means: Mapping[str, np.ndarray], generator: np.random.Generator, replicates: int
) -> dict[tuple[str, int], Resampled]:
    number = len(next(iter(means.values())))
    ordered = {name: np.argsort(own, kind="stable") for name, own in means.items()}
    # Of whole numbers, since a tenth of some of them is not one that a float holds.
    least = {percent: -(-number * percent // 100) for percent in PERCENTILES}
    parts = {(name, percent): [np.empty(0)] for name in means for percent in PERCENTILES}
    for weights in cluster_weights(generator, number, replicates) if number > 1 else ():
        for name, order in ordered.items():
            past = weights[:, order].cumsum(axis=1)
            for percent in PERCENTILES:
                first = (past >= least[percent]).argmax(axis=1)
                parts[name, percent].append(means[name][order[first]])
    return {
        (name, percent): Resampled(
            value=float(means[name][ordered[name][least[percent] - 1]]), draws=np.concatenate(drawn)
        )
        for (name, percent), drawn in parts.items()
    }
