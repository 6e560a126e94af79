"""Preconditioners as parts: of side information, of public examples, or of past releases.

A new preconditioner is a `Preconditioner`; of examples, where it is made of the task, a
`PreconditionerRecipe`. New side information of public words is a `WordRule`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from fedpriv.experiments.options import kind_of
from fedpriv.mechanisms import SideInformation, preconditioners, side_information
from fedpriv.mechanisms.preconditioners import (
    Fixed,
    MirrorDescent,
    Preconditioner,
    PublicGradient,
    PublicMoments,
    Statistics,
)
from fedpriv.mechanisms.side_information import PublicWords
from fedpriv.parts import Fraction, NonNegativeInt, Part, PositiveFloat, PositiveInt
from fedpriv.tasks.task import Task
from fedpriv.training.per_example.example_sum import public_gradient

if TYPE_CHECKING:
    from fedpriv.tasks.central import CentralTask


class WordRule(Part, ABC):
    """Base of side information that follows from what is known of public words."""

    __slots__ = ()

    @abstractmethod
    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A of each word, float32 `(num_words,)`, and the rule in words."""

    def make(self, task: Task, experiment: str) -> SideInformation:
        """Return A of the task's words.

        Raises:
            ValueError: If it has none.
        """
        words = task.public_words()
        if words is None:
            raise ValueError(
                f"side-information {kind_of(self)!r} is made of public words, of which the task of "
                f"{experiment} has none; give it a method side_information() that returns a "
                "SideInformation and set side-information own, or leave precondition out"
            )
        rows, rule = self.rows(words)
        if words.num_pairs:
            rows = np.append(rows, np.full(words.num_pairs, rows[np.argmin(words.counts)]))
            rule += "; pairs of words as the rarest word"
        return SideInformation(
            multiplier={"kernel": rows.astype(np.float32).reshape(-1, 1)},
            source=words.source,
            description=f"{rule}, from {words.where}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank(WordRule):
    """A by rank among public words.

    Attributes:
        preconditioner_gain: Largest multiplier 1/A.
        preconditioner_top: How many of the commonest words are left alone.
    """

    kind: ClassVar[str] = "rank"

    preconditioner_gain: float = 200.0
    preconditioner_top: NonNegativeInt = 100

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A: 1 for the commonest words, the gain for the others."""
        gain, top, number = self.preconditioner_gain, self.preconditioner_top, len(words.counts)
        made = side_information.rank_multiplier(number, top=min(top, number), gain=gain)
        return made, f"rank (words beyond the {top} commonest are multiplied by {gain:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency(WordRule):
    """A by frequency among public words.

    Attributes:
        preconditioner_gain: Largest multiplier 1/A.
        preconditioner_power: Exponent of the frequency.
    """

    kind: ClassVar[str] = "frequency"

    preconditioner_gain: float = 200.0
    preconditioner_power: float = 1.0

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A: the inverse of a power of each word's frequency, at most the gain."""
        gain, power = self.preconditioner_gain, self.preconditioner_power
        made = side_information.frequency_multiplier(
            words.counts, words.num_sentences, cap=gain, power=power
        )
        rule = f"1 / token frequency, to the power {power:g}, at most {gain:g}"
        return made, f"frequency ({rule})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TfIdf(WordRule):
    """A by TF-IDF among public words.

    Attributes:
        preconditioner_gain: Largest multiplier 1/A.
    """

    kind: ClassVar[str] = "tf-idf"

    preconditioner_gain: float = 200.0

    def rows(self, words: PublicWords) -> tuple[np.ndarray, str]:
        """Return 1/A: each word's total TF-IDF over the largest, times the gain."""
        gain = self.preconditioner_gain
        made = gain * side_information.tf_idf_multiplier(
            words.counts, words.sentences, words.num_sentences
        )
        return made, f"tf-idf (total TF-IDF relative to the largest, times {gain:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMultipliers(Part):
    """A that the task gives."""

    kind: ClassVar[str] = "own"

    def make(self, task: Task, experiment: str) -> SideInformation:
        """Return the task's side information.

        Raises:
            ValueError: If it has none.
        """
        side = task.side_information()
        if side is None:
            raise ValueError(
                f"side-information 'own': the task of {experiment} knows no multipliers; give "
                "it a method side_information() that returns a SideInformation, or leave "
                "precondition out"
            )
        return side


SideInformationPart = WordRule | OwnMultipliers


@dataclass(frozen=True, slots=True, kw_only=True)
class Nowhere(Part):
    """Nothing is preconditioned."""

    kind: ClassVar[str] = "none"

    def in_steps(self, side: SideInformation | None) -> Mapping[str, np.ndarray]:
        """Return 1/A for local steps, by name; empty for none."""
        return {}

    def on_updates(self, side: SideInformation | None) -> Preconditioner:
        """Return the preconditioner of updates."""
        return Preconditioner()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed(Nowhere):
    """Base of places where side information acts.

    Attributes:
        side_information: What A is made of: what is known of public words, or the task's own
            multipliers.
    """

    side_information: SideInformationPart = Rank()


@dataclass(frozen=True, slots=True, kw_only=True)
class InSteps(_Placed):
    """Local steps are multiplied by 1/A."""

    kind: ClassVar[str] = "local"

    def in_steps(self, side: SideInformation | None) -> Mapping[str, np.ndarray]:
        """Return 1/A."""
        assert side is not None
        return side.multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class OnUpdates(_Placed):
    """Updates are multiplied by 1/A before they are bounded."""

    kind: ClassVar[str] = "update"

    def on_updates(self, side: SideInformation | None) -> Preconditioner:
        """Return one A for the whole run."""
        assert side is not None
        return Fixed(multiplier=side.multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class InBoth(OnUpdates):
    """Local steps are multiplied by 1/A, and updates are before they are bounded."""

    kind: ClassVar[str] = "both"

    in_steps = InSteps.in_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AndBack(_Placed):
    """Updates are multiplied by 1/A before they are bounded, the released mean by A."""

    kind: ClassVar[str] = "scale-then-privatise"

    def on_updates(self, side: SideInformation | None) -> Preconditioner:
        """Return one A for the whole run, and its inverse."""
        assert side is not None
        return Fixed(multiplier=side.multiplier, inverse=side.inverse())


Precondition = Nowhere | InSteps | OnUpdates | InBoth | AndBack


@dataclass(frozen=True, slots=True, kw_only=True)
class PreconditionerChoice:
    """A preconditioner, and what it knows.

    Attributes:
        preconditioner: It.
        side_information: What it knows and where from; None for nothing.
        private: Whether releases are private under it: not if it looks at private examples.
    """

    preconditioner: Preconditioner
    side_information: SideInformation | None = None
    private: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Inputs from which a preconditioner of examples may be made.

    Attributes:
        task: The examples.
        batch_size: Expected examples a step.
        num_steps: Planned steps.
    """

    task: CentralTask
    batch_size: float
    num_steps: int

    def public_gradient(self, batch: int | None) -> PublicGradient:
        """Return the gradient of public examples.

        Raises:
            ValueError: If there are none, or not so many.
        """
        return public_gradient(self.task.public_examples(), self.task.num_public, batch)


class PreconditionerRecipe(Part, ABC):
    """Base of what makes a preconditioner of examples out of the task and its public examples."""

    __slots__ = ()

    @abstractmethod
    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return the preconditioner, and what it knows.

        Raises:
            ValueError: If the task has not got what it is made of.
        """


def choose_preconditioner(
    part: Preconditioner | PreconditionerRecipe, surroundings: Surroundings
) -> PreconditionerChoice:
    """Return a preconditioner, or what a recipe makes; errors as `PreconditionerRecipe.choose`."""
    if isinstance(part, PreconditionerRecipe):
        return part.choose(surroundings)
    return PreconditionerChoice(preconditioner=part)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBeforehand(PreconditionerRecipe):
    """A of the task's side information.

    Attributes:
        side_information: Which of the task's.
    """

    kind: ClassVar[str] = "side-information"

    side_information: str = "frequency"

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
class PublicBatches(PreconditionerRecipe):
    """PDA-DPMD: mirror descent with one gradient of public examples a step.

    Attributes:
        public_batch: Public examples a look; none for all of them.
    """

    kind: ClassVar[str] = "mirror-descent"

    public_batch: PositiveInt | None = None

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return mirror descent."""
        gradient = surroundings.public_gradient(self.public_batch)
        made = MirrorDescent(gradient=gradient, num_rounds=surroundings.num_steps)
        return PreconditionerChoice(preconditioner=made)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicStatistics(PreconditionerRecipe, ABC):
    """Base of AdaDPS with statistics of public gradients.

    A class that states its `kind` and its `statistics` is one that experiments take.

    Attributes:
        public_batch: Public examples a look; none for all of them.
        refresh: When public gradients are looked at: one batch each step, or once an epoch as many
            batches as the public examples make.
    """

    divides: ClassVar[Literal["before", "step"]] = "before"  # As `PublicMoments.divide`.

    public_batch: PositiveInt | None = None
    refresh: Literal["step", "epoch"] = "step"

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return the preconditioner by statistics of public gradients.

        Raises:
            ValueError: If there are not so many public examples.
        """
        task, batch, every, batches = surroundings.task, self.public_batch, 1, 1
        if self.refresh == "epoch":
            every = max(1, round(task.num_train / surroundings.batch_size))
            batches = max(1, task.num_public // (batch or task.num_public))
        return PreconditionerChoice(
            preconditioner=PublicMoments(
                gradient=surroundings.public_gradient(batch),
                statistics=self.statistics(),
                refresh_every=every,
                batches=batches,
                divide=self.divides,
            )
        )

    @abstractmethod
    def statistics(self) -> Statistics:
        """Return φ, ϕ and ψ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOfSquares(PublicStatistics):
    """AdaDPS with AdaGrad's statistics of public gradients.

    Attributes:
        regulariser: ε_s of A = √v + ε_s.
        regulariser_inside: A = √(v + ε_s) instead of √v + ε_s.
    """

    kind: ClassVar[str] = "public-adagrad"

    regulariser: PositiveFloat = 1e-3
    regulariser_inside: bool = False

    def statistics(self) -> Statistics:
        """Return AdaGrad's."""
        return preconditioners.adagrad(regulariser=self.regulariser, inside=self.regulariser_inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageOfSquares(SumOfSquares):
    """AdaDPS with RMSProp's statistics of public gradients.

    Attributes:
        decay: β of the moments.
    """

    kind: ClassVar[str] = "public-rmsprop"

    decay: Fraction = 0.9

    def statistics(self) -> Statistics:
        """Return RMSProp's."""
        return preconditioners.rmsprop(
            self.decay, regulariser=self.regulariser, inside=self.regulariser_inside
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BothAverages(AverageOfSquares):
    """AdaDPS with Adam's statistics of public gradients."""

    kind: ClassVar[str] = "public-adam"

    def statistics(self) -> Statistics:
        """Return Adam's."""
        return preconditioners.adam(
            self.decay, self.decay, regulariser=self.regulariser, inside=self.regulariser_inside
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedStep(AverageOfSquares):
    """DP-R-Pub: RMSProp's statistics of public gradients divide the step, after the noise.

    With optimizer "ema-momentum" it is DP-Adam-Pub.
    """

    kind: ClassVar[str] = "r-pub"
    divides: ClassVar[Literal["before", "step"]] = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStatistics(PreconditionerRecipe):
    """RMSProp's statistics of private gradients: an oracle, under which nothing is private.

    Attributes:
        decay: β of the moments.
        regulariser: ε_s of A = √v + ε_s.
        regulariser_inside: A = √(v + ε_s) instead of √v + ε_s.
    """

    kind: ClassVar[str] = "ideal"

    decay: Fraction = 0.9
    regulariser: PositiveFloat = 1e-3
    regulariser_inside: bool = False

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return a preconditioner that sees clean gradients."""
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
        return PreconditionerChoice(preconditioner=made, side_information=side, private=False)
