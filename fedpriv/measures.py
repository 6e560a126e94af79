"""Measures of a task: name in files, format, and which direction is better.

A task names its measures; whatever records, compares or draws figures asks them and knows none.

>>> ACCURACY.text(0.625), LOSS.text(0.6931)
('62.5%', '0.6931')
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

Form = Literal["share", "number"]

#: Names of the accuracy of always answering the commonest class: on rostered users' examples, and
#: on those that released figures are measured on.
MAJORITY = ("majority_class_accuracy", "majority_class_accuracy_public")
#: What is added to the headline measure's name for what public examples alone reach.
PUBLIC_ONLY = "_public_only"

_NAME = re.compile(r"[a-z][a-z0-9_]*")
#: Names that files of a run give to something else.
# fmt: off
RESERVED = frozenset({
    "round_num", "attempt", "epsilon", "epsilon_charges", "epsilon_rdp", "delta", "update_norm",
    "cohort_size", "num_failed", "seconds", "covered_by_epsilon", "experiment", "measures",
    "majority_class_accuracy", "public_only_of", "not_covered", "epsilon_does_not_cover",
    "relation", "unit", "accountant", "mode",
    "noise_multiplier", "target_epsilon", "rounds", "rounds_planned", "stopped_early", "charges",
    "budget_used",
    "users", "seconds_per_round", "rounds_mostly_failed", "corpus", "roster", "synthetic",
    "run_dir", "backend", "name", "label", "runs", "seeds", "private", "simulated", "finished",
    "gap_closed",
    "no_meaningful_protection", "identity", "data", "split", "reduced", "seed", "options", "curve",
    "curve_of", "side_information", "steps", "failed_in_last_round", "reason",
    "users_drawn", "users_failed", "first_failure", "gain", "start", "selection",
    "with_start",
})
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure of a model on a set of examples.

    Attributes:
        name: In JSON, such as "accuracy"; what is measured on public examples has "_public" added.
        label: In tables, plots and output, in lower case.
        higher_is_better: Which way is better.
        form: "share", a number from 0 to 1 that is written in percent, or "number".
        diagnostic_only: Only written down round by round, of rostered users: it is neither
            released nor summarised nor compared.

    Raises:
        ValueError: If the name is not of lower-case letters, digits and underscores, ends in
            "_public" or means something else in a run's files; or the label is empty.
    """

    name: str
    label: str
    higher_is_better: bool = True
    form: Form = "number"
    diagnostic_only: bool = False

    def __post_init__(self) -> None:
        taken = self.name in RESERVED or self.name.endswith(("_public", PUBLIC_ONLY, "_interval"))
        if not _NAME.fullmatch(self.name) or taken:
            why = "means something else in a run's files" if taken else "is no name for JSON"
            raise ValueError(
                f"measure {self.name!r} {why}; use lower-case letters, digits and underscores, "
                "such as 'mean_squared_error'"
            )
        if not self.label:
            raise ValueError(f"measure {self.name!r} has no label; say what tables call it")
        if self.form not in ("share", "number"):
            raise ValueError(f"form {self.form!r} is not known; use 'share' or 'number'")

    @property
    def released_name(self) -> str:
        """Its name in JSON where it is measured on public examples."""
        return f"{self.name}_public"

    @property
    def title(self) -> str:
        """The label with a capital."""
        return self.label[:1].upper() + self.label[1:]

    def text(self, value: float, digits: int = 1) -> str:
        """Return a value for a terminal; of a share with so many digits behind the point."""
        return f"{value:.{digits}%}" if self.form == "share" else f"{value:.4g}"

    def worth(self, value: float | None) -> float:
        """Return a value so that the higher is the better; -∞ where it is missing or NaN."""
        if value is None or math.isnan(value):
            return -math.inf
        return value if self.higher_is_better else -value

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


ACCURACY = Measure(name="accuracy", label="accuracy", form="share")
RECALL_AT_5 = Measure(name="recall_at_5", label="recall at 5", form="share")
LOSS = Measure(name="loss", label="loss", higher_is_better=False, diagnostic_only=True)
#: What run folders hold that were written before a task named its measures.
UNNAMED = (ACCURACY, RECALL_AT_5, LOSS)


def check_measures(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return measures that can stand side by side.

    Raises:
        ValueError: If two have one name, or the first, which heads every table, is only a
            diagnostic.
    """
    names = [measure.name for measure in measures]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} measures are called {name!r}; rename one")
    if measures and measures[0].diagnostic_only:
        raise ValueError(
            f"the first measure, {names[0]!r}, heads tables and plots and cannot be a diagnostic "
            "only; put another first, or say diagnostic_only=False"
        )
    return tuple(measures)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSums:
    """The headline measure over each rostered user's held-out examples: a diagnostic, without ε.

    Attributes:
        count: int64 (n_users,), held-out examples of each user, in the roster's order.
        value: float64 (n_users,), the sum of the measure over them, of the returned model.
        public_value: The same of the model of public data alone, or None.

    Raises:
        ValueError: If they are not one finite number for each user.
    """

    count: np.ndarray
    value: np.ndarray
    public_value: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, array in self.tensors().items():
            fits = array.ndim == 1 and array.dtype.kind in "if" and np.isfinite(array).all()
            if not fits or array.shape != self.count.shape:
                raise ValueError(f"{name} is not one finite number for each user")

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays that there are, by name."""
        found = {"count": self.count, "value": self.value}
        return found if self.public_value is None else {**found, "public_value": self.public_value}

    @property
    def over_public(self) -> np.ndarray | None:
        """The sums minus those of the public-only model; None if those are unknown."""
        return None if self.public_value is None else self.value - self.public_value

    def gain(self, headline: Measure) -> np.ndarray | None:
        """Return the sums' gain over the public-only model, positive where the run is better."""
        over = self.over_public
        return over if over is None or headline.higher_is_better else -over

    def check(self, headline: Measure, reached: float | None) -> None:
        """Compare the mean over users with the headline: a weighted loss, say, is no such mean.

        Args:
            headline: The measure.
            reached: Its value.

        Raises:
            ValueError: If they are not the same.
        """
        total = float(self.count.sum())
        if not total or reached is None:
            raise ValueError("nothing was measured")
        mean = float(self.value.sum()) / total
        # A share may be an example apart, whose logits another batch rounds otherwise.
        apart = 1.0 / total if headline.form == "share" else 1e-6
        if not math.isclose(mean, reached, rel_tol=1e-6, abs_tol=apart):
            raise ValueError(f"{headline.label} is {mean!r} over users and {reached!r} over all")


def figures_of(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return those that are released, summarised and compared."""
    return tuple(measure for measure in measures if not measure.diagnostic_only)


def read_measures(document: Mapping[str, Any]) -> tuple[Measure, ...]:
    """Return the measures that an `experiment.json` or a `summary.json` names.

    Raises:
        ValueError: If they cannot be read.
    """
    if "measures" not in document:
        return UNNAMED
    try:
        return tuple(Measure(**value) for value in document["measures"])
    except TypeError as error:
        raise ValueError(f"the measures of this run cannot be read: {error}") from error


def grouped(number: float) -> str:
    """Return a number of things or a mean of such with its thousands in groups, as all are.

    >>> grouped(6716), grouped(350.0), grouped(1350.5), grouped(10_000_000.0)
    ('6,716', '350', '1,350.5', '10,000,000')
    """
    whole = float(number).is_integer() and abs(number) < 1e15
    return f"{int(number):,}" if whole else f"{number:,g}"
