"""Samplers: rules that draw the cohort of a round on the server from a frozen roster.

A sampler is public; the key it is given and the ids it returns are secret. Its type alone decides
how much privacy is amplified: independent draws by Poisson subsampling, a cohort of fixed size by
what is proved for it. `Partition`, `SeparatedSampler` and `CyclicSampler` limit how often a user
takes part instead, which correlated noise and disjoint batches are accounted for. Who takes part
when depends on the key and the roster's size alone, so that one user's records change only that
user's contributions ("zero-out"): samplers draw positions, and never see a roster. A drawn user has
taken part, whether or not it answered.
"""

# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false
# (its numbers are fields of one sampler and properties of another)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, cast

import numpy as np

from fedpriv.mechanisms.event import NONPRIVATE, Event
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import Participation, Privatizer, check_priced
from fedpriv.parts import Part, PositiveFloat, PositiveInt
from fedpriv.ranges import positive_float
from fedpriv.rng import Key

Memory = Mapping[str, np.ndarray]
"""State of a sampler: who took part in earlier rounds. Secret; empty for memoryless samplers."""


Drawn = tuple[tuple[str, ...], Memory]
"""The ids of a cohort in roster order, and the memory after it."""


class Sampler(Part, ABC):
    """Base of rules that draw the cohort of one attempt of one round; by default without memory.

    A class that derives from it defines `expected_cohort_size`, `event` and `positions`, and `init`
    where it has a memory.

    Attributes:
        num_users: Users on the roster, n.
    """

    __slots__ = ()
    num_users: int

    def __init_subclass__(cls) -> None:
        """Refuse a class that draws otherwise than its base and keeps that one's price."""
        super().__init_subclass__()
        check_priced(cls, "positions", "next", "sampling_prob", "participation", "_drawn")

    @property
    @abstractmethod
    def expected_cohort_size(self) -> float:
        """Mean size of a cohort: the public denominator of every round, however many reply."""

    @abstractmethod
    def event(self, noise: Privatizer) -> Event:
        """Return the event of one charge of a noise under this sampling.

        Raises:
            ValueError: If no accountant has an answer for the pair.
        """

    def init(self) -> Memory:
        """Return the memory before the first cohort."""
        return {}

    @abstractmethod
    def positions(self, memory: Memory, key: Key) -> tuple[np.ndarray, Memory]:
        """Return the drawn positions of the roster, int64 and sorted, and the memory after them.

        Args:
            memory: As for `next`.
            key: As for `next`.

        Raises:
            ValueError: If the plan has no further cohort.
        """

    def next(self, memory: Memory, key: Key, roster: Sequence[str]) -> Drawn:
        """Return the drawn user ids, in roster order, and the memory after them.

        The empty cohort is a legal draw.

        Args:
            memory: From `init` or the last `next`; written down before the cohort is used.
            key: The key of this attempt's cohort, used for nothing else.
            roster: The frozen list of n distinct user ids.

        Raises:
            ValueError: If the roster is empty, of another size, or names a user twice; if a
                position is drawn twice or is none of the roster's; or as `positions`.
        """
        check_roster(roster, self.num_users)
        drawn, memory = self.positions(memory, key)
        within = not len(drawn) or (drawn[0] >= 0 and drawn[-1] < len(roster))
        if not within or np.any(drawn[1:] <= drawn[:-1]):
            raise ValueError(
                f"{type(self).__name__} drew positions {drawn!r}, which are not ascending ones of "
                f"the {len(roster)} users: a user who is drawn twice is paid for once"
            )
        return tuple(map(roster.__getitem__, drawn.tolist())), memory

    def cohort(self, key: Key, roster: Sequence[str]) -> tuple[str, ...]:
        """Return the cohort of one attempt, in roster order, of a sampler without memory.

        Raises:
            ValueError: If the sampler has a memory, or as `next`.
        """
        if self.init():
            raise ValueError(f"{type(self).__name__} has a memory: cohorts are drawn by next")
        return Sampler.next(self, {}, key, roster)[0]


