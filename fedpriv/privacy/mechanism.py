"""A mechanism: sampler, bound and privatizer, from which sensitivity, stddev and event follow.

The three are objects, and nothing about them is stored a second time: sensitivity, standard
deviation, denominator and event are derived from the very sampler, bound and privatizer that run.

A plan in a file names no objects. A mechanism of the ordinary kind (cohorts, a clipped or
normalised sum, on a grid or not, Gaussian noise) is written as numbers and names (`numbers_of`) and
built again from them (`named_mechanism`). Of any other one a `RecordedMechanism` is kept, which
holds what an auditor needs: the number of users, the event of a charge, and a description. It can
be accounted and not run, because nothing that a file names is imported.

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
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from fedpriv.mechanisms.bounds import Bound, Clip, Normalise, Rounded, Unbounded
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected, check_stddev
from fedpriv.mechanisms.privatizer import AfterCrash, Cost, Draw, Memory, Privatizer
from fedpriv.privacy.event import Event
from fedpriv.privacy.sampling import FixedSizeSampler, PoissonSampler, Sampler, sampler_of
from fedpriv.ranges import Range, finite_float, json_object, positive_float, positive_int
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
    _charged_once: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        size = positive_int("micro_batch", self.micro_batch)
        object.__setattr__(self, "micro_batch", size)
        if size > 1 and size > self.expected_cohort_size:
            raise ValueError(
                f"micro_batch {size} is above the expected batch of "
                f"{self.expected_cohort_size:g}; lower it"
            )
        cost = self.privatizer.cost
        event = self.sampler.event(cost)  # refuses what no accountant prices
        object.__setattr__(self, "_event", event)
        object.__setattr__(self, "_charged_once", cost.whole_run)
        if event.is_private and math.isinf(self.bound.l2_bound):
            raise ValueError(
                f"noise {self.privatizer.name!r} without a bound protects no one: one user could "
                "move the sum without limit; bound by 'clip' or 'normalise'"
            )
        if cost.kind == "gaussian" and event.is_private:
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
        cost = self.privatizer.cost
        return float(cost.value) if cost.kind == "gaussian" else 0.0

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
        return self._charged_once

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

_CHARGED = ("name", "whole_run", "after_crash")
_NUMBERS = ("description", "num_users", "expected_cohort_size", "micro_batch")
"""Fields of a record besides its event: of the privatizer, and of the mechanism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPrivatizer(Privatizer):
    """A privatizer as recorded: its name and how it is charged.

    Attributes:
        name: Its name.
        whole_run: Whether one charge pays for all rounds of the run.
        after_crash: What became of an attempt that a crash ended.
    """

    name: str
    whole_run: bool
    after_crash: AfterCrash = field()  # else the base's value would be its default

    @property
    def cost(self) -> Cost:
        """Whether it is charged once; the price is in the event."""
        return Cost(kind="nonprivate", whole_run=self.whole_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMechanism:
    """A mechanism read from a file: it can be accounted, and not be run.

    Attributes:
        privatizer: Its name, and how it is charged.
        description: What it does, in a sentence.
        num_users: Users on the roster.
        expected_cohort_size: Mean number of users who take part.
        micro_batch: As `Mechanism.micro_batch`.
        event: What one charge does.
    """

    privatizer: RecordedPrivatizer
    description: str
    num_users: int
    expected_cohort_size: float
    micro_batch: int
    event: Event

    def __post_init__(self) -> None:
        positive_int("num_users", self.num_users)
        positive_int("micro_batch", self.micro_batch)
        positive_float("expected_cohort_size", self.expected_cohort_size)

    @classmethod
    def of(cls, mechanism: Mechanism | RecordedMechanism) -> RecordedMechanism:
        """Return what is recorded of a mechanism."""
        if isinstance(mechanism, RecordedMechanism):
            return mechanism
        privatizer = mechanism.privatizer
        return cls(
            privatizer=RecordedPrivatizer(
                name=privatizer.name,
                whole_run=privatizer.cost.whole_run,
                after_crash=privatizer.after_crash,
            ),
            description=(
                f"{type(mechanism.sampler).__name__} of {mechanism.expected_cohort_size:g} among "
                f"{mechanism.num_users}, each contribution bounded to {mechanism.l2_bound:g} "
                f"(l2) by {type(mechanism.bound).__name__}, released by "
                f"{privatizer.description}"
            ),
            num_users=mechanism.num_users,
            expected_cohort_size=mechanism.expected_cohort_size,
            micro_batch=mechanism.micro_batch,
            event=mechanism.event,
        )

    @property
    def charged_once(self) -> bool:
        """Whether one charge pays for all rounds of the run."""
        return self.privatizer.whole_run

    @property
    def sampler(self) -> None:
        """Not recorded."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **asdict(self.privatizer),
            **{name: getattr(self, name) for name in _NUMBERS},
            "event": self.event.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> RecordedMechanism:
        """Return what `to_json` wrote.

        Raises:
            ValueError: If it is something else.
        """
        given = json_object(value)
        if given is None or set(given) != {*_CHARGED, *_NUMBERS, "event"}:
            raise ValueError(f"{value!r} is not the record of a mechanism")
        if not isinstance(given["name"], str) or not isinstance(given["whole_run"], bool):
            raise ValueError(f"{given['name']!r} is not the name of a privatizer")
        if given["after_crash"] not in get_args(AfterCrash):
            raise ValueError(f"after_crash {given['after_crash']!r} is unknown")
        return cls(
            privatizer=RecordedPrivatizer(**{name: given[name] for name in _CHARGED}),
            **{name: given[name] for name in _NUMBERS},
            event=Event.from_json(given["event"]),
        )


#: What they are called, in a plan's file and by `named_mechanism`.
NUMBERS = (
    "num_users",
    "expected_cohort_size",
    "sampling",
    "cohort_cap",
    "bound",
    "l2_bound",
    "noise",
    "noise_multiplier",
    "micro_batch",
    "regulariser",
    "exact_sum",
    "unprotected_stddev",
)
#: Those of them that change neither ε nor the sensitivity.
DETAILS = ("regulariser", "exact_sum", "unprotected_stddev")


def named_mechanism(
    *,
    num_users: int,
    expected_cohort_size: float,
    sampling: str = "poisson",
    cohort_cap: int | None = None,
    bound: str = "none",
    l2_bound: float | None = None,
    noise: str = "none",
    noise_multiplier: float = 0.0,
    micro_batch: int = 1,
    regulariser: float = 0.0,
    exact_sum: Any = False,
    unprotected_stddev: float = 0.0,
) -> Mechanism:
    """Return a bounded, noised sum over cohorts.

    Args:
        num_users: Users on the frozen roster, n.
        expected_cohort_size: Mean cohort (Poisson) or exact cohort (fixed); the denominator of
            every round, however many reply.
        sampling: "poisson" (independent draws) or "fixed" (without replacement).
        cohort_cap: Largest Poisson cohort, at least twice the mean (or everybody), or None.
        bound: What bounds a user's update: "clip", "normalise" or "none".
        l2_bound: The certified l2 bound of one user's vector; None (or infinity) exactly when
            bound is "none".
        noise: "gaussian" on the sum, or "none".
        noise_multiplier: σ = stddev / sensitivity; 0 exactly when noise is "none".
        micro_batch: As `Mechanism.micro_batch`.
        regulariser: r of `Normalise`; 0 of other bounds.
        exact_sum: Whether sums are of whole multiples of a grid (`Rounded`).
        unprotected_stddev: Of noise that `Unprotected` adds, without a guarantee; else 0.

    Raises:
        ValueError: If a value is out of range or two parts do not fit.
    """
    if not isinstance(exact_sum, bool):
        raise ValueError(f"exact_sum {exact_sum!r} is not true or false")
    if bound not in ("clip", "normalise", "none"):
        raise ValueError(f"bound {bound!r} is unknown; give 'clip', 'normalise' or 'none'")
    if (l2_bound in (None, math.inf)) != (bound == "none"):
        raise ValueError(
            f"l2_bound {l2_bound!r} does not fit bound {bound!r}; leave it out with 'none', and "
            "give one such as 0.5 with 'clip' and 'normalise'"
        )
    given: dict[str, Any] = {"name": bound}
    if bound != "none":
        given["l2_clip_norm"] = positive_float("l2_bound", l2_bound)
    if finite_float("regulariser", regulariser) or bound == "normalise":
        given["regulariser"] = regulariser
    made = Bound.from_json(given)
    return Mechanism(
        sampler=sampler_of(sampling, num_users, expected_cohort_size, cohort_cap),
        bound=Rounded(bound=made) if exact_sum else made,
        privatizer=_privatizer_of(noise, noise_multiplier, unprotected_stddev),
        micro_batch=micro_batch,
    )


def numbers_of(mechanism: Mechanism | RecordedMechanism) -> dict[str, Any] | None:
    """Return the numbers of a mechanism of the ordinary kind, or None of any other.

    Guarantees:
        * `named_mechanism` makes an equal mechanism of them.
    """
    if isinstance(mechanism, RecordedMechanism):
        return None
    sampler, privatizer = mechanism.sampler, mechanism.privatizer
    if not isinstance(sampler, (PoissonSampler, FixedSizeSampler)):
        return None
    exact_sum = type(mechanism.bound) is Rounded
    bound = mechanism.bound.bound if isinstance(mechanism.bound, Rounded) else mechanism.bound
    # A derived class may bound or draw otherwise.
    ordinary = {PoissonSampler, FixedSizeSampler, Clip, Normalise, Unbounded, Gaussian, Unprotected}
    if not {type(sampler), type(bound), type(privatizer)} <= ordinary:
        return None
    bounded = not math.isinf(mechanism.l2_bound)
    return {
        "num_users": mechanism.num_users,
        "expected_cohort_size": mechanism.expected_cohort_size,
        "sampling": "fixed" if isinstance(sampler, FixedSizeSampler) else "poisson",
        "cohort_cap": sampler.cap if isinstance(sampler, PoissonSampler) else None,
        "bound": bound.name,
        "l2_bound": mechanism.l2_bound if bounded else None,
        "noise": privatizer.name,
        "noise_multiplier": mechanism.noise_multiplier,
        "micro_batch": mechanism.micro_batch,
        "regulariser": float(bound.regulariser) if isinstance(bound, Normalise) else 0.0,
        "exact_sum": exact_sum,
        "unprotected_stddev": (
            float(privatizer.stddev) if isinstance(privatizer, Unprotected) else 0.0
        ),
    }


def _privatizer_of(noise: str, noise_multiplier: float, stddev: float) -> Privatizer:
    """Return the privatizer of a name.

    Raises:
        ValueError: If the name is unknown, or the number does not fit it.
    """
    if noise not in ("gaussian", "none"):
        raise ValueError(f"noise {noise!r} is unknown; give 'gaussian' or 'none'")
    unprotected = finite_float("unprotected_stddev", stddev, Range.AT_LEAST_ZERO)
    if noise == "gaussian":
        if unprotected:
            raise ValueError(
                f"unprotected_stddev {stddev!r} is of noise without a guarantee, but noise is "
                "'gaussian'; give noise_multiplier alone"
            )
        return Gaussian(noise_multiplier=positive_float("noise_multiplier", noise_multiplier))
    sigma = finite_float("noise_multiplier", noise_multiplier)
    if sigma != 0.0:
        raise ValueError(
            f"noise_multiplier {sigma} is given but noise is 'none'; leave it "
            "out, or ask for noise 'gaussian'"
        )
    return Unprotected(stddev=unprotected)
