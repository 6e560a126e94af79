"""From which examples are right to gains with intervals, and what they allow to be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.rng import Key
from simulations.evaluation.bootstrap import Interval, Ratio, Resampled, resampled
from simulations.evaluation.held_out import held_out, majority
from simulations.scraps.checkpoints import LAST
from simulations.scraps.seeds import t_half
from simulations.scraps.tags.runs import Site
from simulations.scraps.tags.study import AT, Chosen, Rights

_SAID = {
    (1, 1): "better",
    (-1, -1): "worse",
    (0, 1): "better over seeds, of these threads alone",
    (0, -1): "worse over seeds, of these threads alone",
    (0, 0): "no difference that is clear",
}
MAJORITY, PUBLIC = "majority tag", "public-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Of one method over another, in points of accuracy.

    Attributes:
        value: The mean over seeds.
        by_seed: Half of the 95 % t-interval over paired seeds; infinite of one seed.
        by_thread: 95 % by a paired bootstrap over threads and seeds; None of too few threads.
    """

    value: float
    by_seed: float
    by_thread: Interval | None

    @property
    def clear(self) -> int:
        """1 or -1 where both intervals are on one side of zero, else 0."""
        if self.by_thread is None:
            return 0
        of_threads = _side(self.by_thread.low, self.by_thread.high)
        return of_threads if of_threads == self.over_seeds else 0

    @property
    def over_seeds(self) -> int:
        """1 or -1 where the interval over seeds is on one side of zero, else 0."""
        return _side(self.value - self.by_seed, self.value + self.by_seed)


def _side(low: float, high: float) -> int:
    return 1 if low > 0 else -1 if high < 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A method of one case.

    Attributes:
        accuracy: Per cent, mean over seeds.
        stddev: Over seeds, points; 0 of one.
        gain: Over the last iterate; None of that itself.
        over_majority: Over the majority tag.
    """

    accuracy: float
    stddev: float
    gain: Gain | None
    over_majority: Gain


def lines_of(site: Site, right: Rights, public: np.ndarray) -> dict[str, Line]:
    """Return the figures of a case's methods, of the majority tag and of the public start.

    Args:
        site: Whose threads.
        right: By method, uint8 (seeds, n).
        public: What the public start has right, uint8 (n,).
    """
    view = site.view()
    constant = majority(view).right
    seeds = len(next(iter(right.values())))
    given = dict(right)
    for name, one in ((MAJORITY, constant), (PUBLIC, public)):
        given[name] = np.repeat(one[None], seeds, axis=0)
    count = np.ones(len(constant))
    drawn = resampled(
        held_out(view).threads,
        [(n, Ratio(values=r.T.astype(float), counts=count)) for n, r in given.items()],
        generator=Key.simulation(0).fold("scraps").generator(),
    )
    return {
        name: Line(
            accuracy=100 * float(one.mean()),
            stddev=100 * float(one.mean(axis=1).std(ddof=1)) if seeds > 1 else 0.0,
            gain=None if name == LAST else _gain(given, drawn, name, LAST),
            over_majority=_gain(given, drawn, name, MAJORITY),
        )
        for name, one in given.items()
    }


def _gain(given: Rights, drawn: Mapping[str, Resampled], name: str, other: str) -> Gain:
    apart = 100 * (given[name].mean(axis=1) - given[other].mean(axis=1))
    return Gain(
        value=float(apart.mean()),
        by_seed=t_half(apart),
        by_thread=(drawn[name] - drawn[other]).interval(),
    )


def chosen_methods(chosen: Chosen, lines: Mapping[str, Line]) -> dict[str, list[str]]:
    """Return what a verdict is of: aggregates chosen beforehand, and what was trained over them."""
    kinds = list(chosen.aggregate.values())
    return {
        "inference": [name for name in kinds if name in lines],
        "training": [name for name in lines if AT in name],
    }


def verdict(lines: Mapping[str, Line], names: Sequence[str]) -> str:
    """Return what may be said of some methods against the last iterate."""
    if lines[LAST].over_majority.clear < 1:
        return "no signal: the last iterate is not above the majority tag"
    groups: dict[str, list[str]] = {said: [] for said in _SAID.values()}
    for name in names:
        gain = lines[name].gain
        if gain is not None:
            groups[_SAID[gain.clear, gain.over_seeds]].append(f"{name} ({gain.value:+.2f})")
    found = [f"{said}: {', '.join(shown)}" for said, shown in groups.items() if shown]
    return "; ".join(found) if found else "nothing was measured"