def check_roster(roster: Sequence[str], num_users: int) -> None:
    """Refuse a roster of another size than was accounted, or that names a user twice.

    Raises:
        ValueError: If it is one.
    """
    if isinstance(roster, str) or len(roster) == 0:
        raise ValueError(f"roster {roster!r} holds no users; give the list of the corpus's ids")
    if len(roster) != num_users:
        raise ValueError(
            f"the roster has {len(roster)} users, the sampler was made for {num_users}: they would "
            "be drawn with another probability than is accounted; make a new plan"
        )
    # A run draws every cohort from one frozen tuple, and the set of 342,477 ids takes longer than
    # the draw. The last tuple is held here, so no other can come to have its address; a list may
    # change between two draws and is always looked at.
    if roster is _CHECKED[0]:
        return
    distinct = len(set(roster))
    if distinct != len(roster):
        raise ValueError(
            f"the roster has {len(roster)} entries but only {distinct} distinct users; "
            "a user listed twice would be drawn twice as often: remove the duplicates"
        )
    if type(roster) is tuple:
        _CHECKED[0] = roster


_CHECKED: list[tuple[str, ...]] = [()]


def _subset(key: Key, number: int, size: int) -> np.ndarray:
    """Return a uniform subset of `size` positions below `number`, sorted."""
    if key.mode == "secure":
        drawn = _permutation(key, number)[:size]
    else:
        drawn = key.generator().choice(number, size, replace=False, shuffle=False)
    return np.sort(drawn)


def _permutation(key: Key, number: int) -> np.ndarray:
    """Return a uniform order of `number` positions.

    With a secure key it is that of as many cryptographic words. Where two of them are equal, at
    most n² 2^-65 likely, all are drawn again: of distinct words every order is as likely.
    """
    if key.mode != "secure":
        return key.generator().permutation(number)
    stream = 0
    while True:
        words = key.words(number, stream)
        order = np.argsort(words, kind="stable").astype(np.int64)
        ordered = words[order]
        if not (ordered[1:] == ordered[:-1]).any():
            return order
        stream += 1


def _secure_bernoulli(key: Key, number: int, probability: Fraction) -> np.ndarray:
    """Return the positions below `number` drawn independently by a secure key.

    Each compares 64 cryptographic bits with ⌊q 2^64⌋: drawn with probability q, or less by at most
    2^-64.
    """
    threshold = math.floor(probability * 2**64)
    if threshold >= 2**64:
        return np.arange(number)
    return np.flatnonzero(key.words(number) < np.uint64(threshold))


def _cohort_event(noise: Privatizer, sampler: Sampler, **drawn: Any) -> Event:
    """Return the event of a Gaussian over a drawn cohort, of the kind and numbers of its draw.

    Raises:
        ValueError: If a cohort is drawn for other noise.
    """
    event, everybody = noise.event, sampler.expected_cohort_size == sampler.num_users
    if noise.charged_once:
        raise ValueError(
            "noise that is charged for a whole run earns nothing by drawing cohorts; use a sampler "
            "whose participation its sensitivity was computed for"
        )
    if everybody or not event.is_private:
        return _plain_event(noise)
    if event.kind != "gaussian":
        raise ValueError(
            f"a {event.kind} answer over a drawn cohort has no accountant here; let everybody take "
            "part (Everybody)"
        )
    return Event(noise_multiplier=event.sigma, **drawn)


