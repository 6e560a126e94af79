"""A mechanism: sampler, bound and privatizer, from which sensitivity, stddev and event follow.

The three are objects, and nothing about them is stored a second time: sensitivity, standard
deviation, denominator and event are derived from the very sampler, bound and privatizer that run.

A plan's file holds a `RecordedMechanism`: kind and fields of the three, and what follows from them,
the event of a charge first of all. Where all three kinds are known the mechanism is made again, and
refused unless it is what was recorded. Otherwise the record stands in its place, which can be
accounted and not be run: nothing that a file names is imported.

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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from fedpriv.mechanisms.bounds import Bound
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.gaussian import check_stddev
from fedpriv.mechanisms.privatizer import AfterCrash, Draw, Memory, Privatizer
from fedpriv.parts import Part, UnknownKindError
from fedpriv.privacy.sampling import Sampler
from fedpriv.ranges import json_object, positive_float, positive_int, set_checked
from fedpriv.rng import Key, check_key
from fedpriv.sums import PartialSum
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Rule by which one answer is computed from private data: sampler, bound, privatizer. Public.

    Attributes:
        sampler: Who takes part.
        bound: What bounds each contribution, after a public preconditioner where there is one.
        privatizer: What is added, and what leaves.
        micro_batch: Expected number of examples whose mean is bounded as one vector; 1 bounds
            each alone. Above 1 an example moves its micro-batch's vector from one place within
            the bound to another, so the sensitivity is twice the bound.

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
    _event: Event = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        size = positive_int("micro_batch", self.micro_batch)
        object.__setattr__(self, "micro_batch", size)
        if size > 1 and size > self.expected_cohort_size:
            raise ValueError(
                f"micro_batch {size} is above the expected batch of "
                f"{self.expected_cohort_size:g}; lower it"
            )
        event = self.sampler.event(self.privatizer)  # refuses what no accountant prices
        object.__setattr__(self, "_event", event)
        if event.is_private and math.isinf(self.bound.l2_bound):
            raise ValueError(
                f"noise {self.privatizer.name!r} without a bound protects no one: one user could "
                "move the sum without limit; bound by 'clip' or 'normalise'"
            )
        if self.noise_multiplier:
            positive_float("stddev (noise_multiplier times sensitivity)", self.stddev)
            check_stddev(self.stddev)  # here, and not after the first charge

    @property
    def num_users(self) -> int:
        """Users on the roster (examples of the training set), n."""
        return self.sampler.num_users

    @property
    def expected_cohort_size(self) -> float:
        """Mean number of users drawn."""
        return self.sampler.expected_cohort_size

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
        return self._event

    @property
    def charged_once(self) -> bool:
        """Whether one charge pays for all rounds of a run."""
        return self.privatizer.charged_once

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

    def draw(self, template: Params, key: Key, *, once: bool = True) -> Draw:
        """Return the noise of a memoryless privatizer for one sum; draw it after the charge.

        With a secure key it is drawn on the bound's grid where there is one and the privatizer can.

        Args:
            template: Names and shapes of the sum.
            key: Folded by round *and* attempt, and used here only.
            once: Whether a secure key that was drawn from in this process is refused, as one loop's
                rounds may share it by mistake. False for a run, whose ledger numbers its draws.

        Raises:
            ValueError: If its noise has a memory: rows of that are drawn by a run. If a secure key
                was drawn from before: it would give the very same noise.
            TypeError: If the key is a generator or a seed.
        """
        check_key(key)
        memory = self.privatizer.init(template, key)
        if memory:
            raise ValueError(
                f"{self.privatizer.name} noise has a memory, which a run keeps; a single attempt "
                "cannot draw it"
            )
        if once and key.mode == "secure":
            if key in _DRAWN:
                raise ValueError(
                    "noise was drawn from this key before, and would be the same again; fold round "
                    "and attempt into it"
                )
            _DRAWN.add(key)
        return self.draw_row(memory, template, key)[0]

    def draw_row(self, memory: Memory, template: Params, key: Key) -> tuple[Draw, Memory]:
        """Return the noise of one sum, and the memory after it.

        Of equal memories and keys it is the same: a run, whose ledger numbers its rows, draws each
        once. Otherwise use `draw`.

        With a secure key it is drawn on the bound's grid where there is one and the privatizer can.

        Args:
            memory: From the privatizer's `init` or the last of these calls; it is given up.
            template: Names and shapes of the sums.
            key: Of the run, the same for every row.
        """
        given: dict[str, Any] = {"template": template, "sensitivity": self.sensitivity, "key": key}
        granularity = self.bound.granularity
        if key.mode == "secure" and granularity is not None and self.privatizer.on_grid:
            given["granularity"] = granularity
        drawn, memory = self.privatizer.draw(memory, **given)
        return Draw(drawn, self), memory

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


_DRAWN: set[Key] = set()
"""Secure keys of this process that independent noise was drawn from; none is drawn from twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMechanism:
    """A mechanism as a file records it: it can be accounted, and not be run.

    Attributes:
        sampler: Kind and fields, JSON values; None of a part that is not written.
        bound: Likewise.
        privatizer: Likewise.
        micro_batch: As `Mechanism.micro_batch`.
        event: What one charge does.
        after_crash: What becomes of an attempt that a crash ended.
        noise: Name of the privatizer.
        num_users: Users on the roster.
        expected_cohort_size: Mean number of users who take part.
        description: What it does, in a sentence.
    """

    sampler: Mapping[str, Any] | None = field(hash=False)
    bound: Mapping[str, Any] | None = field(hash=False)
    privatizer: Mapping[str, Any] | None = field(hash=False)
    micro_batch: int
    event: Event
    after_crash: AfterCrash
    noise: str
    num_users: int
    expected_cohort_size: float
    description: str

    def __post_init__(self) -> None:
        set_checked(self, positive_int, "num_users", "micro_batch")
        set_checked(self, positive_float, "expected_cohort_size")
        for part in (self.sampler, self.bound, self.privatizer):
            if part is not None and json_object(part) is None:
                raise ValueError(f"{part!r} is not a part of a mechanism")
        words: tuple[Any, ...] = (self.noise, self.description)
        if not all(isinstance(one, str) for one in words):
            raise ValueError(f"{words!r} are not the name and the description of a mechanism")
        if self.after_crash not in get_args(AfterCrash):
            raise ValueError(f"after_crash {self.after_crash!r} is unknown")

    @property
    def charged_once(self) -> bool:
        """Whether one charge pays for all rounds of the run."""
        return self.after_crash == "discard"

    @classmethod
    def of(cls, mechanism: Mechanism | RecordedMechanism) -> RecordedMechanism:
        """Return what is recorded of a mechanism."""
        if isinstance(mechanism, RecordedMechanism):
            return mechanism
        sampler, privatizer = mechanism.sampler, mechanism.privatizer
        return cls(
            sampler=_written(sampler),
            bound=_written(mechanism.bound),
            privatizer=_written(privatizer),
            micro_batch=mechanism.micro_batch,
            event=mechanism.event,
            after_crash=privatizer.after_crash,
            noise=privatizer.name,
            num_users=mechanism.num_users,
            expected_cohort_size=mechanism.expected_cohort_size,
            description=(
                f"{type(sampler).__name__} of {mechanism.expected_cohort_size:g} among "
                f"{mechanism.num_users}, each contribution bounded to {mechanism.l2_bound:g} "
                f"(l2) by {type(mechanism.bound).__name__}, released by "
                f"{privatizer.description}"
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return values | {"event": self.event.to_json()}

    @classmethod
    def from_json(cls, value: Any) -> Mechanism | RecordedMechanism:
        """Return the mechanism that was written; what is recorded of it where a kind is not known.

        Raises:
            ValueError: If it is something else, or its parts do not make what is recorded.
        """
        given = json_object(value)
        if given is None or set(given) != {one.name for one in fields(cls)}:
            raise ValueError(f"{value!r} is not the record of a mechanism")
        values: dict[str, Any] = {**given, "event": Event.from_json(given["event"])}
        record = cls(**values)
        try:
            made = Mechanism(
                sampler=Sampler.from_json(record.sampler),
                bound=Bound.from_json(record.bound),
                privatizer=Privatizer.from_json(record.privatizer),
                micro_batch=record.micro_batch,
            )
        except UnknownKindError:
            return record
        if cls.of(made) != record:
            raise ValueError(f"{record.description!r} is not what its parts make; it was edited")
        return made


def _written(part: Part) -> dict[str, Any] | None:
    """Return kind and fields of a part; None of one that is not written."""
    with suppress(ValueError):
        return part.to_json()
    return None
