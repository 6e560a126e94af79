"""Noise on the sum of bounded updates, independent or correlated over rounds, as parts.

A new noise is a `Privatizer` and a `Noise` that makes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedpriv.mechanisms.bounds import Bound
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.privatizer import Participation, Privatizer
from fedpriv.parts import NonNegativeFloat, NonNegativeInt, Part, PositiveInt

if TYPE_CHECKING:
    from fedpriv.mechanisms.correlated.noise import Strategy


class Noise(Part, ABC):
    """Base of noise; a class that states its `kind` is one that experiments take."""

    __slots__ = ()
    kind: ClassVar[str]

    @abstractmethod
    def privatizer(
        self,
        *,
        bound: Bound,
        limit: Participation | None = None,
        calibrates: bool = True,
        momentum: float = 0.0,
    ) -> Privatizer:
        """Return the noise.

        Args:
            bound: Of what is summed.
            limit: Rounds in which one user may take part, where the sampler limits them.
            calibrates: Whether its plan is calibrated to a target ε; then its multiplier, where
                none is given, may be any.
            momentum: Server momentum, for which a strategy is optimised.

        Raises:
            ValueError: If nothing says how much noise.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise(Noise):
    """Gaussian noise on the sum of bounded updates.

    Attributes:
        multiplier: Stddev of the noise over the sum's sensitivity; none to calibrate.
    """

    kind: ClassVar[str] = "gaussian"

    multiplier: NonNegativeFloat | None = None

    def privatizer(
        self,
        *,
        bound: Bound,
        limit: Participation | None = None,
        calibrates: bool = True,
        momentum: float = 0.0,
    ) -> Privatizer:
        """Return the noise; see `Noise.privatizer`."""
        return Gaussian(noise_multiplier=self._multiplier(calibrates))

    def _multiplier(self, calibrates: bool) -> float:
        """Return σ, or 1 where it is calibrated."""
        if self.multiplier is None and not calibrates:
            raise ValueError("give noise-multiplier or target-epsilon, or say noise 'none'")
        return 1.0 if self.multiplier is None else self.multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNoise(Noise):
    """Sums are released as they are."""

    kind: ClassVar[str] = "none"

    def privatizer(self, **given: Any) -> Privatizer:
        """Return a privatizer that adds nothing."""
        return Unprotected()


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedNoise(GaussianNoise, ABC):
    """Base of noise that is correlated over rounds by a strategy (matrix mechanism)."""

    def privatizer(
        self,
        *,
        bound: Bound,
        limit: Participation | None = None,
        calibrates: bool = True,
        momentum: float = 0.0,
    ) -> Privatizer:
        """Return the noise of a strategy made for a participation limit; see `GaussianNoise`.

        Raises:
            ValueError: If the sampler does not limit participation, or there is no noise level.
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
        """Return the strategy matrix C for a number of rounds and a participation limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNoise(CorrelatedNoise):
    """Noise on the nodes of binary trees over rounds.

    Attributes:
        restart: Rounds of a tree; none for one tree of all.
        estimate: How prefix sums are estimated: from all nodes that help, or the fewest.
        completion: Complete a tree that ends, to leave one node's noise.
    """

    kind: ClassVar[str] = "tree"

    restart: PositiveInt | None = None
    estimate: Literal["efficient", "vanilla"] = "efficient"
    completion: bool = False

    def strategy(self, limit: Participation, momentum: float) -> Strategy:
        """Return the trees.

        Raises:
            ValueError: If the first tree is never ended.
        """
        from fedpriv.mechanisms.correlated.binary_tree import BinaryTree

        rows = _rows(limit)
        if self.restart is not None and self.restart >= rows:
            raise ValueError(
                f"noise.restart {self.restart} begins no second tree in {rows} rounds; give fewer, "
                "or leave it out"
            )
        return BinaryTree(
            num_rows=rows,
            restart=self.restart,
            estimate=self.estimate,
            completion=self.completion,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BandedNoise(CorrelatedNoise):
    """Noise of a banded Toeplitz strategy.

    Attributes:
        bands: How many; none for as many as a user's rounds are apart.
        coefficients: Of the bands: with the least error, or of a series.
    """

    kind: ClassVar[str] = "banded"

    bands: PositiveInt | None = None
    coefficients: Literal["optimised", "square-root"] = "optimised"

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
    """Noise of a buffered linear Toeplitz strategy (BLT).

    Attributes:
        buffers: How many, each as large as the model; 0 to 6.
    """

    kind: ClassVar[str] = "blt"

    buffers: NonNegativeInt = 3

    def strategy(self, limit: Participation, momentum: float) -> Strategy:
        """Return the buffers."""
        from fedpriv.mechanisms.correlated.optimise import optimised_buffers

        return optimised_buffers(self.buffers, limit, momentum=momentum)


def _rows(limit: Participation) -> int:
    assert limit.num_rows is not None
    return limit.num_rows
