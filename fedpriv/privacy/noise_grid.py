"""Noise on the mean for a grid of cohort sizes and numbers of rounds at one ε, before a run.

What a cohort and a number of rounds do to learning is mostly one value: the standard deviation of
the noise on each coordinate of the released mean, divided by the clip norm C.

At a fixed ε and number of rounds it falls like 1/cohort while cohorts are small, since hardly more
noise is needed, and not at all where they are large, since the noise needed grows with the cohort.
A doubling lowers it by a factor of 2 at the one end and of 1 at the other. The saturation point
lies half way: from there on larger cohorts hardly help.

>>> import fedpriv as fp
>>> plan = fp.Rounds(users=400, cohort=20, rounds=50).plan(l2_clip_norm=1.0, noise_multiplier=1.0)
>>> grid = noise_grid(plan, 8.0, cohorts=(20, 40), rounds=(50,))
>>> [f"{point.noise_on_mean:.3f}" for point in grid.points]
['0.025', '0.016']
>>> print(find_saturation_point(100, [(10.0, 1.0), (20.0, 0.55), (40.0, 0.45), (80.0, 0.42)]))
about 16
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from fedpriv.mechanisms.event import Event, Relation
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.accounting import NoNoiseFitsError, calibrate
from fedpriv.privacy.epsilon import format_delta
from fedpriv.privacy.plan import Plan, unit_words
from fedpriv.privacy.sampling import (
    DevicesSampler,
    FixedSizeSampler,
    PoissonSampler,
    sampler_of,
)
from fedpriv.ranges import positive_float, positive_int

SATURATION_FACTOR = math.sqrt(2.0)
"""Half way, on a logarithmic scale, between a doubling that halves the noise and one in vain."""


def describe_saturation_point(drawn: str) -> str:
    """Return the definition of the saturation point; `drawn` is "cohort" or "batch"."""
    return (
        f"saturation point: the {drawn} from which on a doubling lowers the noise on the mean by "
        f"less than a factor of {SATURATION_FACTOR:.2f} (√2), half way between 2, where it falls "
        f"like 1/{drawn}, and 1, where it no longer falls"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationPoint:
    """The cohort size from which on doubling it lowers the noise by less than √2.

    Attributes:
        rounds: Of the line.
        cohort: The saturation point where `side` is "at"; else the end of the cohorts that were
            looked at: the point lies at or below it, or above it. None where too few were.
        side: "at", "below", "above" or "unknown".
    """

    rounds: int
    cohort: float | None
    side: Literal["at", "below", "above", "unknown"]

    def __repr__(self) -> str:
        if self.cohort is None:
            return "unknown"
        shown = f"{float(f'{self.cohort:.2g}'):,g}"
        return {"at": f"about {shown}", "below": f"≤ {shown}", "above": f"> {shown}"}[self.side]


def find_saturation_point(rounds: int, line: Sequence[tuple[float, float]]) -> SaturationPoint:
    """Return the saturation point of the noise for one number of rounds.

    Between cohorts, the logarithm of the noise is interpolated linearly in that of the cohort. A
    cohort is looked at where its double is on the line too.

    Args:
        rounds: Of the line.
        line: Cohorts, increasing, and noise on the mean.
    """
    logs = [(math.log(cohort), math.log(noise)) for cohort, noise in line]
    double, wanted = math.log(2.0), math.log(SATURATION_FACTOR)
    if not logs or logs[0][0] + double > logs[-1][0] + 1e-9:
        return SaturationPoint(rounds=rounds, cohort=None, side="unknown")

    def gain(at: float) -> float:
        here, there = np.interp([at, at + double], [x for x, _ in logs], [y for _, y in logs])
        return float(here - there)

    # The gain is linear between places where either end meets a cohort of the line.
    last = max(logs[-1][0] - double, logs[0][0])  # for one doubling, but for rounding
    places = {x for x, _ in logs} | {x - double for x, _ in logs} | {last}
    within = sorted(place for place in places if logs[0][0] <= place <= last)
    if gain(within[0]) < wanted:
        return SaturationPoint(rounds=rounds, cohort=math.exp(within[0]), side="below")
    for left, right in itertools.pairwise(within):
        high, low = gain(left), gain(right)
        if low < wanted:
            share = (high - wanted) / (high - low)
            at = math.exp(left + share * (right - left))
            return SaturationPoint(rounds=rounds, cohort=at, side="at")
    return SaturationPoint(rounds=rounds, cohort=math.exp(last), side="above")


DEFAULT_ROUNDS = (25, 50, 100, 200, 400)
_FIRST_AT_MOST, _UP_TO = 250.0, 4000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisePoint:
    """One cell of a grid.

    Attributes:
        cohort: Expected cohort, or its exact size.
        rounds: Rounds, each charged once.
        noise_multiplier: The least σ that keeps ε within the target; None where there is none.
        noise_on_mean: Stddev of the noise on a coordinate of the released mean over C; None
            likewise.
        reason: Why there is none, else empty.
    """

    cohort: float
    rounds: int
    noise_multiplier: float | None
    noise_on_mean: float | None
    reason: str = ""

    @property
    def accumulated(self) -> float | None:
        """√rounds times the noise on the mean: noise of the sum of all released means, over C."""
        return None if self.noise_on_mean is None else math.sqrt(self.rounds) * self.noise_on_mean

    @property
    def text(self) -> str:
        """The noise on the mean in thousandths of C, three figures; "–" where there is none."""
        return "–" if self.noise_on_mean is None else f"{1e3 * self.noise_on_mean:#.3g}".rstrip(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseGrid:
    """Noise on the mean for every pair of a cohort and a number of rounds, with saturation points.

    Attributes:
        num_users: Users on the roster (examples of the training set).
        target_epsilon: The ε that no cell exceeds.
        delta: Its δ.
        relation: The neighbouring relation.
        unit: What one neighbour is: "user" or "example".
        accountant: Who computed ε.
        sampling: "poisson" or "fixed".
        cohorts: In increasing order.
        rounds: In increasing order.
        points: Of each cohort in turn, one for each number of rounds.
        saturation_points: One for each number of rounds.
    """

    num_users: int
    target_epsilon: float
    delta: float
    relation: Relation
    unit: str
    accountant: str
    sampling: str
    cohorts: tuple[float, ...]
    rounds: tuple[int, ...]
    points: tuple[NoisePoint, ...]
    saturation_points: tuple[SaturationPoint, ...]

    @property
    def privacy(self) -> str:
        """Description of the guarantee that every cell has."""
        return (
            f"ε ≤ {self.target_epsilon:g} at δ = {format_delta(self.delta)} "
            f"({self.relation.value}, per {self.unit}, by {self.accountant})"
        )

    def at(self, cohort: float, rounds: int) -> NoisePoint:
        """Return a cell.

        Raises:
            KeyError: If the grid has no such cohort or number of rounds.
        """
        for point in self.points:
            if point.cohort == cohort and point.rounds == rounds:
                return point
        raise KeyError((cohort, rounds))

    def line(self, rounds: int) -> tuple[NoisePoint, ...]:
        """Return the cells of a number of rounds, by cohort."""
        return tuple(point for point in self.points if point.rounds == rounds)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why cells have no noise, in a line each."""
        return tuple(sorted({f"–: {point.reason}" for point in self.points if point.reason}))

    def __repr__(self) -> str:
        words = unit_words(self.unit)
        rows = [[words.drawn, *(f"{rounds:,} {words.turn}s" for rounds in self.rounds)]]
        for cohort in self.cohorts:
            rows.append([f"{cohort:,g}", *(self.at(cohort, r).text for r in self.rounds)])
        rows.append(["saturation point", *(str(point) for point in self.saturation_points)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [
            "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
            for row in rows
        ]
        drawn = "exactly" if self.sampling == "fixed" else "drawn independently"
        return "\n".join([
            "noise on the mean per C, in thousandths: stddev of the noise on a coordinate of the "
            "released mean / C",
            f"each calibrated to {self.privacy}; of {self.num_users:,} {self.unit}s, {drawn}",
            *table,
            describe_saturation_point(words.drawn),
            *self.reasons,
        ])  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "relation": self.relation.value,
            "unit": self.unit,
            "accountant": self.accountant,
            "sampling": self.sampling,
            "users": self.num_users,
            "points": [
                {**asdict(point), "accumulated": point.accumulated} for point in self.points
            ],
            "saturation_points": [asdict(point) for point in self.saturation_points],
            "saturation_point_is": describe_saturation_point(unit_words(self.unit).drawn),
        }


def default_cohorts(num_users: int) -> tuple[float, ...]:
    """Return doublings from about a twentieth of the roster (at most 250) to 4,000 or the roster.

    >>> default_cohorts(6716)
    (250.0, 500.0, 1000.0, 2000.0, 4000.0)
    >>> default_cohorts(400)
    (20.0, 40.0, 80.0, 160.0, 320.0)
    """
    users = positive_int("num_users", num_users)
    cohort = max(1.0, float(f"{min(users / 20, _FIRST_AT_MOST):.2g}") // 1)
    found = [cohort]
    while 2 * found[-1] <= users and found[-1] < _UP_TO:
        found.append(2 * found[-1])
    return tuple(found)


def noise_grid(
    plan: Plan,
    target_epsilon: float,
    *,
    cohorts: Sequence[float] | None = None,
    rounds: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NoiseGrid:
    """Return the noise on the mean of every cohort and number of rounds at a target ε.

    Args:
        plan: What each cell has in common: users, δ, relation, unit, trials, how cohorts are drawn
            (a cap is so many times the cohort, and at least twice; everybody is Poisson), and how
            far one neighbour moves a bounded vector. Its noise and numbers do not matter.
        target_epsilon: The ε not to be exceeded.
        cohorts: Expected cohorts (poisson) or sizes (fixed); None for `default_cohorts`.
        rounds: Numbers of rounds; None for `DEFAULT_ROUNDS`.
        progress: Called with how many cells are done, of how many.

    Guarantees:
        * Every cell is what `fedpriv.privacy.accounting.calibrate` finds for it alone, bit for
          bit: cells share no starting point, so each takes its half second.

    Raises:
        ValueError: If a number is out of range. A cell that no noise multiplier fits is not
            refused; it says so.
    """
    target = positive_float("target_epsilon", target_epsilon)
    assert plan.delta is not None
    mechanism, sampler, devices = plan.live_mechanism, plan.live_mechanism.sampler, 1
    num_users, vector = plan.num_users, mechanism.sensitivity / mechanism.l2_bound
    if isinstance(sampler, DevicesSampler):
        sampler, devices = sampler.draws, sampler.devices
    sampling = "fixed" if isinstance(sampler, FixedSizeSampler) else "poisson"
    given = sampler.cap if isinstance(sampler, PoissonSampler) else None
    sizes = default_cohorts(num_users) if cohorts is None else cohorts
    counts = DEFAULT_ROUNDS if rounds is None else rounds
    sizes = tuple(sorted({positive_float("cohort", size) for size in sizes}))
    counts = tuple(sorted({positive_int("rounds", count) for count in counts}))
    if not sizes or not counts:
        raise ValueError("a grid without cohorts or without rounds has no cells; give some")

    def event(cohort: float, sigma: float) -> Event:
        cap = None
        if given is not None:  # a cap over its cohort, times that, is the cap again
            over = given / mechanism.expected_cohort_size
            least = math.ceil(2.0 * cohort)  # as samplers ask for
            cap = min(max(math.ceil(over * cohort * (1.0 - 1e-12)), least), num_users)
        drawn = sampler_of(sampling, num_users, cohort, cap)
        if devices > 1:
            drawn = DevicesSampler(draws=drawn, devices=devices)
        return drawn.event(Gaussian(noise_multiplier=sigma))

    kinds = {event(cohort, 1.0).kind for cohort in sizes}  # refuses bad numbers before any search
    pairs = [(cohort, count) for cohort in sizes for count in counts]
    found: list[NoisePoint] = []
    progress(0, len(pairs))
    for cohort, count in pairs:  # threads would not help: most of it holds Python's lock
        sigma, reason = None, ""
        try:
            sigma = calibrate(
                partial(event, cohort),
                count,
                target_epsilon=target,
                delta=plan.delta,
                relation=plan.relation,
                trials=plan.trials,
            )
        except NoNoiseFitsError as error:
            reason = str(error).replace("target_epsilon", "the target")
        noise = None if sigma is None else sigma * (vector * mechanism.micro_batch) / cohort
        found.append(
            NoisePoint(
                cohort=cohort,
                rounds=count,
                noise_multiplier=sigma,
                noise_on_mean=noise,
                reason=reason,
            )
        )
        progress(len(found), len(pairs))
    by = "RDP" if len(kinds) == 1 else "RDP, PLD for everybody"
    if plan.trials is not None:
        by = "RDP"
    elif "fixed-size-gaussian" not in kinds:
        by = "PLD"
    return NoiseGrid(
        num_users=num_users,
        target_epsilon=target,
        delta=plan.delta,
        relation=plan.relation,
        unit=plan.unit if devices == 1 else "person",
        accountant=by,
        sampling=sampling,
        cohorts=sizes,
        rounds=counts,
        points=tuple(found),
        saturation_points=tuple(
            find_saturation_point(
                count,
                [
                    (point.cohort, point.noise_on_mean)
                    for point in found
                    if point.rounds == count and point.noise_on_mean is not None
                ],
            )
            for count in counts
        ),
    )
