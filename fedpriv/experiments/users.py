"""Slots and parts of an experiment whose unit is a user (federated training)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedpriv.experiments.mechanism import Clipped
from fedpriv.experiments.options import Part, option, place
from fedpriv.mechanisms import Bound, Clip
from fedpriv.mechanisms.preconditioners import NoPreconditioner, Preconditioner
from fedpriv.privacy.sampling import Sampler, sampler_of
from fedpriv.ranges import Range

if TYPE_CHECKING:
    from fedpriv.training.adaptive_clipping import AdaptiveClip
    from fedpriv.training.federated_averaging import FederatedAveraging
    from fedpriv.training.local.schedule import Schedule
    from fedpriv.training.work import LocalTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Part):
    """It stays, whatever bounds updates."""

    kind: ClassVar[str] = "fixed"

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
class Adaptive(Part):
    """It follows a quantile of the users' norms, by a noisy count under the same charge."""

    kind: ClassVar[str] = "adaptive"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptableClip(Clipped):
    """Updates longer than C are scaled to C, which may follow their norms."""

    clip_norm: Fixed | Adaptive = place(
        Fixed(), "Whether the clip norm stays or follows a quantile of the users' norms."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonCohorts(Part):
    """Every user's own independent Bernoulli draw."""

    kind: ClassVar[str] = "poisson"

    cohort: float | None = option(
        None, "Expected cohort size; none for a twentieth of the roster.", Range.ABOVE_ZERO
    )
    cohort_cap: int | None = option(None, "Largest cohort; none for no cap.", Range.AT_LEAST_ONE)

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return who draws.

        Raises:
            ValueError: If there are not so many users.
        """
        return sampler_of("poisson", num_users, _size(self.cohort, num_users), self.cohort_cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCohorts(Part):
    """So many users each round."""

    kind: ClassVar[str] = "fixed"

    cohort: float | None = option(
        None, "Cohort size; none for a twentieth of the roster.", Range.ABOVE_ZERO
    )

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return who draws.

        Raises:
            ValueError: If there are not so many users, or the size is not whole.
        """
        return sampler_of("fixed", num_users, _size(self.cohort, num_users))


def _size(cohort: float | None, num_users: int) -> float:
    return max(1.0, num_users / 20) if cohort is None else cohort


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd(Part):
    """What a user does."""

    learning_rate: float = option(1.0, "Step size of local SGD.", Range.ABOVE_ZERO)
    batch_size: int = option(100, "Examples a local step.", Range.AT_LEAST_ONE)
    epochs: int = option(1, "Local passes.", Range.AT_LEAST_ONE)
    max_examples_per_user: int = option(256, "Cap of a user's work.", Range.AT_LEAST_ONE)

    def schedule(self) -> Schedule:
        """Return how much each user works."""
        from fedpriv.training.local.schedule import Schedule

        return Schedule(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            max_examples=self.max_examples_per_user,
        )
