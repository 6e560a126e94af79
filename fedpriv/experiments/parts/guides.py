"""Choices of a preconditioner (option `guide`): what public data or past releases add.

A new one is a preconditioner in `fedpriv.mechanisms` and a part here that makes it. One that learns
from past releases, which experiments of either unit have, goes into `_OF_RELEASES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedpriv.experiments.composing.options import option
from fedpriv.mechanisms import SideInformation, preconditioners
from fedpriv.mechanisms.preconditioners import (
    Delayed,
    Fixed,
    MirrorDescent,
    PastReleases,
    Preconditioner,
    PublicGradient,
    PublicMoments,
)
from fedpriv.ranges import Range

if TYPE_CHECKING:
    from fedpriv.tasks.central import CentralTask


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
class NotPreconditioned:
    """Nothing."""

    def choose(self, surroundings: Surroundings | None) -> PreconditionerChoice:
        """Return none."""
        return PreconditionerChoice(preconditioner=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTurns:
    """DP²: plain rounds, and rounds that are preconditioned by them, in turns."""

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
class ByPastReleases:
    """Scaled by past releases, privatised, scaled back."""

    decay: float = option(0.9, "β of the moments of past releases.", Range.FRACTION)
    regulariser: float = option(1e-3, "ε_s of A = √v + ε_s.", Range.ABOVE_ZERO)

    def choose(self, surroundings: Surroundings | None) -> PreconditionerChoice:
        """Return the preconditioner; it needs nothing but releases."""
        made = PastReleases(decay=self.decay, regulariser=self.regulariser)
        return PreconditionerChoice(preconditioner=made)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBeforehand:
    """A of what the task knows."""

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
class PublicBatches:
    """PDA-DPMD: one look at public examples a step."""

    public_batch: int | None = option(
        None, "Public examples a look; none for all of them.", Range.AT_LEAST_ONE
    )

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return mirror descent."""
        gradient = surroundings.public_gradient(self.public_batch)
        made = MirrorDescent(gradient=gradient, num_rounds=surroundings.num_steps)
        return PreconditionerChoice(preconditioner=made)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStatistics:
    """Statistics of one's own, of public gradients."""

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
class SumOfSquares:
    """AdaGrad's statistics of public gradients."""

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
class AverageOfSquares:
    """RMSProp's statistics of public gradients."""

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

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return AdaDPS by them."""
        rule = preconditioners.adam(
            self.decay, self.decay, regulariser=self.regulariser, inside=self.regulariser_inside
        )
        return surroundings.look(rule, public_batch=self.public_batch, refresh=self.refresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedStep(AverageOfSquares):
    """RMSProp's statistics of public gradients, which divide the step after the noise."""

    def choose(self, surroundings: Surroundings) -> PreconditionerChoice:
        """Return DP-R-Pub, and with server momentum DP-Adam-Pub."""
        rule = preconditioners.rmsprop(
            self.decay, regulariser=self.regulariser, inside=self.regulariser_inside
        )
        return surroundings.look(
            rule, public_batch=self.public_batch, refresh=self.refresh, divide="step"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStatistics:
    """RMSProp's statistics of private gradients: an oracle."""

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


_OF_RELEASES: Mapping[str, type] = {"delayed": ByTurns, "past-releases": ByPastReleases}
OF_USERS: Mapping[str, type] = {"none": NotPreconditioned, **_OF_RELEASES}
OF_EXAMPLES: Mapping[str, type] = {
    "none": NotPreconditioned,
    "side-information": KnownBeforehand,
    "public-rmsprop": AverageOfSquares,
    "public-adam": BothAverages,
    "public-adagrad": SumOfSquares,
    "public-own": OwnStatistics,
    "ideal": CleanStatistics,
    "r-pub": DividedStep,
    "adam-pub": DividedStep,
    "mirror-descent": PublicBatches,
    **_OF_RELEASES,
}
