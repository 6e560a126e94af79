"""Preconditioners as parts: from side information, from public examples, or from past releases.

A new one is a preconditioner in `fedpriv.mechanisms` and a part here that makes it. One that learns
from past releases, which experiments of either unit have, goes into `_OF_RELEASES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np

from fedpriv.experiments.options import Part, option, place
from fedpriv.mechanisms import SideInformation, preconditioners, side_information
from fedpriv.mechanisms.preconditioners import (
    Delayed,
    Fixed,
    MirrorDescent,
    PastReleases,
    Preconditioner,
    PublicGradient,
    PublicMoments,
)
from fedpriv.mechanisms.side_information import PublicWords
from fedpriv.ranges import Range

if TYPE_CHECKING:
    from fedpriv.tasks.central import CentralTask
    from fedpriv.tasks.task import Task


class OfWords(Protocol):
    """A kind of side information that is made of what is known of words."""

    kind: ClassVar[str]

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A of each word, float32 `(num_words,)`, and the rule in words."""
        ...


def _of_words(part: OfWords, task: Task, experiment: str) -> SideInformation:
    """Return A of the task's words.

    Raises:
        ValueError: If it has none.
    """
    from fedpriv.tasks.task import KnowsMultipliers, KnowsWords

    if not isinstance(task, KnowsWords):
        more = "set side-information own" if isinstance(task, KnowsMultipliers) else (
            "give it a method side_information() that returns a SideInformation and set "
            "side-information own, or leave precondition out"
        )  # fmt: skip
        raise ValueError(
            f"side-information {part.kind!r} is made of public words, of which the task of "
            f"{experiment} has none; {more}"
        )
    words = task.public_words()
    rows, said = part.rows(words)
    if words.num_pairs:
        rows = np.append(rows, np.full(words.num_pairs, rows[np.argmin(words.counts)]))
        said += "; pairs of words as the rarest word"
    return SideInformation(
        multiplier={"kernel": rows.astype(np.float32).reshape(-1, 1)},
        source=words.source,
        description=f"{said}, from {words.where}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank(Part):
    """A by rank among public words."""

    kind: ClassVar[str] = "rank"

    preconditioner_gain: float = option(200.0, "Largest multiplier 1/A.")
    preconditioner_top: int = option(
        100, "How many of the commonest words are left alone.", Range.AT_LEAST_ZERO
    )

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A: 1 for the commonest words, the gain for the others."""
        gain, top, number = self.preconditioner_gain, self.preconditioner_top, len(words.counts)
        made = side_information.rank_multiplier(number, top=min(top, number), gain=gain)
        return made, f"rank (words beyond the {top} commonest are multiplied by {gain:g})"

    make = _of_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency(Part):
    """A by frequency among public words."""

    kind: ClassVar[str] = "frequency"

    preconditioner_gain: float = option(200.0, "Largest multiplier 1/A.")
    preconditioner_power: float = option(1.0, "Exponent of the frequency.")

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A: the inverse of a power of each word's frequency, at most the gain."""
        gain, power = self.preconditioner_gain, self.preconditioner_power
        made = side_information.frequency_multiplier(
            words.counts, words.num_sentences, cap=gain, power=power
        )
        said = f"1 / token frequency, to the power {power:g}, at most {gain:g}"
        return made, f"frequency ({said})"

    make = _of_words


@dataclass(frozen=True, slots=True, kw_only=True)
class TfIdf(Part):
    """A by TF-IDF among public words."""

    kind: ClassVar[str] = "tf-idf"

    preconditioner_gain: float = option(200.0, "Largest multiplier 1/A.")

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A: each word's total TF-IDF over the largest, times the gain."""
        gain = self.preconditioner_gain
        made = gain * side_information.tf_idf_multiplier(
            words.counts, words.sentences, words.num_sentences
        )
        return made, f"tf-idf (total TF-IDF relative to the largest, times {gain:g})"

    make = _of_words


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMultipliers(Part):
    """A of the task's own."""

    kind: ClassVar[str] = "own"

    def make(self, task: Task, experiment: str) -> SideInformation:
        """Return what the task knows.

        Raises:
            ValueError: If it knows nothing.
        """
        from fedpriv.tasks.task import KnowsMultipliers

        if not isinstance(task, KnowsMultipliers):
            raise ValueError(
                f"side-information 'own': the task of {experiment} knows no multipliers; give "
                "it a method side_information() that returns a SideInformation, or leave "
                "precondition out"
            )
        return task.side_information()


def _known(side: SideInformation | None) -> SideInformation:
    assert side is not None
    return side


_SIDE = "What A is made of: what is known of public words, or the task's own multipliers."


@dataclass(frozen=True, slots=True, kw_only=True)
class Nowhere(Part):
    """Nothing is preconditioned."""

    kind: ClassVar[str] = "none"

    def in_steps(self, side: SideInformation | None) -> Mapping[str, np.ndarray]:
        """Return 1/A for local steps, by name; empty for nothing."""
        return {}

    def on_updates(self, side: SideInformation | None) -> Preconditioner | None:
        """Return what preconditions updates; None for nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class InSteps(Part):
    """Local steps are multiplied by 1/A."""

    kind: ClassVar[str] = "local"
    side_information: Rank | Frequency | TfIdf | OwnMultipliers = place(Rank(), _SIDE)

    def in_steps(self, side: SideInformation | None) -> Mapping[str, np.ndarray]:
        """Return 1/A."""
        return _known(side).multiplier

    def on_updates(self, side: SideInformation | None) -> Preconditioner | None:
        """Return nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnUpdates(Part):
    """Updates are multiplied by 1/A before they are bounded."""

    kind: ClassVar[str] = "update"
    side_information: Rank | Frequency | TfIdf | OwnMultipliers = place(Rank(), _SIDE)

    def in_steps(self, side: SideInformation | None) -> Mapping[str, np.ndarray]:
        """Return nothing."""
        return {}

    def on_updates(self, side: SideInformation | None) -> Preconditioner | None:
        """Return one A for the whole run."""
        return Fixed(multiplier=_known(side).multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class InBoth(Part):
    """Local steps are multiplied by 1/A, and updates are before they are bounded."""

    kind: ClassVar[str] = "both"
    side_information: Rank | Frequency | TfIdf | OwnMultipliers = place(Rank(), _SIDE)

    def in_steps(self, side: SideInformation | None) -> Mapping[str, np.ndarray]:
        """Return 1/A."""
        return _known(side).multiplier

    def on_updates(self, side: SideInformation | None) -> Preconditioner | None:
        """Return one A for the whole run."""
        return Fixed(multiplier=_known(side).multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class AndBack(Part):
    """Updates are multiplied by 1/A before they are bounded, the released mean by A."""

    kind: ClassVar[str] = "scale-then-privatise"
    side_information: Rank | Frequency | TfIdf | OwnMultipliers = place(Rank(), _SIDE)

    def in_steps(self, side: SideInformation | None) -> Mapping[str, np.ndarray]:
        """Return nothing."""
        return {}

    def on_updates(self, side: SideInformation | None) -> Preconditioner | None:
        """Return one A for the whole run, and its undoing."""
        return Fixed(multiplier=_known(side).multiplier, inverse=_known(side).inverse())


@dataclass(frozen=True, slots=True, kw_only=True)
class PreconditionerChoice:
    """What a choice makes.

    Attributes:
        preconditioner: None for none.
        side_information: What it knows and where from; None for nothing.
        promises: Whether releases promise anything under it: not if it looks at what is private.
    """

    preconditioner: Preconditioner | None
    side_information: SideInformation | None = None
    promises: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a preconditioner of examples is made among.

    Attributes:
        task: The examples.
        batch_size: Expected examples a step.
        num_steps: That are planned.
        statistics: The experiment's own; None for none.
    """

    task: CentralTask
    batch_size: float
    num_steps: int
    statistics: preconditioners.Statistics | None

    def public_gradient(self, batch: int | None) -> PublicGradient:
        """Return the gradient of public examples.

        Raises:
            ValueError: If there are none, or not so many.
        """
        # torch takes seconds to import, and declarations are read for `fedpriv --help`
        from fedpriv.training.per_example.example_sum import public_gradient

        return public_gradient(self.task.public_examples(), self.task.num_public, batch)

    def look(
        self,
        statistics: preconditioners.Statistics,
        *,
        public_batch: int | None,
        refresh: str,
        divide: str = "before",
    ) -> PreconditionerChoice:
        """Return the preconditioner of statistics of public gradients.

        Args:
            statistics: φ, ϕ and ψ.
            public_batch: Public examples a look; None for all of them.
            refresh: When they are renewed.
            divide: As `PublicMoments.divide`.
        """
        gradient = self.public_gradient(public_batch)
        every, batches = 1, 1
        if refresh == "epoch":
            every = max(1, round(self.task.num_train / self.batch_size))
            batches = max(1, self.task.num_public // (public_batch or self.task.num_public))
        return PreconditionerChoice(
            preconditioner=PublicMoments(
                gradient=gradient,
                statistics=statistics,
                refresh_every=every,
                batches=batches,
                divide=divide,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPreconditioned(Part):
    """Nothing."""

    kind: ClassVar[str] = "none"

    def choose(self, surroundings: Surroundings | None) -> PreconditionerChoice:
        """Return none."""
        return PreconditionerChoice(preconditioner=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTurns(Part):
    """DP²: plain rounds, and rounds that are preconditioned by them, in turns."""

    kind: ClassVar[str] = "delayed"

    decay: float = option(0.9, "β of the moments of past releases.", Range.FRACTION)
    regulariser: float = option(1e-3, "ε_s of A = √v + ε_s.", Range.ABOVE_ZERO)
    delay_plain: int = option(10, "Plain rounds in a turn.", Range.AT_LEAST_ONE)
    delay_preconditioned: int = option(10, "Preconditioned rounds in a turn.", Range.AT_LEAST_ONE)
    clip_ratio: float = option(
        1.0, "C of preconditioned rounds over C of plain ones.", Range.ABOVE_ZERO
    )
    rate_ratio: float = option(
        1.0, "Learning rate of preconditioned rounds over that of plain ones.", Range.ABOVE_ZERO
    )

    def choose(self, surroundings: Surroundings | None) -> PreconditionerChoice:
        """Return the preconditioner; it needs nothing but releases."""
        return PreconditionerChoice(
            preconditioner=Delayed(
                plain=self.delay_plain,
                preconditioned=self.delay_preconditioned,
                decay=self.decay,
                regulariser=self.regulariser,
                clip_ratio=self.clip_ratio,
                rate_ratio=self.rate_ratio,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPastReleases(Part):
    """Scaled by past releases, privatised, scaled back."""

    kind: ClassVar[str] = "past-releases"

    decay: float = option(0.9, "β of the moments of past releases.", Range.FRACTION)
    regulariser: float = option(1e-3, "ε_s of A = √v + ε_s.", Range.ABOVE_ZERO)

    def choose(self, surroundings: Surroundings | None) -> PreconditionerChoice:
        """Return the preconditioner; it needs nothing but releases."""
        made = PastReleases(decay=self.decay, regulariser=self.regulariser)
        return PreconditionerChoice(preconditioner=made)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBeforehand(Part):
    """A of what the task knows."""

    kind: ClassVar[str] = "side-information"

    side_information: str = option("frequency", "Which of the task's.")

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return one A for the whole run.

        Raises:
            ValueError: If the task does not know it.
        """
        side = surroundings.task.side_information(self.side_information)
        return PreconditionerChoice(
            preconditioner=Fixed(multiplier=side.multiplier), side_information=side
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicBatches(Part):
    """PDA-DPMD: one look at public examples a step."""

    kind: ClassVar[str] = "mirror-descent"

    public_batch: int | None = option(
        None, "Public examples a look; none for all of them.", Range.AT_LEAST_ONE
    )

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return mirror descent."""
        gradient = surroundings.public_gradient(self.public_batch)
        made = MirrorDescent(gradient=gradient, num_rounds=surroundings.num_steps)
        return PreconditionerChoice(preconditioner=made)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStatistics(Part):
    """Statistics of one's own, of public gradients."""

    kind: ClassVar[str] = "public-own"

    public_batch: int | None = option(
        None, "Public examples a look; none for all of them.", Range.AT_LEAST_ONE
    )
    refresh: Literal["step", "epoch"] = option(
        "step", "When statistics of public data are renewed."
    )

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return AdaDPS by them.

        Raises:
            ValueError: If the experiment has none.
        """
        if surroundings.statistics is None:
            raise ValueError("guide 'public-own' needs statistics=Statistics(...)")
        return surroundings.look(
            surroundings.statistics, public_batch=self.public_batch, refresh=self.refresh
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOfSquares(Part):
    """AdaGrad's statistics of public gradients."""

    kind: ClassVar[str] = "public-adagrad"

    regulariser: float = option(1e-3, "ε_s of A = √v + ε_s.", Range.ABOVE_ZERO)
    regulariser_inside: bool = option(False, "A = √(v + ε_s) instead of √v + ε_s.")
    public_batch: int | None = option(
        None, "Public examples a look; none for all of them.", Range.AT_LEAST_ONE
    )
    refresh: Literal["step", "epoch"] = option(
        "step", "When statistics of public data are renewed."
    )

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return AdaDPS by them."""
        rule = preconditioners.adagrad(regulariser=self.regulariser, inside=self.regulariser_inside)
        return surroundings.look(rule, public_batch=self.public_batch, refresh=self.refresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageOfSquares(Part):
    """RMSProp's statistics of public gradients."""

    kind: ClassVar[str] = "public-rmsprop"

    decay: float = option(0.9, "β of the moments.", Range.FRACTION)
    regulariser: float = option(1e-3, "ε_s of A = √v + ε_s.", Range.ABOVE_ZERO)
    regulariser_inside: bool = option(False, "A = √(v + ε_s) instead of √v + ε_s.")
    public_batch: int | None = option(
        None, "Public examples a look; none for all of them.", Range.AT_LEAST_ONE
    )
    refresh: Literal["step", "epoch"] = option(
        "step", "When statistics of public data are renewed."
    )

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return AdaDPS by them."""
        rule = preconditioners.rmsprop(
            self.decay, regulariser=self.regulariser, inside=self.regulariser_inside
        )
        return surroundings.look(rule, public_batch=self.public_batch, refresh=self.refresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class BothAverages(AverageOfSquares):
    """Adam's statistics of public gradients."""

    kind: ClassVar[str] = "public-adam"

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return AdaDPS by them."""
        rule = preconditioners.adam(
            self.decay, self.decay, regulariser=self.regulariser, inside=self.regulariser_inside
        )
        return surroundings.look(rule, public_batch=self.public_batch, refresh=self.refresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedStep(AverageOfSquares):
    """RMSProp's statistics of public gradients, which divide the step after the noise."""

    kind: ClassVar[str] = "r-pub"

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return DP-R-Pub, and with server momentum DP-Adam-Pub."""
        rule = preconditioners.rmsprop(
            self.decay, regulariser=self.regulariser, inside=self.regulariser_inside
        )
        return surroundings.look(
            rule, public_batch=self.public_batch, refresh=self.refresh, divide="step"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStatistics(Part):
    """RMSProp's statistics of private gradients: an oracle."""

    kind: ClassVar[str] = "ideal"

    decay: float = option(0.9, "β of the moments.", Range.FRACTION)
    regulariser: float = option(1e-3, "ε_s of A = √v + ε_s.", Range.ABOVE_ZERO)
    regulariser_inside: bool = option(False, "A = √(v + ε_s) instead of √v + ε_s.")

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return what no release promises anything under: it sees clean gradients."""
        from fedpriv.training.per_example.example_sum import public_gradient  # loads torch

        task = surroundings.task
        batch = min(task.num_train, math.ceil(surroundings.batch_size))
        side = SideInformation(
            multiplier={}, source="private", description="clean gradients of private examples"
        )
        made = PublicMoments(
            gradient=public_gradient(task.train, task.num_train, batch),
            statistics=preconditioners.rmsprop(
                self.decay, regulariser=self.regulariser, inside=self.regulariser_inside
            ),
        )
        return PreconditionerChoice(preconditioner=made, side_information=side, promises=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedMomentum(DividedStep):
    """RMSProp's statistics of public gradients, which divide the step; with server momentum."""

    kind: ClassVar[str] = "adam-pub"