def _plain_event(noise: Privatizer) -> Event:
    event, limit = noise.event, noise.participation
    if limit is not None and event.kind != "gaussian":
        raise ValueError("its rows are accounted for disjoint batches; draw by Partition")
    if limit is not None and (limit.num_rows is None or limit.count < limit.num_rows):
        raise ValueError(
            f"noise is made for users who take part {limit}, and everybody takes part in every "
            "row; draw cohorts whose users come back later (SeparatedSampler, CyclicSampler)"
        )
    return event


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonSampler(Sampler):
    """Poisson sampling: every user on the roster is drawn independently, with one probability.

    Attributes:
        num_users: Users on the roster, n.
        expected_cohort_size: Mean cohort, in (0, n]; a user is drawn with probability mean / n.
        cap: Largest cohort ever sent out, or None. When more users were drawn, a uniform subset
            of `cap` of them takes part. At least twice the mean, or everybody: there truncation
            is so rare that it costs nothing.

    Guarantees:
        * Inclusion is independent between users (without a cap) and between keys.
        * Neighbouring relation: with or without one rostered user's records. The roster itself,
          hence everybody else's draw, does not change.
        * Amplification: Poisson subsampling (Abadi et al. 2016, section 3); with a cap the
          truncated form, which the accountant prices through the roster's size.
    """

    num_users: PositiveInt
    expected_cohort_size: PositiveFloat = field()  # else the base's property would be its default
    cap: PositiveInt | None = None

    def check(self) -> None:
        """Refuse a cohort above the roster, and a cap that never acts or costs much."""
        if self.expected_cohort_size > self.num_users:
            raise ValueError(
                f"a cohort of {self.expected_cohort_size:g} is above the {self.num_users} users; "
                "lower the cohort size"
            )
        if self.cap is not None and self.cap > self.num_users:
            raise ValueError(
                f"cohort_cap {self.cap} is above the {self.num_users} users and never acts; leave "
                "it out"
            )
        least = min(math.ceil(2.0 * self.expected_cohort_size), self.num_users)
        if self.cap is not None and self.cap < least:
            raise ValueError(
                f"cohort_cap {self.cap} is below {least}, twice the expected cohort of "
                f"{self.expected_cohort_size:g}: a cap near the mean multiplies ε (fourfold at the "
                "mean); raise it, or leave it out"
            )

    @property
    def sampling_prob(self) -> float:
        """Probability that a given user is drawn in a given round, in (0, 1]."""
        return self.expected_cohort_size / self.num_users

    def event(self, noise: Privatizer) -> Event:
        """Return the amplified event of a Gaussian; others only where everybody takes part."""
        drawn: dict[str, Any] = {"kind": "poisson-gaussian"}
        if self.cap is not None and self.cap < self.num_users:
            drawn = {
                "kind": "truncated-poisson-gaussian",
                "num_users": self.num_users,
                "cap": self.cap,
            }
        return _cohort_event(noise, self, sampling_prob=self.sampling_prob, **drawn)

    def positions(self, memory: Memory, key: Key) -> tuple[np.ndarray, Memory]:
        """Return between 0 and n positions (at most `cap`)."""
        if key.mode == "secure":
            probability = Fraction(self.expected_cohort_size) / self.num_users
            drawn = _secure_bernoulli(key, self.num_users, probability)
            if self.cap is not None and drawn.size > self.cap:
                drawn = drawn[_subset(key.fold("cap"), drawn.size, self.cap)]
        else:
            generator = key.generator()
            drawn = np.flatnonzero(generator.random(self.num_users) < self.sampling_prob)
            if self.cap is not None and drawn.size > self.cap:
                drawn = np.sort(generator.choice(drawn, self.cap, replace=False, shuffle=False))
        return drawn, memory


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesSampler(Sampler):
    """Poisson sampling of devices, of which one person may have several on the roster.

    Attributes:
        draws: Who is drawn; without a cap.
        devices: How many devices of the roster a person has at most.

    Guarantees:
        * Neighbouring relation: with or without one *person's* records, on all devices. It holds
          only if no person has more devices than that, which cannot be checked here, and if every
          device's update is bounded alone.

    Raises:
        ValueError: If the draws are of another kind, or the number is out of range.
    """

    draws: Sampler
    devices: PositiveInt

    def check(self) -> None:
        """Refuse other draws, and more devices than there are or than are accounted."""
        if type(self.draws) is not PoissonSampler or self.draws.cap is not None:
            raise ValueError(
                f"devices {self.devices} of one person are not accounted with {self.draws!r}: "
                "take poisson sampling without a cap, or bound a person's devices together"
            )
        if self.devices > self.num_users:
            raise ValueError(
                f"devices {self.devices} is above all {self.num_users} of the roster; lower it"
            )
        self.event(Gaussian(noise_multiplier=1.0))  # checks how many are accounted

    @property
    def num_users(self) -> int:
        """Devices on the roster."""
        return self.draws.num_users

    @property
    def expected_cohort_size(self) -> float:
        """Mean number of devices drawn."""
        return self.draws.expected_cohort_size

    def event(self, noise: Privatizer) -> Event:
        """Return the event of a Gaussian, as it is for a person."""
        if self.devices == 1:
            return self.draws.event(noise)
        draws, event = cast(PoissonSampler, self.draws), noise.event
        if not event.is_private:
            return NONPRIVATE
        if event.kind != "gaussian" or noise.charged_once:
            raise ValueError(
                f"devices {self.devices} of one person are accounted for Gaussian noise that is "
                "drawn again every round; bound a person's devices together"
            )
        return Event(
            kind="poisson-devices-gaussian",
            noise_multiplier=event.sigma,
            sampling_prob=draws.sampling_prob,
            devices=self.devices,
        )

    def positions(self, memory: Memory, key: Key) -> tuple[np.ndarray, Memory]:
        """Return the drawn devices' positions."""
        return self.draws.positions(memory, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfOneSize(Sampler):
    """Cohorts of one size, which is also the denominator where one turned out smaller."""

    num_users: PositiveInt
    size: PositiveInt

    def check(self) -> None:
        """Refuse a cohort above the roster."""
        if self.size > self.num_users:
            raise ValueError(
                f"a cohort of {self.size} cannot be drawn from {self.num_users} users; "
                "lower the cohort size"
            )

    @property
    def expected_cohort_size(self) -> float:
        """The size."""
        return float(self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSizeSampler(_OfOneSize):
    """Fixed-size sampling: a uniform subset of exactly `size` users, without replacement.

    Attributes:
        num_users: Users on the roster, n.
        size: Users a cohort, at least 1 and at most n.

    Guarantees:
        * Every user is included with probability size / n, but not independently of the others,
          so this is far weaker than Poisson: at σ = 1, 20 of 400 users, 100 rounds and
          δ = 1/400 its ε under replace-one is at least 10.79 where Poisson add-remove has 1.91
          (Lebeda, Regehr, Kamath and Steinke, arXiv:2405.20769).
        * Neighbouring relation: one user's records replaced by another's (`replace-one`).
    """

    def event(self, noise: Privatizer) -> Event:
        """Return the event of a Gaussian over a cohort of fixed size."""
        drawn: dict[str, Any] = {"num_users": self.num_users, "size": self.size}
        return _cohort_event(noise, self, kind="fixed-size-gaussian", **drawn)

    def positions(self, memory: Memory, key: Key) -> tuple[np.ndarray, Memory]:
        """Return `size` distinct positions."""
        return _subset(key, self.num_users, self.size), memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Everybody(Sampler):
    """The whole roster, every round, without amplification.

    Attributes:
        num_users: Users on the roster, n.
    """

    num_users: PositiveInt

    @property
    def expected_cohort_size(self) -> float:
        """All of them."""
        return float(self.num_users)

    def event(self, noise: Privatizer) -> Event:
        """Return the noise's own event, without amplification."""
        return _plain_event(noise)

    def positions(self, memory: Memory, key: Key) -> tuple[np.ndarray, Memory]:
        """Return all of them."""
        return np.arange(self.num_users), memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(_OfOneSize):
    """Disjoint batches of a random permutation of the roster, drawn for each pass.

    Attributes:
        num_users: Users on the roster, n.
        size: b, users a batch; those who do not fill a last batch sit out, others in each pass.
        passes: How often everybody may take part.

    Guarantees:
        * No user is in more than `passes` batches, and in one batch a pass at most. The order
          depends on the key and the roster's size alone, so that one user who is there or not (or
          is replaced) changes the batches of its own place only. Answers of disjoint batches cost
          what one of them does (McSherry 2009, Theorem 4, parallel composition).
        * The random order gives no amplification.
    """

    passes: PositiveInt = 1

    @property
    def num_batches(self) -> int:
        """Of all passes."""
        return self.passes * (self.num_users // self.size)

    def event(self, noise: Privatizer) -> Event:
        """Return the event of a whole run of pure answers, or of none that is protected.

        Raises:
            ValueError: If the noise is another: of a single answer, or of fewer participations.
        """
        event, counted = noise.event, noise.participation
        if not event.is_private:
            return NONPRIVATE
        if not noise.charged_once or event.kind != "pure" or counted is None:
            raise ValueError(
                "disjoint batches are accounted for pure answers that are charged once for the "
                "whole run"
            )
        if counted.most < self.passes:
            raise ValueError(
                f"noise is calibrated for {counted.most} participations and everybody takes part "
                f"{self.passes} times; give both the same passes"
            )
        return event

    def init(self) -> Memory:
        """Return the memory before the first batch."""
        return {"order": np.zeros(0, np.int64), "drawn": np.zeros(1, np.int64)}

    def positions(self, memory: Memory, key: Key) -> tuple[np.ndarray, Memory]:
        """Return the next batch's positions.

        Raises:
            ValueError: If every pass is over.
        """
        drawn = int(memory["drawn"][0])
        if drawn >= self.num_batches:
            raise ValueError(
                f"all {self.num_batches} batches are used up: everybody took part {self.passes} "
                "times; make a new plan"
            )
        place = drawn % (self.num_users // self.size) * self.size
        order = memory["order"] if place else _permutation(key, self.num_users)
        batch = np.sort(order[place : place + self.size])
        return batch, {"order": order, "drawn": np.array([drawn + 1], np.int64)}


_NEVER = np.iinfo(np.int64).min // 2  # the last row of who took part in none


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedSampler(_OfOneSize):
    """Uniform cohorts of users who took part at least `min_separation` rounds ago (b-min-sep).

    Attributes:
        num_users: Users on the roster, n.
        size: Users a cohort; fewer where fewer are free.
        min_separation: b: rows of one user are at least b apart.
        max_participations: In how many rows one user is at most.

    Guarantees:
        * The limit holds for every user in every run, resumed ones included: who took part is
          remembered in secret state that is written before a cohort is used. Rows that an
          interruption left open count as rows.
        * Random cohorts give no amplification.

    Raises:
        ValueError: If a number is out of range, or there are too few users for full cohorts.
    """

    min_separation: PositiveInt
    max_participations: PositiveInt

    def check(self) -> None:
        """Refuse cohorts that too few users would fill."""
        if self.size * self.min_separation > self.num_users:
            raise ValueError(
                f"cohorts of {self.size:,} that are {self.min_separation:,} rows apart need "
                f"{self.size * self.min_separation:,} users and there are {self.num_users:,}; "
                "lower the cohort or the min-separation"
            )

    @property
    def participation(self) -> Participation:
        """The participation limit that is kept."""
        return Participation(most=self.max_participations, min_separation=self.min_separation)

    def event(self, noise: Privatizer) -> Event:
        """Return the event of a whole run, if it was computed for this participation limit."""
        return _separated_event(noise, self.participation)

    def init(self) -> Memory:
        """Return the memory before the first cohort."""
        return {
            "last": np.full(self.num_users, _NEVER, np.int64),
            "times": np.zeros(self.num_users, np.int64),
            "row": np.zeros(1, np.int64),
        }

    def positions(self, memory: Memory, key: Key) -> tuple[np.ndarray, Memory]:
        """Return the positions of a cohort."""
        row = int(memory["row"][0]) + 1
        free = np.flatnonzero(
            (memory["times"] < self.max_participations)
            & (row - memory["last"] >= self.min_separation)
        )
        drawn = free[_subset(key, free.size, min(self.size, free.size))]
        last, times = memory["last"].copy(), memory["times"].copy()
        last[drawn] = row
        times[drawn] += 1
        return drawn, {"last": last, "times": times, "row": np.array([row], np.int64)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicSampler(Sampler):
    """Cyclic sampling: every user is in one of b groups, and row t draws from group t mod b.

    Attributes:
        num_users: Users on the roster, n.
        groups: b, how many groups there are and how many rows apart one comes back.
        max_participations: In how many rows one user is at most.
        mean: Expected cohort size, at most the smallest group; each user of the group is drawn
            independently (Poisson). None lets the whole group take part.

    Guarantees:
        * As `SeparatedSampler`. Groups are drawn once, by chance; sizes differ by one at most.
        * With independent draws within a group and a strategy whose rows never add up for one user
          (bands <= b), a run costs what `max_participations` answers over Poisson cohorts do
          (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Theorem 4).

    Raises:
        ValueError: If a number is out of range.
    """

    num_users: PositiveInt
    groups: PositiveInt
    max_participations: PositiveInt
    mean: PositiveFloat | None = None

    def check(self) -> None:
        """Refuse more groups than users, and cohorts above a group."""
        if self.groups > self.num_users:
            raise ValueError(
                f"{self.groups} groups of {self.num_users} users; lower min-separation"
            )
        if self.mean is not None and self.mean > self.num_users // self.groups:
            raise ValueError(
                f"a cohort of {self.mean:g} is above the {self.num_users // self.groups:,} "
                f"users of a group ({self.num_users:,} users in {self.groups:,} groups); lower "
                "the cohort or the min-separation"
            )

    @property
    def sampling_prob(self) -> float:
        """Probability that a user of the group in turn is drawn."""
        return 1.0 if self.mean is None else self.mean / (self.num_users // self.groups)

    @property
    def expected_cohort_size(self) -> float:
        """The mean: of draws by `sampling_prob` from a smallest group, or of whole groups."""
        return self.num_users / self.groups if self.mean is None else self.mean

    @property
    def participation(self) -> Participation:
        """The participation limit that is kept."""
        return Participation(most=self.max_participations, min_separation=self.groups)

    def event(self, noise: Privatizer) -> Event:
        """Return the event of a whole run, amplified where amplification is proved."""
        event, limit = _separated_event(noise, self.participation), noise.participation
        one_row = noise.one_row
        if self.mean is None or limit is None or one_row is None or not event.is_private:
            return event
        return Event(
            kind="cyclic-poisson-gaussian",
            noise_multiplier=one_row,
            sampling_prob=self.sampling_prob,
            rows=min(limit.count, self.max_participations),
        )

    def init(self) -> Memory:
        """Return the memory before groups are drawn."""
        return {
            "order": np.zeros(0, np.int64),
            "times": np.zeros(self.groups, np.int64),
            "row": np.zeros(1, np.int64),
        }

    def positions(self, memory: Memory, key: Key) -> tuple[np.ndarray, Memory]:
        """Return the positions drawn from the group in turn."""
        row = int(memory["row"][0]) + 1
        order = memory["order"]
        if not order.size:
            order = _permutation(key.fold("groups"), self.num_users)
        group = (row - 1) % self.groups
        times = memory["times"].copy()
        members = np.sort(order[group :: self.groups])
        if times[group] >= self.max_participations:
            members = members[:0]
        times[group] += 1
        drawn = members[self._drawn(key, members.size)]
        return drawn, {"order": order, "times": times, "row": np.array([row], np.int64)}

    def _drawn(self, key: Key, size: int) -> np.ndarray:
        if self.mean is None:
            return np.arange(size)
        if key.mode == "secure":
            probability = Fraction(self.mean) / (self.num_users // self.groups)
            return _secure_bernoulli(key, size, probability)
        return np.flatnonzero(key.generator().random(size) < self.sampling_prob)


def _separated_event(noise: Privatizer, kept: Participation) -> Event:
    """Return the event of a whole run of correlated noise under a sampler's participation limit.

    Raises:
        ValueError: If it was made for less, or is no noise of a whole run.
    """
    event, limit = noise.event, noise.participation
    if not event.is_private:
        return NONPRIVATE
    if event.kind != "gaussian" or not noise.charged_once or limit is None:
        raise ValueError(
            "cohorts whose users come back after a while earn nothing for independent noise every "
            "round; use correlated noise (tree, banded, blt), or poisson sampling"
        )
    if not limit.covers(replace(kept, num_rows=limit.num_rows)):
        raise ValueError(
            f"noise is made for users who take part {limit}, and cohorts keep to "
            f"{kept}; give both the same"
        )
    return event


def sampler_of(
    sampling: str, num_users: int, expected_cohort_size: float, cohort_cap: int | None = None
) -> Sampler:
    """Return the sampler of a name.

    Raises:
        ValueError: If the name is unknown, or the numbers do not describe a cohort.
    """
    if sampling == "poisson":
        return PoissonSampler(
            num_users=num_users, expected_cohort_size=expected_cohort_size, cap=cohort_cap
        )
    if sampling != "fixed":
        raise ValueError(f"sampling {sampling!r} is unknown; give 'poisson' or 'fixed'")
    if cohort_cap is not None:
        raise ValueError(
            f"cohort_cap {cohort_cap!r} has no meaning for fixed-size cohorts; "
            "leave it out or use poisson sampling"
        )
    size = positive_float("expected_cohort_size", expected_cohort_size)
    if not size.is_integer():
        raise ValueError(f"a fixed cohort of {size:g} users is not whole; give a whole number")
    return FixedSizeSampler(num_users=num_users, size=int(size))
