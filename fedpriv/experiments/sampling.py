"""Sampling of cohorts of users, and of batches of examples, as parts.

A new way to draw is a `Sampler`, and `Cohorts` or `Batches` that make it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from fedpriv.mechanisms.privatizer import Participation
from fedpriv.parts import Part, PositiveFloat, PositiveInt
from fedpriv.privacy.sampling import CyclicSampler, Sampler, SeparatedSampler, sampler_of
from fedpriv.ranges import Range


class Cohorts(Part, ABC):
    """Base of draws of users; a class that states its `kind` is one that experiments take."""

    __slots__ = ()

    @abstractmethod
    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return the sampler.

        Raises:
            ValueError: If its options do not fit so many users.
        """


class Batches(Part, ABC):
    """Base of draws of examples; a class that states its `kind` is one that experiments take."""

    __slots__ = ()

    @abstractmethod
    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return the sampler.

        Raises:
            ValueError: If its options do not fit so many examples.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonCohorts(Cohorts):
    """Independent Bernoulli draws of users.

    Attributes:
        cohort: Expected cohort size; none for a twentieth of the roster.
        cohort_cap: Largest cohort; none for no cap.
    """

    kind: ClassVar[str] = "poisson"

    cohort: PositiveFloat | None = None
    cohort_cap: PositiveInt | None = None

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return the sampler.

        Raises:
            ValueError: If there are not so many users.
        """
        return sampler_of("poisson", num_users, _size(self.cohort, num_users), self.cohort_cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCohorts(Cohorts):
    """A fixed number of users each round, uniformly at random.

    Attributes:
        cohort: Cohort size; none for a twentieth of the roster.
    """

    kind: ClassVar[str] = "fixed"

    cohort: PositiveFloat | None = None

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return the sampler.

        Raises:
            ValueError: If there are not so many users, or the size is not whole.
        """
        return sampler_of("fixed", num_users, _size(self.cohort, num_users))


def _size(cohort: float | None, num_users: int) -> float:
    return max(1.0, num_users / 20) if cohort is None else cohort


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedCohorts(Cohorts):
    """Cohorts among users whose last round is at least a separation back.

    Attributes:
        cohort: Cohort size, whole; none for a twentieth of the roster.
        min_separation: From one round of a user to the next, at least; none for as cohorts allow.
        max_participations: Rounds of one user at most; none for as many as fit.
    """

    kind: ClassVar[str] = "separated"

    cohort: Annotated[float, Range.AT_LEAST_ONE] | None = None
    min_separation: PositiveInt | None = None
    max_participations: PositiveInt | None = None

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return the sampler.

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
            max_participations=_most(self.max_participations, apart, num_rounds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicCohorts(Cohorts):
    """Groups that take turns, whole or with independent draws within.

    Attributes:
        min_separation: How many groups, and so how many rounds until one comes back.
        cohort: Mean cohort, of independent draws within a group; none for whole groups.
        max_participations: Rounds of one user at most; none for as many as fit.
    """

    kind: ClassVar[str] = "cyclic"

    min_separation: PositiveInt = 20
    cohort: PositiveFloat | None = None
    max_participations: PositiveInt | None = None

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return the sampler.

        Raises:
            ValueError: If there are fewer users than groups, or a cohort is above a group.
        """
        return CyclicSampler(
            num_users=num_users,
            groups=self.min_separation,
            mean=self.cohort,
            max_participations=_most(self.max_participations, self.min_separation, num_rounds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonBatches(Batches):
    """Independent Bernoulli draws of examples."""

    kind: ClassVar[str] = "poisson"

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return the sampler."""
        return sampler_of("poisson", num_examples, batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBatches(Batches):
    """A fixed number of examples each step, uniformly at random."""

    kind: ClassVar[str] = "fixed"

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return the sampler.

        Raises:
            ValueError: If the batch size is not whole.
        """
        return sampler_of("fixed", num_examples, batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedBatches(Batches):
    """Batches among examples whose last step is at least a separation back.

    Attributes:
        min_separation: From a step of an example to its next, at least; none for as batches allow.
        max_participations: Steps of one example at most; none for as many as fit.
    """

    kind: ClassVar[str] = "separated"

    min_separation: PositiveInt | None = None
    max_participations: PositiveInt | None = None

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return the sampler; errors as of `SeparatedCohorts`."""
        cohorts = SeparatedCohorts(
            cohort=batch_size,
            min_separation=self.min_separation,
            max_participations=self.max_participations,
        )
        return cohorts.sampler(num_examples, num_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicBatches(Batches):
    """Groups that take turns; of larger groups than batches, independent draws within.

    Attributes:
        min_separation: How many groups; none for groups of the batch size.
        max_participations: Steps of one example at most; none for as many as fit.
    """

    kind: ClassVar[str] = "cyclic"

    min_separation: PositiveInt | None = None
    max_participations: PositiveInt | None = None

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return the sampler; errors as of `CyclicCohorts`."""
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
    """Return how often and how far apart one user takes part; None for no limit."""
    limit = getattr(sampler, "participation", None)
    return None if limit is None else replace(limit, num_rows=num_rounds)
