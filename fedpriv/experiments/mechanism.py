"""Parts of the mechanism: bounds, noise, samplers with separated participations, and the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from fedpriv.experiments.options import Part, option
from fedpriv.mechanisms import Bound, Clip, Normalise, Unbounded
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.privatizer import Participation, Privatizer
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import CyclicSampler, Sampler, SeparatedSampler
from fedpriv.ranges import Range, positive_float

if TYPE_CHECKING:
    from fedpriv.mechanisms.correlated.noise import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped(Part):
    """Updates longer than C are scaled to C."""

    kind: ClassVar[str] = "clip"

    l2_clip_norm: float = option(1.0, "C, the longest a bounded update may be.", Range.ABOVE_ZERO)

    def make(self) -> Bound:
        """Return the bound."""
        return Clip(l2_clip_norm=self.l2_clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalised(Part):
    """Updates are scaled to C Δ/(r + ‖Δ‖)."""

    kind: ClassVar[str] = "normalise"

    l2_clip_norm: float = option(1.0, "C, the length of a bounded update.", Range.ABOVE_ZERO)
    normalise_regulariser: float = option(0.0, "r of C Δ/(r + ‖Δ‖).", Range.AT_LEAST_ZERO)

    def make(self) -> Bound:
        """Return the bound."""
        return Normalise(l2_clip_norm=self.l2_clip_norm, regulariser=self.normalise_regulariser)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBound(Part):
    """Updates are left as they are."""

    kind: ClassVar[str] = "none"

    def make(self) -> Bound:
        """Return what bounds nothing."""
        return Unbounded()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedCohorts(Part):
    """Cohorts of those whose last round is far enough back."""

    kind: ClassVar[str] = "separated"

    cohort: float | None = option(
        None, "Cohort size, whole; none for a twentieth of the roster.", Range.AT_LEAST_ONE
    )
    min_separation: int | None = option(
        None, "A user's rounds i and j have |i - j| >= this; none for as cohorts allow.",
        Range.AT_LEAST_ONE,
    )  # fmt: skip
    max_participations: int | None = option(
        None, "Rounds of one user at most; none for as many as fit.", Range.AT_LEAST_ONE
    )

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return who draws.

        Raises:
            ValueError: If the size is not whole, or there are too few users.
        """
        size = max(1.0, num_users // 20) if self.cohort is None else self.cohort
        if not float(size).is_integer():
            raise ValueError(f"a cohort of {size:g} users is not whole; give a whole number")
        apart = (
            max(1, num_users // int(size)) if self.min_separation is None else self.min_separation
        )
        return SeparatedSampler(
            num_users=num_users,
            size=int(size),
            min_separation=apart,
            most=_most(self.max_participations, apart, num_rounds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicCohorts(Part):
    """Groups that take turns, whole or with independent draws within."""

    kind: ClassVar[str] = "cyclic"

    min_separation: int = option(
        20, "How many groups, and so how many rounds until one comes back.", Range.AT_LEAST_ONE
    )
    cohort: float | None = option(
        None,
        "Mean cohort, of independent draws within a group; none for whole groups.",
        Range.ABOVE_ZERO,
    )
    max_participations: int | None = option(
        None, "Rounds of one user at most; none for as many as fit.", Range.AT_LEAST_ONE
    )

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return who draws.

        Raises:
            ValueError: If there are fewer users than groups, or a cohort is above a group.
        """
        return CyclicSampler(
            num_users=num_users,
            groups=self.min_separation,
            mean=self.cohort,
            most=_most(self.max_participations, self.min_separation, num_rounds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedBatches(Part):
    """Batches of those whose last step is far enough back."""

    kind: ClassVar[str] = "separated"

    min_separation: int | None = option(
        None, "An example's steps i and j have |i - j| >= this; none for as batches allow.",
        Range.AT_LEAST_ONE,
    )  # fmt: skip
    max_participations: int | None = option(
        None, "Steps of one example at most; none for as many as fit.", Range.AT_LEAST_ONE
    )

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return who draws; errors as of `SeparatedCohorts`."""
        cohorts = SeparatedCohorts(
            cohort=batch_size,
            min_separation=self.min_separation,
            max_participations=self.max_participations,
        )
        return cohorts.sampler(num_examples, num_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicBatches(Part):
    """Groups that take turns; of larger groups than batches, independent draws within."""

    kind: ClassVar[str] = "cyclic"

    min_separation: int | None = option(
        None, "How many groups; none for groups of the batch size.", Range.AT_LEAST_ONE
    )
    max_participations: int | None = option(
        None, "Steps of one example at most; none for as many as fit.", Range.AT_LEAST_ONE
    )

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return who draws; errors as of `CyclicCohorts`."""
        apart, drawn = self.min_separation, batch_size
        if apart is None:
            apart, drawn = max(1, int(num_examples / batch_size)), None
        cohorts = CyclicCohorts(
            min_separation=apart, cohort=drawn, max_participations=self.max_participations
        )
        return cohorts.sampler(num_examples, num_steps)


def _most(given: int | None, apart: int, num_rounds: int) -> int:
    room = -(-num_rounds // apart)
    return room if given is None else min(given, room)


def limit_of(sampler: Sampler, num_rounds: int) -> Participation | None:
    """Return who may take part in how many of so many rows; None where a sampler limits no one."""
    kept = getattr(sampler, "participation", None)
    return None if kept is None else replace(kept, num_rows=num_rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise(Part):
    """Gaussian noise on the sum of bounded updates."""

    kind: ClassVar[str] = "gaussian"

    multiplier: float | None = option(
        None, "Stddev of the noise over the sum's sensitivity; none to calibrate.",
        Range.AT_LEAST_ZERO,
    )  # fmt: skip
    target_epsilon: float | None = option(
        None, "Calibrates the noise, and ends a run before it would be exceeded.",
        Range.ABOVE_ZERO,
    )  # fmt: skip
    exact_sum: bool | None = option(
        None,
        "Sum on a grid: the same bits for any order, backend and workers; none for true by user, "
        "false by example.",
    )

    def privatizer(
        self,
        *,
        calibrates: bool = True,
        limit: Participation | None = None,
        momentum: float = 0.0,
    ) -> Privatizer:
        """Return the noise; that of multiplier 1 where `calibrated` finds another.

        Args:
            calibrates: Whether there will be an ε to calibrate to.
            limit: In which rows one user may be, where cohorts are drawn so that it is known.
            momentum: Of the server, for noise whose error it is part of.

        Raises:
            ValueError: If neither says how much noise.
        """
        return Gaussian(noise_multiplier=self._multiplier(calibrates))

    def calibrated(self, plan: Plan) -> Plan:
        """Return a plan of this noise, calibrated to its target or ended by it."""
        if self.target_epsilon is None:
            return plan
        if self.multiplier is None:
            return plan.calibrated(self.target_epsilon)
        return replace(plan, target_epsilon=self.target_epsilon)

    def _multiplier(self, calibrates: bool) -> float:
        """Return σ, or 1 where `calibrated` finds it."""
        if self.multiplier is not None:
            return positive_float("noise_multiplier", self.multiplier)
        if not calibrates:
            raise ValueError(
                "without a guarantee there is no ε to calibrate to; give noise-multiplier"
            )
        if self.target_epsilon is None:
            raise ValueError("give noise-multiplier or target-epsilon, or say noise 'none'")
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise(Part):
    """Sums are released as they are."""

    kind: ClassVar[str] = "none"

    def privatizer(
        self,
        *,
        calibrates: bool = True,
        limit: Participation | None = None,
        momentum: float = 0.0,
    ) -> Privatizer:
        """Return what adds nothing."""
        return Unprotected()

    def calibrated(self, plan: Plan) -> Plan:
        """Return the plan."""
        return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedNoise(GaussianNoise, ABC):
    """What noise of every strategy has in common."""

    def privatizer(
        self,
        *,
        calibrates: bool = True,
        limit: Participation | None = None,
        momentum: float = 0.0,
    ) -> Privatizer:
        """Return the noise of a strategy that is made for who may take part; see `GaussianNoise`.

        Raises:
            ValueError: If cohorts do not limit who takes part, or it is not said how much noise.
        """
        from fedpriv.mechanisms.correlated.noise import Correlated

        if limit is None:
            raise ValueError(
                "noise that is correlated over rounds is accounted for users who come back after "
                "a while; use sampling 'separated' or 'cyclic'"
            )
        return Correlated(
            noise_multiplier=self._multiplier(calibrates),
            strategy=self.strategy(limit, momentum),
            participation=limit,
        )

    @abstractmethod
    def strategy(self, limit: Participation, momentum: float) -> Strategy:
        """Return C, for so many rows and who may be in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNoise(CorrelatedNoise):
    """Noise on the nodes of binary trees over rounds."""

    kind: ClassVar[str] = "tree"

    restart: int | None = option(
        None, "Rounds of a tree; none for one tree of all.", Range.AT_LEAST_ONE
    )
    estimate: Literal["efficient", "vanilla"] = option(
        "efficient", "How prefix sums are estimated: from all nodes that help, or the fewest."
    )
    completion: bool = option(False, "Complete a tree that ends, to leave one node's noise.")

    def strategy(self, limit: Participation, momentum: float) -> Strategy:
        """Return the trees."""
        from fedpriv.mechanisms.correlated.binary_tree import BinaryTree

        return BinaryTree(
            num_rows=_rows(limit),
            restart=self.restart,
            estimate=self.estimate,
            completion=self.completion,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BandedNoise(CorrelatedNoise):
    """Noise of a banded Toeplitz strategy."""

    kind: ClassVar[str] = "banded"

    bands: int | None = option(
        None, "How many; none for as many as a user's rounds are apart.", Range.AT_LEAST_ONE
    )
    coefficients: Literal["optimised", "square-root"] = option(
        "optimised", "Of the bands: with the least error, or of a series."
    )

    def strategy(self, limit: Participation, momentum: float) -> Strategy:
        """Return the bands."""
        from fedpriv.mechanisms.correlated.optimise import optimised_bands, square_root_bands

        rows = _rows(limit)
        bands = min(limit.min_separation, rows) if self.bands is None else self.bands
        if self.coefficients == "square-root":
            return square_root_bands(bands, rows)
        return optimised_bands(bands, limit, momentum=momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedNoise(CorrelatedNoise):
    """Noise of a buffered linear Toeplitz strategy (BLT)."""

    kind: ClassVar[str] = "blt"

    buffers: int = option(3, "How many, each as large as the model; 0 to 6.", Range.AT_LEAST_ZERO)

    def strategy(self, limit: Participation, momentum: float) -> Strategy:
        """Return the buffers."""
        from fedpriv.mechanisms.correlated.optimise import optimised_buffers

        return optimised_buffers(self.buffers, limit, momentum=momentum)


def _rows(limit: Participation) -> int:
    assert limit.num_rows is not None
    return limit.num_rows
