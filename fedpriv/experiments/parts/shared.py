"""The parts that experiments of either unit are composed of, each with its own options.

A part is a frozen dataclass; its fields are its options, with default, range and one line of help.
An option exists only where its part is chosen. `users` and `examples` say which parts there are
to choose from, and what is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpriv.experiments.parts.composition import Slot
from fedpriv.experiments.parts.options import option
from fedpriv.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A part without options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the ε is of."""

    delta: float | None = option(None, "δ; none for n^-1.1.", Range.BETWEEN)
    relation: Literal["add-remove", "replace-one"] = option(
        "add-remove", "Neighbouring relation: how two neighbouring data sets differ."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """Updates longer than C are scaled to C."""

    l2_clip_norm: float = option(1.0, "C, the longest a bounded update may be.", Range.ABOVE_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalised:
    """Updates are scaled to C Δ/(r + ‖Δ‖)."""

    l2_clip_norm: float = option(1.0, "C, the length of a bounded update.", Range.ABOVE_ZERO)
    normalise_regulariser: float = option(0.0, "r of C Δ/(r + ‖Δ‖).", Range.AT_LEAST_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise:
    """Noise on the sum of bounded updates."""

    noise_multiplier: float | None = option(
        None, "Stddev of the noise over the sum's sensitivity; none to calibrate.",
        Range.AT_LEAST_ZERO,
    )  # fmt: skip
    target_epsilon: float | None = option(
        None, "Calibrates the noise, and ends a run before it would be exceeded.",
        Range.ABOVE_ZERO,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """An exponential moving average of the released models."""

    ema_decay: float = option(0.9, "Weight of the past in the average.", Range.FRACTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How a run is repeated, and how often it is looked at."""

    seed: int = option(0, "Of the simulation.")
    eval_every: int = option(
        10, "Rounds between evaluations; the last is always evaluated.", Range.AT_LEAST_ONE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """Plain steps."""

    learning_rate: float = option(0.1, "Step size on the released mean.", Range.ABOVE_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum:
    """Steps along an average of the past."""

    learning_rate: float = option(0.1, "Step size on the released mean.", Range.ABOVE_ZERO)
    momentum: float = option(0.9, "Weight of the past.", Range.FRACTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Steps divided by √v, v an average of squares."""

    learning_rate: float = option(0.1, "Step size on the released mean.", Range.ABOVE_ZERO)
    adaptivity: float = option(1e-8, "Added to √v.", Range.ABOVE_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveMomentum:
    """Steps along an average of the past, divided by √v."""

    learning_rate: float = option(0.1, "Step size on the released mean.", Range.ABOVE_ZERO)
    momentum: float = option(0.9, "Weight of the past, β₁.", Range.FRACTION)
    adaptivity: float = option(1e-8, "Added to √v.", Range.ABOVE_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedGuide:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PastReleasesGuide:
    """Scaled by past releases, privatised, scaled back."""

    decay: float = option(0.9, "β of the moments of past releases.", Range.FRACTION)
    regulariser: float = option(1e-3, "ε_s of A = √v + ε_s.", Range.ABOVE_ZERO)


PROMISE = Slot(name="promise", help="What the ε is of.", choices={"": Promise})
BOUND = Slot(
    name="bound",
    help="How each update is bounded.",
    choices={"clip": Clipped, "normalise": Normalised, "none": Nothing},
)
NOISE = Slot(
    name="noise",
    help="What is added to the sum.",
    choices={"gaussian": GaussianNoise, "none": Nothing},
)
AGGREGATE = Slot(
    name="aggregate",
    help="What is made of the released models.",
    choices={"none": Nothing, "ema": Average},
)
RUN = Slot(name="run", help="How it is run.", choices={"": Keeping})
