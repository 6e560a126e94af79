"""The parts that experiments of either unit are composed of, each with its own options.

A part is a frozen dataclass; its fields are its options, with default, range and one line of help.
An option exists only where its part is chosen. A part makes its own object, so that a new one is
said here, next to the object, and nowhere else. `users` and `examples` say which parts there are to
choose from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpriv.experiments.composing.composition import Slot
from fedpriv.experiments.composing.options import option
from fedpriv.mechanisms import Bound, Clip, Normalise, Unbounded
from fedpriv.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the ε is of."""

    delta: float | None = option(None, "δ; none for n^-1.1.", Range.BETWEEN)
    relation: Literal["add-remove", "replace-one", "zero-out"] = option(
        "add-remove", "Neighbouring relation: how two neighbouring data sets differ."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """Updates longer than C are scaled to C."""

    l2_clip_norm: float = option(1.0, "C, the longest a bounded update may be.", Range.ABOVE_ZERO)

    def make(self) -> Bound:
        """Return the bound."""
        return Clip(l2_clip_norm=self.l2_clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalised:
    """Updates are scaled to C Δ/(r + ‖Δ‖)."""

    l2_clip_norm: float = option(1.0, "C, the length of a bounded update.", Range.ABOVE_ZERO)
    normalise_regulariser: float = option(0.0, "r of C Δ/(r + ‖Δ‖).", Range.AT_LEAST_ZERO)

    def make(self) -> Bound:
        """Return the bound."""
        return Normalise(l2_clip_norm=self.l2_clip_norm, regulariser=self.normalise_regulariser)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBound:
    """Updates are left as they are."""

    def make(self) -> Bound:
        """Return what bounds nothing."""
        return Unbounded()


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How a run is repeated, and how often it is looked at."""

    seed: int = option(0, "Of the simulation.")
    eval_every: int = option(
        10, "Rounds between evaluations; the last is always evaluated.", Range.AT_LEAST_ONE
    )


AVERAGING = ("method", frozenset({"averaging"}))
"""With what slots of averaging are there."""

BOUND = Slot(
    name="bound",
    help="How each update is bounded.",
    choices={"clip": Clipped, "normalise": Normalised, "none": NoBound},
    within=AVERAGING,
)
RUN = Slot(name="run", help="How it is run.", choices={"": Keeping})
