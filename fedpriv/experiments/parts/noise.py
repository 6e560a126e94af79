"""What is added to a sum: the noise that experiments of either unit choose from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedpriv.experiments.composing.composition import Slot
from fedpriv.experiments.composing.options import option
from fedpriv.experiments.parts.shared import AVERAGING
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.privatizer import Participation, Privatizer
from fedpriv.privacy.plan import Plan
from fedpriv.ranges import Range, positive_float

if TYPE_CHECKING:
    from fedpriv.mechanisms.correlated.noise import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise:
    """Gaussian noise on the sum of bounded updates."""

    noise_multiplier: float | None = option(
        None, "Stddev of the noise over the sum's sensitivity; none to calibrate.",
        Range.AT_LEAST_ZERO,
    )  # fmt: skip
    target_epsilon: float | None = option(
        None, "Calibrates the noise, and ends a run before it would be exceeded.",
        Range.ABOVE_ZERO,
    )  # fmt: skip

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
        if self.noise_multiplier is None:
            return plan.calibrated(self.target_epsilon)
        return replace(plan, target_epsilon=self.target_epsilon)

    def _multiplier(self, calibrates: bool) -> float:
        """Return σ, or 1 where `calibrated` finds it."""
        if self.noise_multiplier is not None:
            return positive_float("noise_multiplier", self.noise_multiplier)
        if not calibrates:
            raise ValueError(
                "without a guarantee there is no ε to calibrate to; give noise-multiplier"
            )
        if self.target_epsilon is None:
            raise ValueError("give noise-multiplier or target-epsilon, or say noise 'none'")
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise:
    """Sums are released as they are."""

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
class _Correlated(GaussianNoise, ABC):
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
class TreeNoise(_Correlated):
    """Noise on the nodes of binary trees over rounds."""

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
class BandedNoise(_Correlated):
    """Noise of a banded Toeplitz strategy."""

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
class BufferedNoise(_Correlated):
    """Noise of a buffered linear Toeplitz strategy (BLT)."""

    buffers: int = option(3, "How many, each as large as the model; 0 to 6.", Range.AT_LEAST_ZERO)

    def strategy(self, limit: Participation, momentum: float) -> Strategy:
        """Return the buffers."""
        from fedpriv.mechanisms.correlated.optimise import optimised_buffers

        return optimised_buffers(self.buffers, limit, momentum=momentum)


def _rows(limit: Participation) -> int:
    assert limit.num_rows is not None
    return limit.num_rows


WITH_MEMORY: Mapping[str, type] = {
    "tree": TreeNoise,
    "banded": BandedNoise,
    "blt": BufferedNoise,
}
NOISE = Slot(
    name="noise",
    help="What is added to the sum; tree, banded and blt are correlated over rounds.",
    choices={"gaussian": GaussianNoise, "none": NoNoise, **WITH_MEMORY},
    within=AVERAGING,
)
