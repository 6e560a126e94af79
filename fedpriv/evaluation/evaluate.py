"""From folds to figures: values, gains over public-only, shares of the gap, and figures of users.

Folds hold out disjoint threads and are pooled: every thread counts once, by the models that did not
see it, and a user's sentences of all folds are one user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.evaluation.bootstrap import REPLICATES, Ratio, Resampled, resampled
from fedpriv.evaluation.examples import HeldOut, Outcomes
from fedpriv.evaluation.fold import Fold, pooled
from fedpriv.evaluation.result import MEASURES, Estimate, Evaluation, ModelFigures
from fedpriv.evaluation.users import user_figures

_Figure = tuple[str, str]  # model, measure


def evaluate(
    folds: Sequence[Fold],
    *,
    public_only: str,
    best_nonprivate: str | None = None,
    generator: np.random.Generator,
    replicates: int = REPLICATES,
    confidence: float = 0.95,
) -> Evaluation:
    """Return all figures of the models of one fold or several, with intervals.

    Args:
        folds: As `measure_fold` returns them.
        public_only: The model that no private example went into.
        best_nonprivate: The best model without privacy, chosen elsewhere than on these examples;
            None leaves out shares of the gap.
        generator: Draws seeds, threads and users.
        replicates: Of the bootstrap, at least 100.
        confidence: Of the intervals.

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
                figure: Estimate(value=found.value, by_user=found.interval(confidence))
                for figure, found in of_users[name].items()
            },
            **_means(name, public_only, best_nonprivate, drawn, confidence),
        )
        for name in models
    }
    splits = [fold.split for fold in folds]
    return Evaluation(
        data=dict(folds[0].data),
        splits=tuple(split.name for split in splits),
        split_said=_said(splits),
        shares_threads=any(split.shares_threads for split in splits),
        num_examples=len(held),
        num_threads=len(np.unique(held.threads)),
        num_users=len(np.unique(held.users)),
        num_untrained_examples=int((~held.trained).sum()),
        num_untrained_users=len(np.unique(held.users[~held.trained])),
        replicates=replicates,
        confidence=confidence,
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
    confidence: float = 0.95,
) -> dict[tuple[str, str], Estimate]:
    """Return the accuracy of the first model of each pair less that of the second, with intervals.

    Args:
        folds: As `measure_fold` returns them.
        pairs: Names of models; paired seed by seed where both have as many.
        generator: Draws seeds, threads and users.
        replicates: Of the bootstrap.
        confidence: Of the intervals.

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
    by_thread, by_user = (
        resampled(clusters, ratios.items(), generator=generator, replicates=replicates)
        for clusters in (held.threads, held.users)
    )
    return {
        (first, second): Estimate(
            value=(by_thread[first] - by_thread[second]).value,
            by_thread=(by_thread[first] - by_thread[second]).interval(confidence),
            by_user=(by_user[first] - by_user[second]).interval(confidence),
        )
        for first, second in wanted
    }


def _means(
    name: str,
    public_only: str,
    best_nonprivate: str | None,
    drawn: Sequence[Mapping[_Figure, Resampled]],
    confidence: float,
) -> dict[str, dict[str, Estimate]]:
    """Return a model's values, gains and closed shares of the gap, each by measure.

    Args:
        name: Of the model.
        public_only: What gains are over.
        best_nonprivate: Where the gap ends; None for no shares.
        drawn: Every model's means, drawn by thread and by user.
        confidence: Of the intervals.
    """

    def estimate(make: Callable[[Mapping[_Figure, Resampled]], Resampled]) -> Estimate:
        by_thread, by_user = (make(found) for found in drawn)
        return Estimate(
            value=by_thread.value,
            by_thread=by_thread.interval(confidence),
            by_user=by_user.interval(confidence),
        )

    values, gains, shares = {}, {}, {}
    for m in MEASURES:
        values[m] = estimate(lambda at, m=m: at[name, m])
        if name != public_only:
            gains[m] = estimate(lambda at, m=m: at[name, m] - at[public_only, m])
        if best_nonprivate is not None and name not in (public_only, best_nonprivate):
            high = best_nonprivate, m
            shares[m] = estimate(
                lambda at, m=m, high=high: at[name, m].share_of(at[public_only, m], at[high])
            )
    return {"values": values, "gains": gains, "closed_shares": shares}


def _said(splits: Sequence[Split]) -> str:
    """Return what reports say of splits that differ in the fold alone."""
    said = splits[0].describe()
    if len(splits) == 1:
        return said
    folds = ", ".join(str(split.fold) for split in splits)
    return said.replace(f"fold {splits[0].fold} of", f"folds {folds} of", 1)


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
