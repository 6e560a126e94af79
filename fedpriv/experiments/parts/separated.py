"""Cohorts whose users come back after a while, and batches of examples that do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedpriv.experiments.composing.composition import Slot
from fedpriv.experiments.composing.options import option
from fedpriv.experiments.parts.shared import Promise
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.sampling import CyclicSampler, Sampler, SeparatedSampler
from fedpriv.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedCohorts:
    """Cohorts of those whose last round is far enough back."""

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
class SeparatedBatches:
    """Batches of those whose last step is far enough back."""

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
class CyclicBatches:
    """Groups that take turns; of larger groups than batches, independent draws within."""

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


COHORTS_APART: Mapping[str, type] = {"separated": SeparatedCohorts, "cyclic": CyclicCohorts}
BATCHES_APART: Mapping[str, type] = {"separated": SeparatedBatches, "cyclic": CyclicBatches}


def _most(given: int | None, apart: int, num_rounds: int) -> int:
    room = -(-num_rounds // apart)
    return room if given is None else min(given, room)


def limit_of(sampler: Sampler, num_rounds: int) -> Participation | None:
    """Return who may take part in how many of so many rows; None where a sampler limits no one."""
    kept = getattr(sampler, "participation", None)
    return None if kept is None else replace(kept, num_rows=num_rounds)


def promise_slots(drawn: Mapping[str, type], *methods: str) -> tuple[Slot, ...]:
    """Return the slots of what the ε is of, whose relation is by default that of the sampling.

    Args:
        drawn: What cohorts or batches are otherwise drawn by.
        methods: Those that sample nothing, and promise as drawn cohorts do.
    """
    slot = Slot(name="plan", help="What the ε is of.", choices={"": Promise})
    return (
        replace(slot, within=("sampling", frozenset(drawn) - frozenset(COHORTS_APART))),
        # Who takes part in which row is the same with a user's records and without them.
        replace(
            slot,
            within=("sampling", frozenset(COHORTS_APART)),
            defaults={"relation": "zero-out"},
        ),
        replace(slot, within=("method", frozenset(methods))),
    )
