"""Sampling of cohorts of users, and of batches of examples, as parts.

A new way to draw is a `Sampler`, and a `Sampling` that makes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from fedpriv.mechanisms.privatizer import Participation
from fedpriv.parts import Part, PositiveInt
from fedpriv.privacy.sampling import CyclicSampler, Sampler, SeparatedSampler, sampler_of


class Sampling(Part, ABC):
    """Base of draws of users, or of examples; a class with a `kind` is one that experiments take.

    How many are drawn is the experiment's `cohort`, or `batch_size`.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @abstractmethod
    def sampler(self, number: int, size: float | None, num_rounds: int) -> Sampler:
        """Return the sampler.

        Args:
            number: Users on the roster, or examples of the training set.
            size: Of them a round, in expectation; None for `usual_size`.
            num_rounds: Rounds, or steps.

        Raises:
            ValueError: If the options, or the size, do not fit so many.
        """

    def usual_size(self, number: int) -> float:
        """Return the expected size where none is given: a twentieth, at least 1."""
        return max(1.0, number / 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonSampling(Sampling):
    """Independent Bernoulli draws.

    Attributes:
        cohort_cap: Most that are drawn; none for no cap.
    """

    kind: ClassVar[str] = "poisson"

    cohort_cap: PositiveInt | None = None

    def sampler(self, number: int, size: float | None, num_rounds: int) -> Sampler:
        """Return the sampler; see `Sampling.sampler`."""
        size = self.usual_size(number) if size is None else size
        return sampler_of("poisson", number, size, self.cohort_cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSampling(Sampling):
    """A fixed number each round, uniformly at random; a size that is given is whole."""

    kind: ClassVar[str] = "fixed"

    def usual_size(self, number: int) -> float:
        """Return a twentieth, rounded down, at least 1."""
        return max(1.0, number // 20)

    def sampler(self, number: int, size: float | None, num_rounds: int) -> Sampler:
        """Return the sampler; see `Sampling.sampler`."""
        return sampler_of("fixed", number, self.usual_size(number) if size is None else size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedSampling(FixedSampling):
    """A fixed number each round, among those whose last round is at least a separation back.

    Attributes:
        min_separation: From one round of a user (or step of an example) to the next, at least;
            none for as cohorts allow.
        max_participations: Rounds of one user at most; none for as many as fit.
    """

    kind: ClassVar[str] = "separated"

    min_separation: PositiveInt | None = None
    max_participations: PositiveInt | None = None

    def sampler(self, number: int, size: float | None, num_rounds: int) -> Sampler:
        """Return the sampler; see `Sampling.sampler`."""
        size = self.usual_size(number) if size is None else size
        if not float(size).is_integer():
            raise ValueError(f"a cohort of {size:g} is not whole; give a whole number")
        apart = max(1, number // int(size)) if self.min_separation is None else self.min_separation
        return SeparatedSampler(
            num_users=number,
            size=int(size),
            min_separation=apart,
            max_participations=_most(self.max_participations, apart, num_rounds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicSampling(Sampling):
    """Groups that take turns, whole, or with independent draws within.

    Where both a size and a number of groups are given, so many are drawn within each group.

    Attributes:
        min_separation: How many groups, and so how many rounds until one comes back; none for
            as many as have at least the size that is given, or for 20.
        max_participations: Rounds of one user at most; none for as many as fit.
    """

    kind: ClassVar[str] = "cyclic"

    min_separation: PositiveInt | None = None
    max_participations: PositiveInt | None = None

    def usual_size(self, number: int) -> float:
        """Return the size of a group."""
        return number / (self.min_separation or 20)

    def sampler(self, number: int, size: float | None, num_rounds: int) -> Sampler:
        """Return the sampler; see `Sampling.sampler`."""
        groups, mean = self.min_separation, size
        if groups is None:
            if size is not None and size > number:
                raise ValueError(f"size {size:g} is above the {number} there are; lower it")
            groups, mean = 20 if size is None else int(number / size), None
        return CyclicSampler(
            num_users=number,
            groups=groups,
            mean=mean,
            max_participations=_most(self.max_participations, groups, num_rounds),
        )


def _most(given: int | None, apart: int, num_rounds: int) -> int:
    room = -(-num_rounds // apart)
    return room if given is None else min(given, room)


def limit_of(sampler: Sampler, num_rounds: int) -> Participation | None:
    """Return how often and how far apart one user takes part; None for no limit."""
    limit = getattr(sampler, "participation", None)
    return None if limit is None else replace(limit, num_rows=num_rounds)
