"""What an evaluation found: every figure of every model with its intervals, as JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedpriv.evaluation.bootstrap import Interval

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
        by_thread: Threads drawn anew; None where there are too few, or a draw has no value.
        by_user: Users drawn anew; likewise.
    """

    value: float | None
    by_thread: Interval | None = None
    by_user: Interval | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Estimate:
        """Return what `dataclasses.asdict` wrote."""
        ends = {
            kind: None if document[kind] is None else Interval(**document[kind])
            for kind in ("by_thread", "by_user")
        }
        return cls(value=document["value"], **ends)

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

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ModelFigures:
        """Return what `dataclasses.asdict` wrote."""
        groups = {
            group: {name: Estimate.from_json(value) for name, value in document[group].items()}
            for group in ("values", "gains", "closed_shares", "users")
        }
        return cls(seeds=document["seeds"], **groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What models reach on held-out examples of rostered users: diagnostics, not covered by any ε.

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
        confidence: Of the intervals.
        public_only: The model that gains are over.
        best_nonprivate: The model that the gap ends at; None where there is none.
        models: By name.
        promise: What the ε in their names is: δ, unit, relation and accountant; "" without any.
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
    promise: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "splits": list(self.splits)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Evaluation:
        """Return what `to_json` wrote.

        Raises:
            ValueError: If something is missing or unknown.
        """
        try:
            models = {
                name: ModelFigures.from_json(found) for name, found in document["models"].items()
            }
            return cls(**{**document, "splits": tuple(document["splits"]), "models": models})
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"the evaluation cannot be read ({error}); write it anew") from error

    @property
    def gap(self) -> Estimate | None:
        """The best non-private model's accuracy less public-only's; None without one."""
        if self.best_nonprivate is None:
            return None
        return self.models[self.best_nonprivate].gains["accuracy"]
