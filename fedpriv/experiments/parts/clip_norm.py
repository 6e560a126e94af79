"""Whether the clip norm of users' updates stays or follows their norms (option `clip-norm`).

Each part makes what depends on it: the bound of what a user sends, who sends it, and the averaging.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.experiments.composing.composition import Slot
from fedpriv.experiments.composing.options import option
from fedpriv.mechanisms import Bound, Clip
from fedpriv.mechanisms.preconditioners import NoPreconditioner, Preconditioner
from fedpriv.ranges import Range

if TYPE_CHECKING:
    from fedpriv.training.adaptive_clipping import AdaptiveClip
    from fedpriv.training.federated_averaging import FederatedAveraging
    from fedpriv.training.work import LocalTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """It stays, whatever bounds updates."""

    def bound(self, bound: Bound) -> Bound:
        """Return the bound as it is."""
        return bound

    def sending(self, trainer: LocalTrainer, bound: Bound) -> LocalTrainer:
        """Return the trainer as it is: its update is what a user sends."""
        return trainer

    def averaging(
        self, bound: Bound, preconditioner: Preconditioner, **parts: Any
    ) -> FederatedAveraging:
        """Return plain averaging."""
        from fedpriv.training.federated_averaging import FederatedAveraging

        return FederatedAveraging(preconditioner=preconditioner, **parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """It follows a quantile of the users' norms, by a noisy count under the same charge."""

    clip_least: float | None = option(
        None, "The clip norm never falls below; none for a thousandth of the first.",
        Range.ABOVE_ZERO,
    )  # fmt: skip
    clip_most: float | None = option(
        None, "It never rises above; none for a thousand times the first.", Range.ABOVE_ZERO
    )
    clip_quantile: float = option(
        0.5, "Share of users whose updates are to be shorter.", Range.BETWEEN
    )
    clip_rate: float = option(0.2, "Of its geometric steps.", Range.ABOVE_ZERO)
    clip_count_weight: float = option(
        0.2, "What the count takes of a user's vector; the update has √(1 - its square).",
        Range.BETWEEN,
    )  # fmt: skip

    def bound(self, bound: Bound) -> Bound:
        """Return the bound of a user's vector: update over clip norm, and count."""
        return Clip(l2_clip_norm=1.0)

    def sending(self, trainer: LocalTrainer, bound: Bound) -> LocalTrainer:
        """Return a trainer whose users send update and count.

        Raises:
            ValueError: If users are trained together, and their updates never seen alone.
        """
        from fedpriv.training.adaptive_clipping import CountingTrainer
        from fedpriv.training.work import LocalTrainer

        if not isinstance(trainer, LocalTrainer):
            raise ValueError(
                f"clip-norm 'adaptive' needs users who train one by one, which "
                f"{type(trainer).__name__} does not do; use clip-norm 'fixed'"
            )
        return CountingTrainer(trainer=trainer, clip=self._clip(bound))

    def averaging(
        self, bound: Bound, preconditioner: Preconditioner, **parts: Any
    ) -> FederatedAveraging:
        """Return averaging whose clip norm begins with the bound's.

        Raises:
            ValueError: If updates are preconditioned before they are bounded.
        """
        from fedpriv.training.adaptive_clipping import AdaptivelyClipped

        if not isinstance(preconditioner, NoPreconditioner):
            raise ValueError(
                "clip-norm 'adaptive' counts norms of updates as users make them: use precondition "
                "'local' or 'none' and no guide, or clip-norm 'fixed'"
            )
        return AdaptivelyClipped(clip=self._clip(bound), **parts)

    def _clip(self, bound: Bound) -> AdaptiveClip:
        from fedpriv.training.adaptive_clipping import AdaptiveClip

        first = bound.l2_bound
        return AdaptiveClip(
            initial=first,
            least=first / 1e3 if self.clip_least is None else self.clip_least,
            most=first * 1e3 if self.clip_most is None else self.clip_most,
            quantile=self.clip_quantile,
            rate=self.clip_rate,
            count_weight=self.clip_count_weight,
        )


CLIP_NORM = Slot(
    name="clip-norm",
    help="Whether the clip norm stays or follows a quantile of the users' norms.",
    choices={"fixed": Fixed, "adaptive": Adaptive},
    within=("bound", frozenset({"clip"})),
    before="fixed",
)
