"""Paired differences between methods at equal ε, with intervals clustered by user where possible.

Two methods that were trained with the same seeds are compared seed by seed. Where the headline
measure of each user is known (a diagnostic of simulations), users and seeds are resampled, both at
once (`fedpriv.report.bootstrap`); otherwise the interval is Student's t over the differences of the
seeds, and speaks about seeds alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from fedpriv.measures import UserSums
from fedpriv.report.bootstrap import REPLICATES, Interval
from fedpriv.report.comparison.groups import Group, Section, curves_of
from fedpriv.report.estimate import SEED, estimate, user_interval
from fedpriv.report.run_record import RunRecord

PUBLIC_ONLY = "public-only"
BY_USER = "users and seeds, paired bootstrap"
BY_USER_ALONE = "users, of one seed, paired bootstrap"
BY_SEED = "seeds, paired t-interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The headline of one method less that of another at one ε.

    Attributes:
        part: Title of the section.
        level: The ε of both; infinite without privacy.
        first: Name of the method.
        second: Name of the other one, or "public-only".
        value: Mean difference over the seeds that both have.
        low: Lower end of its 95 % interval; None where one seed alone gives none.
        high: Upper end.
        seeds: How many seeds both have.
        clusters: What the interval is over: `BY_USER`, `BY_USER_ALONE` or `BY_SEED`; "" without.
    """

    part: str
    level: float
    first: str
    second: str
    value: float
    low: float | None
    high: float | None
    seeds: int
    clusters: str

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval, and 0 is not in it."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def reversed(self) -> Difference:
        """Return the second method less the first."""
        ends = (None if end is None else -end for end in (self.high, self.low))
        low, high = ends
        return Difference(
            part=self.part,
            level=self.level,
            first=self.second,
            second=self.first,
            value=-self.value,
            low=low,
            high=high,
            seeds=self.seeds,
            clusters=self.clusters,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; an infinite ε is null."""
        return {
            "data": self.part,
            "epsilon": self.level if math.isfinite(self.level) else None,
            "first": self.first,
            "second": self.second,
            "difference": self.value,
            "interval": None if self.low is None else [self.low, self.high],
            "seeds": self.seeds,
            "interval_over": self.clusters,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Track:
    """One method at one ε: its value, that of public-only, and its users' sums, by seed; roster."""

    name: str
    values: Mapping[int, float]
    public: Mapping[int, float]
    users: Mapping[int, UserSums]
    roster: object


def paired_differences(section: Section, *, replicates: int = REPLICATES) -> list[Difference]:
    """Return every pair of a section's methods at each ε, and each method less public-only.

    Runs without a seed (secure mode) are paired with nothing, and unfinished ones are left out.

    Args:
        section: Groups that measure one thing on one split.
        replicates: Of the bootstrap.
    """
    names = {id(g): curve.label for curve in curves_of(section.groups) for g in curve.groups}
    levels: dict[float, list[Group]] = {}
    for group in section.groups:
        if group.finished:
            levels.setdefault(group.level, []).append(group)
    found = []
    for level in sorted(levels):
        tracks = [_track(section, group, names[id(group)]) for group in levels[level]]
        found += _differences(section.corpus, level, tracks, replicates)
    return found


def _track(section: Section, group: Group, name: str) -> _Track:
    lead = section.lead
    values: dict[int, float] = {}
    public: dict[int, float] = {}
    users: dict[int, UserSums] = {}
    sums: Sequence[UserSums | None] = group.by_user or [None] * len(group.runs)
    for run, of_users in zip(group.runs, sums, strict=True):
        seed = _seed(run)
        value = None if lead is None else run.reached(lead.key, lead.rows(run))
        if lead is None or seed is None or value is None:
            continue
        values[seed] = value
        # Public-only is of the same examples as the diagnosed value, wherever there is one.
        if lead.diagnosed or run.reached(lead.measure.name, run.diagnosed) is None:
            known = run.public_only(lead.measure)
            if known is not None:
                public[seed] = known
        if of_users is not None and lead.diagnosed:
            users[seed] = of_users
            if of_users.public_value is not None and (total := of_users.count.sum()):
                public[seed] = float(of_users.public_value.sum() / total)
    roster = group.head.corpus.get("roster_sha256")
    return _Track(name=name, values=values, public=public, users=users, roster=roster)


def _seed(run: RunRecord) -> int | None:
    seed = run.options.get("seed")
    return seed if run.simulated and isinstance(seed, int) else None


def _differences(
    part: str, level: float, tracks: Sequence[_Track], replicates: int
) -> list[Difference]:
    generator = np.random.default_rng(SEED)
    found = []
    for one, other in combinations(tracks, 2):
        if seeds := sorted(one.values.keys() & other.values.keys()):
            pairs = [(one.values[seed], other.values[seed]) for seed in seeds]
            clustered = None
            if all(seed in track.users for track in (one, other) for seed in seeds):
                sums = [(one.users[seed], other.users[seed]) for seed in seeds]
                if one.roster == other.roster and all(
                    np.array_equal(a.count, b.count) for a, b in sums
                ):
                    clustered = user_interval(
                        [a.count for a, _ in sums],
                        [a.value - b.value for a, b in sums],
                        generator,
                        replicates,
                    )
            found.append(_difference(part, level, (one.name, other.name), pairs, clustered))
    for track in tracks:
        if seeds := sorted(track.public):
            pairs = [(track.values[seed], track.public[seed]) for seed in seeds]
            sums = [track.users[seed] for seed in seeds if seed in track.users]
            over = [gained for one in sums if (gained := one.over_public) is not None]
            clustered = None
            if len(over) == len(seeds):
                clustered = user_interval([one.count for one in sums], over, generator, replicates)
            found.append(_difference(part, level, (track.name, PUBLIC_ONLY), pairs, clustered))
    return found


def _difference(
    part: str,
    level: float,
    names: tuple[str, str],
    pairs: Sequence[tuple[float, float]],
    clustered: Interval | None,
) -> Difference:
    over_seeds = estimate([a - b for a, b in pairs])
    assert over_seeds is not None  # a value that was reached is finite
    ends = over_seeds.interval if clustered is None else (clustered.low, clustered.high)
    low, high = ends if ends is not None else (None, None)
    over = BY_USER if len(pairs) > 1 else BY_USER_ALONE
    return Difference(
        part=part,
        level=level,
        first=names[0],
        second=names[1],
        value=over_seeds.mean,
        low=low,
        high=high,
        seeds=len(pairs),
        clusters="" if low is None else BY_SEED if clustered is None else over,
    )
