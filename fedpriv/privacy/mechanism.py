"""A mechanism: sampler, bound and privatizer, from which sensitivity, stddev and event follow.

The three are objects, and nothing about them is stored a second time: sensitivity, standard
deviation, denominator and event are derived from the very sampler, bound and privatizer that run.

A plan's file holds kind and fields of the three, and what follows from them, the event of a charge
first of all. Where all three kinds are known the mechanism is made again, and refused unless that
follows from it. A part of another kind is `Unknown`: its mechanism can be accounted by what is
recorded, and not be run. Nothing that a file names is imported.

>>> from fedpriv.mechanisms import Clip
>>> from fedpriv.mechanisms.gaussian import Gaussian
>>> from fedpriv.privacy.sampling import PoissonSampler
>>> mechanism = Mechanism(
...     sampler=PoissonSampler(num_users=400, expected_cohort_size=20),
...     bound=Clip(l2_clip_norm=0.5),
...     privatizer=Gaussian(noise_multiplier=1.0),
... )
>>> mechanism.sensitivity, mechanism.denominator, mechanism.event.kind
(0.5, 20.0, 'poisson-gaussian')
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from fedpriv.mechanisms.bounds import Bound
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.gaussian import check_stddev
from fedpriv.mechanisms.privatizer import AfterCrash, Draw, Privatizer
from fedpriv.parts import Part, PositiveFloat, PositiveInt, UnknownKindError
from fedpriv.privacy.sampling import Sampler
from fedpriv.ranges import json_object, positive_float, positive_int
from fedpriv.rng import Key, check_key
from fedpriv.sums import PartialSum
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(Part):
    """What follows from the parts of a mechanism, as a file holds it beside them.

    Attributes:
        event: What one charge does.
        after_crash: What becomes of an attempt that a crash ended.
        noise: Name of the privatizer.
        num_users: Users on the roster.
        expected_cohort_size: Mean number of users who take part.
        description: What it does, in a sentence.
    """

    event: Event
    after_crash: AfterCrash
    noise: str
    num_users: PositiveInt
    expected_cohort_size: PositiveFloat
    description: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A part of a kind that is not known here, or of a class that is not written.

    Attributes:
        value: Its JSON; None of a class that is not written.
        recorded: What follows from it and the other parts.
    """

    value: Mapping[str, Any] | None = field(hash=False)
    recorded: Recorded

    def to_json(self) -> Mapping[str, Any] | None:
        """Return what was read."""
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Rule by which one answer is computed from private data: sampler, bound, privatizer. Public.

    Attributes:
        sampler: Who takes part.
        bound: What bounds each contribution, after a public preconditioner where there is one.
        privatizer: What is added, and what leaves. Of a mechanism that was read each of the three
            may be `Unknown`: then it is accounted, and not run.
        micro_batch: Expected number of examples whose mean is bounded as one vector; 1 bounds
            each alone. Above 1 an example moves its micro-batch's vector from one place within
            the bound to another, so the sensitivity is twice the bound.
        recorded: What follows from these, the event of a charge first of all.

    Guarantees:
        * One answer costs `event`, if cohorts are drawn by `sampler`, every contribution went
          through `bound`, their sum is unweighted, `privatizer` made the answer of it with this
          `sensitivity`, and nothing else leaves.

    Raises:
        ValueError: If two parts do not fit: noise without a bound, a sampler under which no
            accountant answers for the privatizer, a standard deviation that no noise can have.
    """

    sampler: Sampler
    bound: Bound
    privatizer: Privatizer
    micro_batch: int = 1
    recorded: Recorded = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = positive_int("micro_batch", self.micro_batch)
        object.__setattr__(self, "micro_batch", size)
        for part in self._parts:
            if isinstance(part, Unknown):
                object.__setattr__(self, "recorded", part.recorded)
                self._check_recorded(part.recorded)
                return
        object.__setattr__(self, "recorded", self._record())  # refuses what no accountant prices
        takes = self.privatizer.takes
        if takes and not (isinstance(self.bound, takes) and size == 1):
            raise ValueError(
                f"{self.privatizer.name} noise is accounted for contributions bounded by "
                f"{' or '.join(kind.__name__ for kind in takes)}, each alone, not for "
                f"{self.bound!r} in micro-batches of {size}"
            )
        if size > 1 and size > self.expected_cohort_size:
            raise ValueError(
                f"micro_batch {size} is above the expected batch of "
                f"{self.expected_cohort_size:g}; lower it"
            )
        if self.is_private and math.isinf(self.bound.l2_bound):
            raise ValueError(
                f"noise {self.privatizer.name!r} without a bound protects no one: one user could "
                "move the sum without limit; bound by 'clip' or 'normalise'"
            )
        if self.noise_multiplier:
            positive_float("stddev (noise_multiplier times sensitivity)", self.stddev)
            check_stddev(self.stddev)  # here, and not after the first charge

    def _record(self) -> Recorded:
        size = self.sampler.expected_cohort_size
        return Recorded(
            event=self.sampler.event(self.privatizer),
            after_crash=self.privatizer.after_crash,
            noise=self.privatizer.name,
            num_users=self.sampler.num_users,
            expected_cohort_size=size,
            description=(
                f"{type(self.sampler).__name__} of {size:g} among {self.sampler.num_users}, each "
                f"contribution bounded to {self.l2_bound:g} (l2) by {type(self.bound).__name__}, "
                f"released by {self.privatizer.description}"
            ),
        )

    def _check_recorded(self, recorded: Recorded) -> None:
        """Refuse a record that contradicts those parts that are known here.

        Raises:
            ValueError: If it does.
        """
        sampler, noise = self.sampler, self.privatizer
        found: dict[str, Any] = {}
        if not isinstance(noise, Unknown):
            found |= {"noise": noise.name, "after_crash": noise.after_crash}
        if not isinstance(sampler, Unknown):
            size = sampler.expected_cohort_size
            found |= {"num_users": sampler.num_users, "expected_cohort_size": size}
        if len(found) == 4:  # both are known
            found["event"] = sampler.event(noise)
        for name, value in found.items():
            if getattr(recorded, name) != value:
                raise ValueError(
                    f"{name} {getattr(recorded, name)!r} is not what the parts make, {value!r}; it "
                    "was edited"
                )

    @property
    def _parts(self) -> tuple[object, object, object]:
        return self.sampler, self.bound, self.privatizer

    @property
    def runs(self) -> bool:
        """Whether all of its parts are known here; else it is accounted and not run."""
        return not any(isinstance(part, Unknown) for part in self._parts)

    @property
    def user_defined(self) -> tuple[str, ...]:
        """Its parts that are not fedpriv's own, in words; that they keep to the event is not known.

        Of a part that is not known here it cannot be told either.
        """
        named = zip(("sampler", "bound", "noise"), self._parts, strict=True)
        return tuple(f"{name} {kind}" for name, part in named for kind in _user_defined(part))

    @property
    def num_users(self) -> int:
        """Users on the roster (examples of the training set), n."""
        return self.recorded.num_users

    @property
    def expected_cohort_size(self) -> float:
        """Mean number of users drawn."""
        return self.recorded.expected_cohort_size

    @property
    def l2_bound(self) -> float:
        """The l2 norm that no contribution exceeds; infinite only without a guarantee."""
        return self.bound.l2_bound

    @property
    def sensitivity(self) -> float:
        """l2 distance that one neighbour moves the sum by at most; 0 where there is no bound."""
        if math.isinf(self.l2_bound):
            return 0.0
        return self.l2_bound * (1.0 if self.micro_batch == 1 else 2.0)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity; 0 for what is no Gaussian."""
        if isinstance(self.privatizer, Unknown):
            return self.event.noise_multiplier or 0.0
        event = self.privatizer.event
        return event.sigma if event.kind == "gaussian" else 0.0

    @property
    def stddev(self) -> float:
        """Standard deviation of Gaussian noise on the sum, in the units of an update; else 0."""
        return self.noise_multiplier * self.sensitivity

    @property
    def denominator(self) -> float:
        """The divisor of the noised sum: the expected number of bounded vectors."""
        return self.expected_cohort_size / self.micro_batch

    @property
    def event(self) -> Event:
        """The event of one charge; of the whole run where the privatizer is charged once."""
        return self.recorded.event

    @property
    def charged_once(self) -> bool:
        """Whether one charge pays for all rounds of a run."""
        return self.recorded.after_crash == "discard"

    @property
    def is_private(self) -> bool:
        """Whether the ε of an answer is finite."""
        return self.event.is_private

    @property
    def is_exact(self) -> bool:
        """Whether with a secure key its ε is that of real arithmetic: whole sums, whole noise.

        False of contributions that are computed in one batch (`Bound.batched`) and rounded to the
        grid one by one: one may turn the rounding of another.
        """
        bound = self.bound
        return bound.granularity is not None and not bound.batched and self.privatizer.on_grid

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; None of a part of a class that is not written."""
        return {
            "sampler": _part_to_json(self.sampler),
            "bound": _part_to_json(self.bound),
            "privatizer": _part_to_json(self.privatizer),
            "micro_batch": self.micro_batch,
            "recorded": self.recorded.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> Mechanism:
        """Return the mechanism that was written.

        Raises:
            ValueError: If it is something else, or its parts do not make what is recorded.
        """
        given = json_object(value)
        names = {"sampler", "bound", "privatizer", "micro_batch", "recorded"}
        if given is None or set(given) != names:
            raise ValueError(f"{value!r} is not a mechanism")
        recorded = Recorded.from_json(given["recorded"])
        found = cls(
            sampler=_read(Sampler, given["sampler"], recorded),
            bound=_read(Bound, given["bound"], recorded),
            privatizer=_read(Privatizer, given["privatizer"], recorded),
            micro_batch=given["micro_batch"],
        )
        if found.recorded != recorded:
            raise ValueError(f"{recorded.description!r} is not what its parts make; it was edited")
        return found

    def draw(self, template: Params, key: Key, *, once: bool = True) -> Draw:
        """Return the noise for one sum; draw it after the charge.

        With a secure key it is drawn on the bound's grid where there is one and the privatizer can.

        Args:
            template: Names and shapes of the sum.
            key: Folded by round *and* attempt, and used here only.
            once: Whether a secure key that was drawn from in this process is refused, as one loop's
                rounds may share it by mistake. False for a run, whose ledger numbers its draws.

        Raises:
            ValueError: If its noise is charged once: rows of that are drawn by a run. If a secure
                key was drawn from before: it would give the very same noise.
            TypeError: If the key is a generator or a seed.
        """
        check_key(key)
        if self.charged_once:
            raise ValueError(
                f"{self.privatizer.name} noise is a stream of rows, which a run draws in order; a "
                "single attempt cannot draw it"
            )
        if once and key.mode == "secure":
            if key in _DRAWN:
                raise ValueError(
                    "noise was drawn from this key before, and would be the same again; fold round "
                    "and attempt into it"
                )
            _DRAWN.add(key)
        return next(self.draws(template, key))

    def draws(self, template: Params, key: Key) -> Iterator[Draw]:
        """Yield the noise of sums, one or row after row: the same of equal keys.

        A run, whose ledger numbers its rows, takes each once. Otherwise use `draw`.

        Args:
            template: Names and shapes of the sums.
            key: Of an attempt, or of the run where rows are charged once.
        """
        given: dict[str, Any] = {"template": template, "sensitivity": self.sensitivity, "key": key}
        granularity = self.bound.granularity
        if key.mode == "secure" and granularity is not None and self.privatizer.on_grid:
            given["granularity"] = granularity
        for drawn in self.privatizer.draws(**given):
            if "granularity" in given and hasattr(drawn, "items"):
                _check_whole(self.privatizer.name, drawn)
            yield Draw(drawn, self)

    def release(self, total: PartialSum, draw: Draw) -> Any:
        """Return the noised, divided sum; the raw sum and the noise must not be used again.

        A sum is divided by the public denominator: neither dropouts nor an empty cohort change
        it, and the sum over an empty cohort is noised like any other.

        Args:
            total: The raw sum over the cohort, whose `l2_bound` is at most the mechanism's.
            draw: From `draw`, with a key of this round and attempt. It is used up.

        Raises:
            DrawUsedError: If the draw was added to a sum before.
            ValueError: If the draw is another mechanism's, or for other names or shapes; if the
                sum's contributions are not known to be within this mechanism's bound.
        """
        if self.is_private and not total.l2_bound <= self.l2_bound * (1.0 + 1e-12):
            raise ValueError(
                f"the sum's contributions are bounded to {total.l2_bound!r}, and the noise is for "
                f"{self.l2_bound!r}; sum what this mechanism's own bound has bounded"
            )
        grid = self.bound.granularity
        if self.is_private and grid is not None and total.granularity not in (None, grid):
            raise ValueError(
                f"the sum lies on a grid of {total.granularity!r}, and this mechanism's bound "
                f"rounds to {grid!r}; sum what that has bounded"
            )
        return self.privatizer.release(total, draw.take(total, self), 1.0 / self.denominator)


def _check_whole(name: str, noise: Params) -> None:
    """Refuse noise in floating point of a privatizer that draws on the grid by its own account."""
    for tensor, array in noise.items():
        if array.dtype != np.int64:
            raise ValueError(
                f"{name} noise has on_grid, and drew {array.dtype} for {tensor!r}; draw int64 "
                "steps of `granularity`, or leave on_grid False"
            )


def _user_defined(part: Any) -> Iterator[str]:
    """Yield names of classes in a part that are not fedpriv's own, or not known here."""
    if isinstance(part, Unknown):
        yield "of a class that is not written" if part.value is None else str(part.value["kind"])
    elif not type(part).__module__.startswith("fedpriv."):
        yield type(part).__name__
    elif is_dataclass(part):
        for item in fields(part):
            if isinstance(inner := getattr(part, item.name), Part):
                yield from _user_defined(inner)


def _part_to_json(part: Part | Unknown) -> Any:
    """Return kind and fields of a part; None of one that is not written."""
    with suppress(ValueError):
        return part.to_json()
    return None


def _read(base: type[Part], value: Any, recorded: Recorded) -> Any:
    """Return the part that was written, or an unknown one.

    Raises:
        ValueError: If a known kind refuses its fields, or the value is none of a part.
    """
    try:
        return base.from_json(value)
    except UnknownKindError:
        if value is not None and not isinstance((json_object(value) or {}).get("kind"), str):
            raise
        return Unknown(value, recorded)


_DRAWN: set[Key] = set()
"""Secure keys of this process that independent noise was drawn from; none is drawn from twice."""
