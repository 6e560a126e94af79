"""Results of an evaluation: every value of every model with its intervals, also as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.report.bootstrap import (
    CONFIDENCE,
    REPLICATES,
    Interval,
    Ratio,
    Resampled,
    cluster_weights,
    resampled,
)
from simulations.evaluation.held_out import Fold, HeldOut, Outcomes, pooled

#: Means over examples, by name; the label is what tables call them.
MEASURES = {
    "accuracy": "accuracy",
    "recall_at_5": "recall@5",
    "ndcg_at_5": "nDCG@5",
    "accuracy_per_user": "accuracy, mean over users",
    "accuracy_with_training_text": "accuracy, users with training text",
    "accuracy_without_training_text": "accuracy, users without",
}
#: Figures of users, by name.
USER_FIGURES = {
    "percentile_10": "accuracy, 10th percentile over users",
    "percentile_50": "accuracy, median over users",
    "worse_off": "users worse off than with public-only",
    "better_off": "users better off than with public-only",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with intervals of two kinds; the wider one is what may be claimed.

    Attributes:
        value: None where it has no meaning, as a share of a gap that is not above 0.
        by_thread: Threads resampled; None where there are too few, or a draw has no value.
        by_user: Users resampled; likewise.
    """

    value: float | None
    by_thread: Interval | None = None
    by_user: Interval | None = None

    @property
    def excludes_zero(self) -> bool:
        """Whether there are intervals of both kinds, and 0 is in neither."""
        found = [self.by_thread, self.by_user]
        return all(ends is not None and (ends.low > 0 or ends.high < 0) for ends in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """Figures of one model, or of the models that so many seeds gave.

    Attributes:
        seeds: How many models the figures are means of.
        values: By name of `MEASURES`.
        gains: Each less public-only's; of public-only itself none.
        closed_shares: (value - public-only) / (best non-private - public-only); of those two none.
        users: By name of `USER_FIGURES`; resampled by user alone, and with the seeds as they are.
    """

    seeds: int
    values: Mapping[str, Estimate]
    gains: Mapping[str, Estimate]
    closed_shares: Mapping[str, Estimate]
    users: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Results of models on held-out examples of rostered users: diagnostics, covered by no ε.

    Attributes:
        data: What names it: corpus, whether synthetic, roster and its hash, licence.
        splits: Names of the splits that are pooled.
        split_said: How examples were divided, for reports.
        shares_threads: Whether training and test share threads, titles and labels.
        num_examples: Held-out examples of all folds.
        num_threads: Threads they are of.
        num_users: Users they are of.
        num_untrained_examples: Those of users without training text in that fold.
        num_untrained_users: Users that have no training text in a fold that holds text of theirs.
        replicates: Of the bootstrap.
        public_only: The model that gains are over.
        best_nonprivate: The model that the gap ends at; None where there is none.
        models: By name.
        guarantee: What the ε in their names is: δ, unit, relation and accountant; "" without any.
    """

    data: Mapping[str, Any]
    splits: tuple[str, ...]
    split_said: str
    shares_threads: bool
    num_examples: int
    num_threads: int
    num_users: int
    num_untrained_examples: int
    num_untrained_users: int
    replicates: int
    confidence: float
    public_only: str
    best_nonprivate: str | None
    models: Mapping[str, ModelFigures]
    guarantee: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "splits": list(self.splits)}


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
    """Return figures of users by model and by name of `USER_FIGURES`.

    Every user counts once, however many examples it has. A user's accuracy is the mean over its
    examples and over seeds, which are not resampled; it is worse off where that is below
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


_Figure = tuple[str, str]  # model, measure


def evaluate(
    folds: Sequence[Fold],
    *,
    public_only: str,
    best_nonprivate: str | None = None,
    generator: np.random.Generator,
    replicates: int = REPLICATES,
) -> Evaluation:
    """Return all figures of the models of one fold or several, with intervals.

    Args:
        folds: As `measure_fold` returns them.
        public_only: The model that no private example went into.
        best_nonprivate: The best model without privacy, chosen elsewhere than on these examples;
            None leaves out shares of the gap.
        generator: Draws seeds, threads and users.
        replicates: Of the bootstrap, at least 100.

    Raises:
        ValueError: A model that is named is none, replicates are few, folds do not add up.
    """
    held, models = pooled(folds)
    for name in filter(None, (public_only, best_nonprivate)):
        if name not in models:
            raise ValueError(f"there is no model {name!r}, only {', '.join(models)}")
    if best_nonprivate == public_only:
        raise ValueError(f"{public_only!r} is both ends of the gap; name another best_nonprivate")
    if replicates < 100:
        raise ValueError(f"replicates {replicates}: an interval needs at least 100; give 2000")
    drawn = [
        resampled(clusters, _ratios(held, models), generator=generator, replicates=replicates)
        for clusters in (held.threads, held.users)
    ]
    of_users = user_figures(
        held.users,
        {name: np.stack([one.right for one in found], axis=1) for name, found in models.items()},
        public_only=public_only,
        generator=generator,
        replicates=replicates,
    )

    figures = {
        name: ModelFigures(
            seeds=len(models[name]),
            users={
                figure: Estimate(value=found.value, by_user=found.interval())
                for figure, found in of_users[name].items()
            },
            **_means(name, public_only, best_nonprivate, drawn),
        )
        for name in models
    }
    splits = [fold.split for fold in folds]
    return Evaluation(
        data=dict(folds[0].data),
        splits=tuple(split.name for split in splits),
        split_said=_split_words(splits),
        shares_threads=any(split.shares_threads for split in splits),
        num_examples=len(held),
        num_threads=len(np.unique(held.threads)),
        num_users=len(np.unique(held.users)),
        num_untrained_examples=int((~held.trained).sum()),
        num_untrained_users=len(np.unique(held.users[~held.trained])),
        replicates=replicates,
        confidence=CONFIDENCE,
        public_only=public_only,
        best_nonprivate=best_nonprivate,
        models=figures,
    )


def differences(
    folds: Sequence[Fold],
    pairs: Iterable[tuple[str, str]],
    *,
    generator: np.random.Generator,
    replicates: int = REPLICATES,
) -> dict[tuple[str, str], Estimate]:
    """Return the accuracy of the first model of each pair less that of the second, with intervals.

    Args:
        folds: As `measure_fold` returns them.
        pairs: Names of models; paired seed by seed where both have as many.
        generator: Draws seeds, threads and users.
        replicates: Of the bootstrap.

    Raises:
        ValueError: There is no such model, or folds do not add up.
    """
    held, models = pooled(folds)
    wanted = list(pairs)
    names = sorted({name for pair in wanted for name in pair})
    for name in names:
        if name not in models:
            raise ValueError(f"there is no model {name!r}, only {', '.join(models)}")
    one = np.ones(len(held))
    ratios = {
        name: _weighted(np.stack([s.right for s in models[name]], axis=1).astype(float), one)
        for name in names
    }
    drawn = [
        resampled(clusters, ratios.items(), generator=generator, replicates=replicates)
        for clusters in (held.threads, held.users)
    ]
    return {
        (first, second): _estimate(drawn, lambda at, a=first, b=second: at[a] - at[b])
        for first, second in wanted
    }


def _estimate(
    drawn: Sequence[Mapping[Any, Resampled]], make: Callable[[Mapping[Any, Resampled]], Resampled]
) -> Estimate:
    """Return a value that is made of means, drawn by thread and by user."""
    by_thread, by_user = map(make, drawn)
    return Estimate(
        value=by_thread.value, by_thread=by_thread.interval(), by_user=by_user.interval()
    )


def _means(
    name: str,
    public_only: str,
    best_nonprivate: str | None,
    drawn: Sequence[Mapping[_Figure, Resampled]],
) -> dict[str, dict[str, Estimate]]:
    """Return a model's values, gains and closed shares of the gap, each by measure.

    Args:
        name: Of the model.
        public_only: What gains are over.
        best_nonprivate: Where the gap ends; None for no shares.
        drawn: Every model's means, drawn by thread and by user.
    """
    values, gains, shares = {}, {}, {}
    for m in MEASURES:
        values[m] = _estimate(drawn, lambda at, m=m: at[name, m])
        if name != public_only:
            gains[m] = _estimate(drawn, lambda at, m=m: at[name, m] - at[public_only, m])
        if best_nonprivate is not None and name not in (public_only, best_nonprivate):
            high = best_nonprivate, m
            shares[m] = _estimate(
                drawn, lambda at, m=m, high=high: at[name, m].share_of(at[public_only, m], at[high])
            )
    return {"values": values, "gains": gains, "closed_shares": shares}


def _split_words(splits: Sequence[Split]) -> str:
    """Return what reports say of splits that differ in the fold alone."""
    words = splits[0].describe()
    if len(splits) == 1:
        return words
    folds = ", ".join(str(split.fold) for split in splits)
    return words.replace(f"fold {splits[0].fold} of", f"folds {folds} of", 1)


def _ratios(
    held: HeldOut, models: Mapping[str, Sequence[Outcomes]]
) -> Iterator[tuple[_Figure, Ratio]]:
    """Yield the sums that `MEASURES` are made of, by model and measure."""
    one, trained = np.ones(len(held)), held.trained.astype(np.float64)
    _, numbers, counts = np.unique(held.users, return_inverse=True, return_counts=True)
    share = 1.0 / counts[numbers]  # every user weighs as much as any other
    for name, seeds in models.items():
        right, found, ndcg = (
            np.stack(columns, axis=1).astype(np.float64)
            for columns in zip(*((s.right, s.found, s.ndcg) for s in seeds), strict=True)
        )
        # Of all true tags: the same as the task's own measure of that name.
        tags = Ratio(values=found, counts=held.num_tags.astype(np.float64))
        yield (name, "accuracy"), _weighted(right, one)
        yield (name, "recall_at_5"), tags
        yield (name, "ndcg_at_5"), _weighted(ndcg, one)
        yield (name, "accuracy_per_user"), _weighted(right, share)
        yield (name, "accuracy_with_training_text"), _weighted(right, trained)
        yield (name, "accuracy_without_training_text"), _weighted(right, 1.0 - trained)


def _weighted(values: np.ndarray, counts: np.ndarray) -> Ratio:
    """Return the mean of values with these weights."""
    return Ratio(values=values * counts[:, None], counts=counts)
