"""Bounds of an update or gradient, as parts.

A new bound is a `Bound` and a part that makes it, named in `UserBound` or `ExampleBound`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fedpriv.mechanisms import AdaptiveClip, Bound, Clip, Normalise, Unbounded
from fedpriv.parts import Between, NonNegativeFloat, Part, PositiveFloat


class BoundPart(Part):
    """Base of bounds: one that stays the same in all rounds, on the update itself."""

    __slots__ = ()

    @abstractmethod
    def make(self) -> Bound:
        """Return the bound of an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped(BoundPart):
    """Updates longer than C are scaled to C.

    Attributes:
        l2_clip_norm: C, the longest a bounded update may be.
    """

    kind: ClassVar[str] = "clip"

    l2_clip_norm: PositiveFloat = 1.0

    def make(self) -> Bound:
        """Return the bound."""
        return Clip(l2_clip_norm=self.l2_clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalised(BoundPart):
    """Updates are scaled to C Δ/(r + ‖Δ‖).

    Attributes:
        l2_clip_norm: C, the length of a bounded update.
        normalise_regulariser: r of C Δ/(r + ‖Δ‖).
    """

    kind: ClassVar[str] = "normalise"

    l2_clip_norm: PositiveFloat = 1.0
    normalise_regulariser: NonNegativeFloat = 0.0

    def make(self) -> Bound:
        """Return the bound."""
        return Normalise(l2_clip_norm=self.l2_clip_norm, regulariser=self.normalise_regulariser)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBound(BoundPart):
    """Updates are left as they are."""

    kind: ClassVar[str] = "none"

    def make(self) -> Bound:
        """Return a bound that changes nothing."""
        return Unbounded()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Part):
    """The clip norm stays the same."""

    kind: ClassVar[str] = "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive(Part):
    """The clip norm follows a quantile of users' norms, by a noisy count under the same charge.

    Attributes:
        clip_least: The clip norm never falls below; none for a thousandth of the first.
        clip_most: It never rises above; none for a thousand times the first.
        clip_quantile: Share of users whose updates are to be shorter.
        clip_rate: Of its geometric steps.
        clip_count_weight: What the count takes of a user's vector; the update has √(1 - its
            square).
    """

    kind: ClassVar[str] = "adaptive"

    clip_least: PositiveFloat | None = None
    clip_most: PositiveFloat | None = None
    clip_quantile: Between = 0.5
    clip_rate: PositiveFloat = 0.2
    clip_count_weight: Between = 0.2

    def make(self, first: float) -> AdaptiveClip:
        """Return the bound whose clip norm begins with `first`."""
        return AdaptiveClip(
            initial=first,
            least=first / 1e3 if self.clip_least is None else self.clip_least,
            most=first * 1e3 if self.clip_most is None else self.clip_most,
            quantile=self.clip_quantile,
            rate=self.clip_rate,
            count_weight=self.clip_count_weight,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptableClip(Clipped):
    """Updates longer than C are scaled to C, which may follow their norms.

    Attributes:
        clip_norm: Whether the clip norm stays or follows a quantile of the users' norms.
    """

    clip_norm: Fixed | Adaptive = Fixed()

    def make(self) -> Bound:
        """Return the bound of the update, or the one that adapts."""
        if isinstance(self.clip_norm, Adaptive):
            return self.clip_norm.make(self.l2_clip_norm)
        return Clipped.make(self)


UserBound = AdaptableClip | Normalised | NoBound
ExampleBound = Clipped | Normalised | NoBound
