"""The parts that an experiment whose unit is an example is composed of, and their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpriv.experiments.parts import shared
from fedpriv.experiments.parts.composition import Slot
from fedpriv.experiments.parts.options import option
from fedpriv.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """How long, and how many examples a step."""

    batch_size: float = option(
        64.0, "Expected examples a step; each has its own independent draw.", Range.ABOVE_ZERO
    )
    epochs: float | None = option(
        None, "Passes over the training set, in expectation; sets the steps.", Range.ABOVE_ZERO
    )
    steps: int | None = option(None, "Steps; none takes them from epochs.", Range.AT_LEAST_ONE)
    micro_batch: int = option(
        1, "Examples whose mean is bounded as one; above 1 sensitivity doubles.",
        Range.AT_LEAST_ONE,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How the learning rate changes."""

    schedule: Literal["constant", "step", "cyclic", "inverse-root"] = option(
        "constant", "Of the learning rate: a tenth at half, one triangle, or α/√t."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Training on public examples before, without noise."""

    warm_start_epochs: int = option(
        0, "Epochs on the public set before, without noise.", Range.AT_LEAST_ZERO
    )
    warm_start_rate: float = option(0.1, "Their learning rate.", Range.ABOVE_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBeforehand:
    """A of what the task knows."""

    side_information: str = option("frequency", "Which of the task's.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicBatches:
    """One look at public examples a step."""

    public_batch: int | None = option(
        None, "Public examples a look; none for all of them.", Range.AT_LEAST_ONE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStatistics:
    """Statistics of one's own, of public gradients."""

    public_batch: int | None = option(
        None, "Public examples a look; none for all of them.", Range.AT_LEAST_ONE
    )
    refresh: Literal["step", "epoch"] = option(
        "step", "When statistics of public data are renewed."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageOfSquares:
    """RMSProp's and Adam's statistics of public gradients."""

    decay: float = option(0.9, "β of the moments.", Range.FRACTION)
    regulariser: float = option(1e-3, "ε_s of A = √v + ε_s.", Range.ABOVE_ZERO)
    regulariser_inside: bool = option(False, "A = √(v + ε_s) instead of √v + ε_s.")
    public_batch: int | None = option(
        None, "Public examples a look; none for all of them.", Range.AT_LEAST_ONE
    )
    refresh: Literal["step", "epoch"] = option(
        "step", "When statistics of public data are renewed."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStatistics:
    """RMSProp's statistics of private gradients: an oracle."""

    decay: float = option(0.9, "β of the moments.", Range.FRACTION)
    regulariser: float = option(1e-3, "ε_s of A = √v + ε_s.", Range.ABOVE_ZERO)
    regulariser_inside: bool = option(False, "A = √(v + ε_s) instead of √v + ε_s.")


SLOTS = (
    Slot(name="length", help="How long.", choices={"": Batches}),
    Slot(
        name="sampling",
        help="How batches are drawn.",
        choices={"poisson": shared.Nothing, "fixed": shared.Nothing},
    ),
    shared.BOUND,
    shared.NOISE,
    shared.PROMISE,
    Slot(
        name="optimizer",
        help="What is made of the released mean gradient.",
        choices={
            "sgd": shared.Sgd,
            "momentum": shared.Momentum,
            "ema-momentum": shared.Momentum,
            "adam": shared.AdaptiveMomentum,
            "rmsprop": shared.Adaptive,
            "adagrad": shared.Adaptive,
        },
    ),
    Slot(name="schedule", help="Of the learning rate.", choices={"": Schedule}),
    Slot(
        name="guide",
        help="What public data or past releases add.",
        choices={
            "none": shared.Nothing,
            "side-information": KnownBeforehand,
            "public-rmsprop": AverageOfSquares,
            "public-adam": AverageOfSquares,
            "public-adagrad": SumOfSquares,
            "public-own": OwnStatistics,
            "ideal": CleanStatistics,
            "r-pub": AverageOfSquares,
            "adam-pub": AverageOfSquares,
            "mirror-descent": PublicBatches,
            "delayed": shared.DelayedGuide,
            "past-releases": shared.PastReleasesGuide,
        },
    ),
    Slot(name="warm start", help="Training on public examples before.", choices={"": WarmStart}),
    shared.AGGREGATE,
    shared.RUN,
)
