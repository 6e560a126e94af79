"""Who takes part in a round: cohorts drawn on the server from a frozen roster.

A sampler is a public rule; the key it is given and the ids it returns are secret. What a sampler
earns in privacy is decided by its type alone: independent draws earn Poisson amplification, a
cohort of fixed size earns only what is proved for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from fedpriv.mechanisms.privatizer import Cost
from fedpriv.privacy.event import NONPRIVATE, Event, cohort_event
from fedpriv.privacy.roster import check_roster, least_of
from fedpriv.ranges import positive_int
from fedpriv.rng import Key

Memory = Mapping[str, np.ndarray]
"""What a sampler remembers of earlier cohorts. Secret; empty for samplers without memory."""


class Sampler(Protocol):
    """A rule that draws the cohort of one attempt of one round."""

    @property
    def num_users(self) -> int:
        """Users on the roster, n."""
        ...

    @property
    def expected_cohort_size(self) -> float:
        """Mean size of a cohort: the public denominator of every round, whoever replies."""
        ...

    def event(self, cost: Cost) -> Event:
        """Return what an answer that costs so much for everybody costs under this sampling.

        Raises:
            ValueError: If no accountant has an answer for the pair.
        """
        ...

    def init(self) -> Memory:
        """Return what is remembered before the first cohort."""
        ...

    def next(
        self, memory: Memory, key: Key, roster: Sequence[str]
    ) -> tuple[tuple[str, ...], Memory]:
        """Return the drawn user ids, in roster order, and what is remembered of them.

        The empty cohort is a legal draw.

        Args:
            memory: From `init` or the last `next`; written down before the cohort is used.
            key: The key of this attempt's cohort, used for nothing else.
            roster: The frozen list of n distinct user ids.

        Raises:
            ValueError: If the roster is empty, of another size, or names a user twice.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonSampler:
    """Every user on the roster is drawn independently, with one probability.

    Attributes:
        num_users: Users on the roster, n.
        expected_cohort_size: Mean cohort, in (0, n]; a user is drawn with probability mean / n.
        cap: Largest cohort ever sent out, or None. When more users were drawn, a uniform subset
            of `cap` of them takes part. A plan wants the cap at twice the mean or above, where
            truncation is so rare that it costs nothing.

    Guarantees:
        * Inclusion is independent between users (without a cap) and between keys.
        * Neighbouring relation: with or without one rostered user's records. The roster itself,
          hence everybody else's draw, does not change.
        * Amplification: Poisson subsampling (Abadi et al. 2016, section 3); with a cap the
          truncated form, which the accountant prices through the roster's size.
    """

    num_users: int
    expected_cohort_size: float
    cap: int | None = None

    def __post_init__(self) -> None:
        event = self.event(Cost(kind="gaussian", value=1.0))  # every check on users, mean and cap
        del event
        object.__setattr__(self, "num_users", int(self.num_users))
        object.__setattr__(self, "expected_cohort_size", float(self.expected_cohort_size))

    @property
    def sampling_prob(self) -> float:
        """Probability that a given user is drawn in a given round, in (0, 1]."""
        return self.expected_cohort_size / self.num_users

    def event(self, cost: Cost) -> Event:
        """Return the amplified event of a Gaussian; others only where everybody takes part."""
        return _cohort_event(
            cost,
            num_users=self.num_users,
            expected_cohort_size=self.expected_cohort_size,
            cohort_cap=self.cap,
        )

    def init(self) -> Memory:
        """Return nothing: independent draws have no memory."""
        return {}

    def next(
        self, memory: Memory, key: Key, roster: Sequence[str]
    ) -> tuple[tuple[str, ...], Memory]:
        """Return between 0 and n ids (at most `cap`), in roster order."""
        return self.cohort(key, roster), memory

    def cohort(self, key: Key, roster: Sequence[str]) -> tuple[str, ...]:
        """Draw the cohort of one attempt; see `next`."""
        check_roster(roster, self.num_users)
        if key.mode == "secure":
            drawn = self._tossed(key)
        else:
            generator = key.generator()
            drawn = np.flatnonzero(generator.random(len(roster)) < self.sampling_prob)
            if self.cap is not None and drawn.size > self.cap:
                drawn = np.sort(generator.choice(drawn, self.cap, replace=False, shuffle=False))
        return tuple(roster[int(index)] for index in drawn)

    def _tossed(self, key: Key) -> np.ndarray:
        """Return positions drawn by 64 cryptographic bits each, against ⌊q 2^64⌋, whole."""
        threshold = math.floor(Fraction(self.expected_cohort_size) / self.num_users * 2**64)
        if threshold == 2**64:
            drawn = np.arange(self.num_users)
        else:
            drawn = np.flatnonzero(key.words(self.num_users) < np.uint64(threshold))
        if self.cap is None or drawn.size <= self.cap:
            return drawn
        return drawn[least_of(key.fold("cap"), drawn.size, self.cap)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesSampler:
    """The same draws, where the users on the roster are devices and a person has several of them.

    Attributes:
        draws: Who is drawn: independently, without a cap.
        devices: How many devices of the roster a person has at most.

    Guarantees:
        * Neighbouring relation: with or without one *person's* records, on all devices. It holds
          as long as nobody has more devices than that, which nothing here can see, and as long as
          every device's update is bounded alone.

    Raises:
        ValueError: If the draws are of another kind, or the number is out of range.
    """

    draws: Sampler
    devices: int

    def __post_init__(self) -> None:
        self.event(Cost(kind="gaussian", value=1.0))  # every check
        object.__setattr__(self, "devices", int(self.devices))

    @property
    def num_users(self) -> int:
        """Devices on the roster."""
        return self.draws.num_users

    @property
    def expected_cohort_size(self) -> float:
        """Mean number of devices drawn."""
        return self.draws.expected_cohort_size

    def event(self, cost: Cost) -> Event:
        """Return the event of a Gaussian, as it is for a person."""
        devices = positive_int("devices", self.devices)
        if devices == 1:
            return self.draws.event(cost)
        draws = self.draws
        if not isinstance(draws, PoissonSampler) or draws.cap is not None:
            raise ValueError(
                f"devices {devices} of one person are accounted with poisson sampling and without "
                "a cap only; leave the others out, or bound a person's devices together"
            )
        if cost.kind == "nonprivate":
            return NONPRIVATE
        if cost.kind != "gaussian" or cost.whole_run:
            raise ValueError(
                f"devices {devices} of one person are accounted for Gaussian noise that is drawn "
                "anew every round; bound a person's devices together"
            )
        return cohort_event(
            num_users=self.num_users,
            expected_cohort_size=self.expected_cohort_size,
            noise_multiplier=cost.value,
            devices=devices,
        )

    def init(self) -> Memory:
        """Return what the draws begin with."""
        return self.draws.init()

    def next(
        self, memory: Memory, key: Key, roster: Sequence[str]
    ) -> tuple[tuple[str, ...], Memory]:
        """Return the drawn devices' ids."""
        return self.draws.next(memory, key, roster)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSizeSampler:
    """A uniform subset of exactly `size` users, without replacement.

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

    num_users: int
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_users", positive_int("num_users", self.num_users))
        object.__setattr__(self, "size", positive_int("size", self.size))
        if self.size > self.num_users:
            raise ValueError(
                f"a cohort of {self.size} cannot be drawn from {self.num_users} users; "
                "lower the cohort size"
            )

    @property
    def expected_cohort_size(self) -> float:
        """The size."""
        return float(self.size)

    def event(self, cost: Cost) -> Event:
        """Return the event of a Gaussian over a cohort of fixed size."""
        return _cohort_event(
            cost,
            num_users=self.num_users,
            expected_cohort_size=self.expected_cohort_size,
            sampling="fixed",
        )

    def init(self) -> Memory:
        """Return nothing."""
        return {}

    def next(
        self, memory: Memory, key: Key, roster: Sequence[str]
    ) -> tuple[tuple[str, ...], Memory]:
        """Return `size` distinct ids, in roster order."""
        return self.cohort(key, roster), memory

    def cohort(self, key: Key, roster: Sequence[str]) -> tuple[str, ...]:
        """Draw the cohort of one attempt; see `next`."""
        check_roster(roster, self.num_users)
        if key.mode == "secure":
            drawn = least_of(key, len(roster), self.size)
        else:
            drawn = key.generator().choice(len(roster), self.size, replace=False, shuffle=False)
        return tuple(roster[int(index)] for index in np.sort(drawn))


@dataclass(frozen=True, slots=True, kw_only=True)
class Everybody:
    """The whole roster, every time: nothing is drawn, and nothing is amplified.

    Attributes:
        num_users: Users on the roster, n.
    """

    num_users: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_users", positive_int("num_users", self.num_users))

    @property
    def expected_cohort_size(self) -> float:
        """All of them."""
        return float(self.num_users)

    def event(self, cost: Cost) -> Event:
        """Return the cost as it is."""
        return _plain_event(cost)

    def init(self) -> Memory:
        """Return nothing."""
        return {}

    def next(
        self, memory: Memory, key: Key, roster: Sequence[str]
    ) -> tuple[tuple[str, ...], Memory]:
        """Return the roster."""
        check_roster(roster, self.num_users)
        return tuple(roster), memory


def _plain_event(cost: Cost) -> Event:
    limit = cost.participation
    if limit is not None and cost.kind != "gaussian":
        raise ValueError("its rows are accounted for disjoint batches; draw by Partition")
    if limit is not None and (limit.num_rows is None or limit.count < limit.num_rows):
        raise ValueError(
            f"noise is made for users who take part {limit}, and everybody takes part in every "
            "row; draw cohorts whose users come back later (SeparatedSampler, CyclicSampler)"
        )
    match cost.kind:
        case "gaussian":
            return Event(kind="gaussian", noise_multiplier=cost.value)
        case "pure":
            return Event(kind="pure", epsilon=cost.value)
        case "zcdp":
            return Event(kind="zcdp", rho=cost.value)
        case "objective-gaussian":
            return Event(kind=cost.kind, noise_multiplier=cost.value, shift=cost.shift)
    return NONPRIVATE


def _cohort_event(cost: Cost, **cohort: Any) -> Event:
    if cost.whole_run:
        raise ValueError(
            "noise that is charged for a whole run earns nothing by drawing cohorts; use a sampler "
            "whose participation its sensitivity was computed for"
        )
    if cost.kind == "gaussian":
        return cohort_event(noise_multiplier=cost.value, **cohort)
    cohort_event(noise_multiplier=1.0, **cohort)  # for its checks
    if cost.kind != "nonprivate" and cohort["expected_cohort_size"] != cohort["num_users"]:
        raise ValueError(
            f"a {cost.kind} answer over a drawn cohort has no accountant here; let everybody take "
            "part (Everybody)"
        )
    return _plain_event(cost)
