"""What models reach user by user: a low percentile, and who is worse off than without them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpriv.evaluation.bootstrap import Ratio, Resampled, cluster_weights, resampled

PERCENTILE = 10
MANY = 20
"""From how many held-out examples on a user's own accuracy is more than a coin's."""


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
    public-only's, and as well off where the two are equal. The percentile is the smallest accuracy
    that at least a tenth of the users do not exceed: of all users, where a tenth who have few
    examples have none right, and of those with at least `MANY`, where there are such.

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
    many = np.unique(users, return_counts=True)[1] >= MANY
    for figure, of in (("percentile_10", np.full(len(base), True)), ("percentile_10_many", many)):
        some = {name: own[of] for name, own in means.items()}
        for name, value in _percentiles(some, generator, replicates).items():
            result[name][figure] = value
    for (name, figure), value in found.items():
        result[name][figure] = value
    return result


def _percentiles(
    means: Mapping[str, np.ndarray], generator: np.random.Generator, replicates: int
) -> dict[str, Resampled]:
    number = len(next(iter(means.values())))
    ordered = {name: np.argsort(own, kind="stable") for name, own in means.items()}
    # Of whole numbers, since a tenth of some of them is not one that a float holds.
    least = -(-number * PERCENTILE // 100)
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in means}
    for weights in cluster_weights(generator, number, replicates) if number > 1 else ():
        for name, order in ordered.items():
            first = (weights[:, order].cumsum(axis=1) >= least).argmax(axis=1)
            parts[name].append(means[name][order][first])
    return {
        name: Resampled(
            value=float(own[ordered[name]][least - 1]) if number else None,
            draws=np.concatenate(parts[name]),
        )
        for name, own in means.items()
    }
