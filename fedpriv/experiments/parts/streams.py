"""Noise that is correlated over rounds, and the cohorts that it is priced for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedpriv.experiments.composing.options import option
from fedpriv.experiments.parts.shared import GaussianNoise
from fedpriv.noise.participation import Participation
from fedpriv.noise.privatizer import Privatizer
from fedpriv.privacy.sampling import Sampler
from fedpriv.privacy.separated import CyclicSampler, SeparatedSampler
from fedpriv.ranges import Range, positive_float

if TYPE_CHECKING:
    from fedpriv.noise.streams.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Correlated(GaussianNoise):
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
        from fedpriv.noise.streams.stream import Correlated

        if limit is None:
            raise ValueError(
                "noise that is correlated over rounds is accounted for users who come back after "
                "a while; use sampling 'separated' or 'cyclic'"
            )
        if self.noise_multiplier is None and self.target_epsilon is None:
            raise ValueError("give noise-multiplier or target-epsilon, or say noise 'none'")
        given = self.noise_multiplier
        sigma = 1.0 if given is None else positive_float("noise_multiplier", given)
        strategy = self.strategy(limit, momentum)
        return Correlated(noise_multiplier=sigma, strategy=strategy, participation=limit)

    def strategy(self, limit: Participation, momentum: float) -> Strategy:
        """Return C, for so many rows and who may be in them."""
        raise NotImplementedError


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
        from fedpriv.noise.streams.tree import BinaryTree

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
        from fedpriv.noise.streams.optimise import optimised_bands, square_root_bands

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
        from fedpriv.noise.streams.optimise import optimised_buffers

        return optimised_buffers(self.buffers, limit, momentum=momentum)


def _rows(limit: Participation) -> int:
    assert limit.num_rows is not None
    return limit.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedCohorts:
    """Cohorts of those whose last round is far enough back."""

    cohort: float | None = option(
        None, "Cohort size, whole; none for a twentieth of the roster.", Range.AT_LEAST_ONE
    )
    min_separation: int | None = option(
        None,
        "A user's rounds i and j have |i - j| at least this; none for as large as cohorts allow.",
        Range.AT_LEAST_ONE,
    )
    max_participations: int | None = option(
        None, "Rounds a user takes part in at most; none for as many as fit.", Range.AT_LEAST_ONE
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
class CyclicCohorts:
    """Groups that take turns, whole or with independent draws within."""

    min_separation: int = option(
        20, "How many groups, and so how many rounds until one comes back.", Range.AT_LEAST_ONE
    )
    cohort: float | None = option(
        None,
        "Mean cohort, of independent draws within a group; none for whole groups.",
        Range.ABOVE_ZERO,
    )
    max_participations: int | None = option(
        None, "Rounds a user takes part in at most; none for as many as fit.", Range.AT_LEAST_ONE
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


def _most(given: int | None, apart: int, num_rounds: int) -> int:
    room = -(-num_rounds // apart)
    return room if given is None else min(given, room)


def limit_of(sampler: Sampler, num_rounds: int) -> Participation | None:
    """Return who may take part in how many of so many rows; None where a sampler limits no one."""
    kept = getattr(sampler, "participation", None)
    return None if kept is None else replace(kept, num_rows=num_rounds)


NOISE_WITH_MEMORY = {"tree": TreeNoise, "banded": BandedNoise, "blt": BufferedNoise}
COHORTS_APART = {"separated": SeparatedCohorts, "cyclic": CyclicCohorts}
