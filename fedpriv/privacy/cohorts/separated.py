"""Cohorts whose users come back only after so many rows: what correlated noise is priced for.

Who takes part when hangs on the key and the roster's size alone, never on what anybody holds, so
that one user's records change nothing but that user's own contributions ("zero-out"). A user who
was drawn has taken part, whether or not it answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.mechanisms.privatizer import Cost, Participation
from fedpriv.privacy.event import NONPRIVATE, Event
from fedpriv.privacy.roster import check_roster, least_of
from fedpriv.privacy.sampling import Memory
from fedpriv.ranges import positive_float, positive_int
from fedpriv.rng import Key

_NEVER = np.iinfo(np.int64).min // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedSampler:
    """A uniform cohort of those whose last row is far enough back, and who have rows left.

    Attributes:
        num_users: Users on the roster, n.
        size: Users a cohort; fewer where fewer are free.
        min_separation: b: a user of row i is in no other row j with |i - j| < b.
        most: In how many rows one user is at most.

    Guarantees:
        * The limit holds for every user in every run, resumed ones included: who took part is
          remembered in secret state that is written before a cohort is used. Rows that an
          interruption left open count as rows.
        * Nothing is earned by the randomness of cohorts.

    Raises:
        ValueError: If a number is out of range, or there are too few users for full cohorts.
    """

    num_users: int
    size: int
    min_separation: int
    most: int

    def __post_init__(self) -> None:
        for name in ("num_users", "size", "min_separation", "most"):
            object.__setattr__(self, name, positive_int(name, getattr(self, name)))
        if self.size * self.min_separation > self.num_users:
            raise ValueError(
                f"cohorts of {self.size:,} that are {self.min_separation:,} rows apart need "
                f"{self.size * self.min_separation:,} users and there are {self.num_users:,}; "
                "lower the cohort or the min-separation"
            )

    @property
    def expected_cohort_size(self) -> float:
        """The size: the denominator, also of a cohort that turned out smaller."""
        return float(self.size)

    @property
    def participation(self) -> Participation:
        """What is kept."""
        return Participation(most=self.most, min_separation=self.min_separation)

    def event(self, cost: Cost) -> Event:
        """Return the cost of a whole run as it is, if it was computed for what is kept here."""
        return _separated_event(cost, self.participation)

    def init(self) -> Memory:
        """Return that no one took part yet."""
        return {
            "last": np.full(self.num_users, _NEVER, np.int64),
            "times": np.zeros(self.num_users, np.int64),
            "row": np.zeros(1, np.int64),
        }

    def next(
        self, memory: Memory, key: Key, roster: Sequence[str]
    ) -> tuple[tuple[str, ...], Memory]:
        """Return the ids of a cohort, in roster order."""
        check_roster(roster, self.num_users)
        row = int(memory["row"][0]) + 1
        free = np.flatnonzero(
            (memory["times"] < self.most) & (row - memory["last"] >= self.min_separation)
        )
        size = min(self.size, free.size)
        if key.mode == "secure":
            chosen = least_of(key, free.size, size)
        else:
            chosen = key.generator().choice(free.size, size, replace=False, shuffle=False)
        drawn = np.sort(free[chosen])
        last, times = memory["last"].copy(), memory["times"].copy()
        last[drawn] = row
        times[drawn] += 1
        following = {"last": last, "times": times, "row": np.array([row], np.int64)}
        return tuple(roster[int(index)] for index in drawn), following


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicSampler:
    """Groups that take turns: every user in one of b groups, and group t mod b in row t.

    Attributes:
        num_users: Users on the roster, n.
        groups: b, how many groups there are and how many rows apart one comes back.
        most: In how many rows one user is at most.
        expected_cohort_size: Mean cohort, at most the smallest group; where it is less, each user
            of the group is drawn independently (Poisson). None lets the whole group take part.

    Guarantees:
        * As `SeparatedSampler`. Groups are drawn once, by chance; sizes differ by one at most.
        * With independent draws within a group and a strategy whose rows never add up for one user
          (bands <= b), a run costs what `most` answers over Poisson cohorts do (Choquette-Choo et
          al. 2023, "(Amplified) Banded Matrix Factorization", Theorem 4).

    Raises:
        ValueError: If a number is out of range.
    """

    num_users: int
    groups: int
    most: int
    mean: float | None = None

    def __post_init__(self) -> None:
        for name in ("num_users", "groups", "most"):
            object.__setattr__(self, name, positive_int(name, getattr(self, name)))
        if self.groups > self.num_users:
            raise ValueError(
                f"{self.groups} groups of {self.num_users} users; lower min-separation"
            )
        if self.mean is not None:
            object.__setattr__(self, "mean", positive_float("expected_cohort_size", self.mean))
            if self.mean > self.num_users // self.groups:
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
        """What is kept."""
        return Participation(most=self.most, min_separation=self.groups)

    def event(self, cost: Cost) -> Event:
        """Return the cost of a whole run, amplified where that is proved."""
        event = _separated_event(cost, self.participation)
        if self.mean is None or cost.kind != "gaussian" or cost.one_row is None:
            return event
        assert cost.participation is not None
        return Event(
            kind="cyclic-poisson-gaussian",
            noise_multiplier=cost.one_row,
            sampling_prob=self.sampling_prob,
            rows=min(cost.participation.count, self.most),
        )

    def init(self) -> Memory:
        """Return that there are no groups yet."""
        return {
            "order": np.zeros(0, np.int64),
            "times": np.zeros(self.groups, np.int64),
            "row": np.zeros(1, np.int64),
        }

    def next(
        self, memory: Memory, key: Key, roster: Sequence[str]
    ) -> tuple[tuple[str, ...], Memory]:
        """Return the ids of those drawn of the group in turn, in roster order."""
        check_roster(roster, self.num_users)
        row = int(memory["row"][0]) + 1
        order = memory["order"]
        if not order.size:
            own = key.fold("groups")
            if key.mode == "secure":
                order = np.argsort(own.words(self.num_users), kind="stable").astype(np.int64)
            else:
                order = own.generator().permutation(self.num_users)
        group = (row - 1) % self.groups
        times = memory["times"].copy()
        members = np.sort(order[group :: self.groups])
        if times[group] >= self.most:
            members = members[:0]
        times[group] += 1
        drawn = members[self._drawn(key, members.size)]
        following = {"order": order, "times": times, "row": np.array([row], np.int64)}
        return tuple(roster[int(index)] for index in drawn), following

    def _drawn(self, key: Key, size: int) -> np.ndarray:
        if self.mean is None:
            return np.arange(size)
        if key.mode == "secure":
            return np.flatnonzero(
                key.words(size) < _threshold(self.mean, self.num_users // self.groups)
            )
        return np.flatnonzero(key.generator().random(size) < self.sampling_prob)


def _threshold(mean: float, size: int) -> np.uint64:
    """Return ⌊q 2^64⌋, at most 2^64 - 1: a user is drawn with that probability or a little less."""
    import math
    from fractions import Fraction

    return np.uint64(min(math.floor(Fraction(mean) / size * 2**64), 2**64 - 1))


def _separated_event(cost: Cost, kept: Participation) -> Event:
    """Return the event of a whole run whose noise was made for what a sampler keeps.

    Raises:
        ValueError: If it was made for less, or is no noise of a whole run.
    """
    if cost.kind == "nonprivate":
        return NONPRIVATE
    if cost.kind != "gaussian" or not cost.whole_run or cost.participation is None:
        raise ValueError(
            "cohorts whose users come back after a while earn nothing for noise that is drawn anew "
            "every round; use correlated noise (tree, banded, blt), or poisson sampling"
        )
    if not cost.participation.covers(kept_in(kept, cost.participation)):
        raise ValueError(
            f"noise is made for users who take part {cost.participation}, and cohorts keep to "
            f"{kept}; give both the same"
        )
    return Event(kind="gaussian", noise_multiplier=cost.value)


def kept_in(kept: Participation, made_for: Participation) -> Participation:
    """Return what a sampler keeps to within the rows that noise was made for."""
    return Participation(
        most=kept.most, min_separation=kept.min_separation, num_rows=made_for.num_rows
    )
