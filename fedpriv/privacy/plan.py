"""The privacy plan of a run: mechanism, number of rounds, neighbouring relation and δ, frozen.

The ε of a run is computed from its plan and from nothing else. The mechanism of a plan is the very
object that runs. The constructor refuses parts that do not fit together, names the value at fault
and says what to change.

A `Plan` is fixed: every charge is the same event, and a target ε becomes a number of charges. A
`FilterPlan` fixes the total instead, and the cost of each charge is decided during the run.

A method that looks at earlier releases before it decides how much noise to add next cannot name
its charges in advance. It can name their sum: a privacy filter refuses the charge that would
exceed it. For zero-concentrated DP such a filter costs nothing: charges ρ₁ + ρ₂ + ... <= ρ, each
chosen after the ones before, are ρ-zCDP together (Feldman and Zrnic 2021, Theorem 3.1; Whitehouse
et al. 2023, Theorem 1). The ε of a run is the filter's, whatever was spent of it.

>>> from fedpriv.mechanisms import Clip
>>> from fedpriv.mechanisms.gaussian import Gaussian
>>> from fedpriv.privacy.sampling import PoissonSampler
>>> mechanism = Mechanism(
...     sampler=PoissonSampler(num_users=400, expected_cohort_size=20),
...     bound=Clip(l2_clip_norm=0.5),
...     privatizer=Gaussian(noise_multiplier=1.0),
... )
>>> plan = Plan(mechanism=mechanism, num_rounds=100, delta=1 / 400)
>>> print(plan.epsilon(100))
ε = 1.9059 at δ = 0.0025 (add-remove, per user, by PLD; RDP 2.3891)
>>> plan.mechanism.stddev, plan.mechanism.denominator
(0.5, 20.0)
>>> plan = FilterPlan(num_users=400, rho=0.5, delta=1e-5)
>>> gaussian = Event(kind="gaussian", noise_multiplier=2.0)
>>> plan.refusal(Counter({gaussian: 3}), gaussian), plan.refusal(Counter({gaussian: 4}), gaussian)
('', 'ρ = 0.125 more would take the total to 0.625, above the 0.5 of the plan')
"""

# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false
# (the number of users is a field of one plan and follows from the mechanism of the other)

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, cast

from fedpriv.hashes import document_sha256, hex_digest
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.parts import Part, PositiveFloat, PositiveInt
from fedpriv.privacy.accounting import (
    affordable_rounds,
    calibrate,
    check_relation,
    delta_of,
    epsilon_of,
    epsilon_of_rho,
    has_rdp,
    has_rho,
    rho_of,
)
from fedpriv.privacy.epsilon import BudgetUse, Epsilon, delta_caution, rounded_up, rounded_up_to
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.trials import Trials
from fedpriv.ranges import positive_float, positive_int

Unit = Literal["user", "example", "owner", "user-by-example"]

#: The unit is a user, all of its examples together, and examples are drawn and bounded one by one.
BY_EXAMPLE: Final = "user-by-example"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitWords:
    """Words for a unit in messages and statements.

    Attributes:
        protected: All those whom a plan of it protects.
        turn: One of the plan's charges.
        drawn: Those who are drawn for it.
        draws: The same of several charges.
        who: Who draws them.
        contributor: One of those whose contributions are bounded and summed.
        total: One of them, where it is said how many there are.
        rostered: One of them.
        tested: One of those of whom figures are diagnostics.
        public: One of those whom no plan protects.
        publicity: How legends describe values that are measured on them.
    """

    protected: str
    turn: str
    drawn: str
    draws: str
    who: str
    contributor: str
    total: str
    rostered: str
    tested: str
    public: str
    publicity: str = "released"

    @property
    def diagnosed(self) -> str:
        """Legend of values that ε does not cover."""
        return f"{self.tested}s: a diagnostic, not covered by ε"

    @property
    def released(self) -> str:
        """Legend of values that are measured of public ones."""
        return f"{self.public}s: {self.publicity}"


_USERS = UnitWords(
    protected="rostered users",
    turn="round",
    drawn="cohort",
    draws="cohorts",
    who="server",
    contributor="user",
    total="user",
    rostered="rostered user",
    tested="rostered user",
    public="public user",
)
_EXAMPLES = UnitWords(
    protected="private examples",
    turn="step",
    drawn="batch",
    draws="batches",
    who="trainer",
    contributor="example",
    total="training example",
    rostered="training example",
    tested="training example",
    public="test example",
)


_USERS_BY_EXAMPLE = replace(
    _EXAMPLES,
    protected="rostered users",
    total="user",
    rostered="rostered user",
    tested="rostered user",
    public="public user",
)


def unit_words(unit: str) -> UnitWords:
    """Return the words of a plan's unit; all others are of users.

    >>> unit_words("user").turn, unit_words("example").turn, unit_words("owner").turn
    ('round', 'step', 'step')
    """
    if unit == BY_EXAMPLE:
        return _USERS_BY_EXAMPLE
    return _EXAMPLES if unit in ("example", "owner") else _USERS


def unit_name(unit: str) -> str:
    """Return whom an ε of a plan of this unit is for.

    >>> unit_name(BY_EXAMPLE), unit_name("example")
    ('user', 'example')
    """
    return "user" if unit == BY_EXAMPLE else unit


def _relation(name: str, value: Any) -> Relation:
    return Relation.of(value)


def _mechanism(name: str, value: Any) -> Mechanism:
    return value if isinstance(value, Mechanism) else Mechanism.from_json(value)


def _trials(name: str, value: Any) -> Trials:
    return value if isinstance(value, Trials) else Trials.from_json(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guarantee(Part):
    """The fields that plans of both kinds have."""

    relation: Annotated[Relation, _relation] = Relation.ADD_REMOVE
    delta: float | None = None
    max_examples_per_user: PositiveInt | None = None
    roster_sha256: Annotated[str, hex_digest] | None = None
    unit: Unit = "user"

    @property
    def num_users(self) -> int:
        """Users on the roster, n."""
        raise NotImplementedError

    @property
    def is_private(self) -> bool:
        """Whether ε is finite: noise on a bounded sum; a filter refuses charges without."""
        return True

    @property
    def num_protected(self) -> int:
        """Users on the roster also where it is their examples that are drawn."""
        slots = self.max_examples_per_user if self.unit == BY_EXAMPLE else 1
        return self.num_users // (slots or 1)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences to print with the ε: what is allowed and weakens it."""
        if not self.is_private:
            return ("no noise is added: there is no guarantee",)
        assert self.delta is not None
        said = delta_caution(self.delta, self.num_protected, unit_name(self.unit))
        return (said,) if said else ()

    def check_roster(self, roster: Sequence[str]) -> None:
        """Refuse a roster of another size than the plan's.

        Raises:
            ValueError: If its length is not num_users.
        """
        if len(roster) != self.num_users:
            raise ValueError(
                f"the roster has {len(roster)} {unit_words(self.unit).contributor}s, the plan was "
                f"made for {self.num_users}; make a new plan for the new roster"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_Guarantee):
    """The guarantee of a run, fixed before the first cohort is drawn; every field is public.

    Attributes:
        mechanism: What every charge does; what a file records of it where its kinds are not known.
        num_rounds: Charges the plan pays for, T; a lost attempt uses one up. For noise that is
            charged for a whole run, the rows that it was made for.
        relation: Neighbouring relation, by name or `Relation`.
        delta: δ; None takes n^-1.1.
        target_epsilon: Budget: no charge may take ε above it. None leaves num_rounds alone.
        max_examples_per_user: Cap on the examples a user trains on, or None.
        roster_sha256: Hash of the roster the plan was made for, 64 hex digits, or None.
        unit: What one neighbour is: "user"; or in centralised training, where every number of users
            is one of examples, "example", "owner" of several, which neighbours blank, or
            "user-by-example": a user of `max_examples_per_user` slots in the training set, empty
            ones included, which neighbours blank together.
        trials: The law of how many runs of this plan are made, of which the best one is kept and
            nothing else (`fedpriv.studies.private_selection`); every ε is then of all of them. None
            for one run.

    Guarantees:
        * With noise, `num_rounds` charges are (ε, δ)-DP at ε = `epsilon(num_rounds)` for one
          user under `relation`, if every one of them is an answer of `mechanism` and nothing
          else leaves (McMahan et al. 2018, arXiv:1710.06963, with the fixed denominator; PLD
          accounting, Koskela et al. 2020).
        * Without noise there is no guarantee: ε is infinite.

    Raises:
        ValueError: If a value is out of range or two parts do not fit.
    """

    mechanism: Annotated[Mechanism, _mechanism]
    num_rounds: PositiveInt
    target_epsilon: PositiveFloat | None = None
    trials: Annotated[Trials, _trials] | None = None

    def check(self) -> None:
        """Choose δ, and refuse parts that do not fit together."""
        object.__setattr__(self, "delta", delta_of(self.delta, self.num_protected, self.event))
        _check_micro_batch(self.mechanism.micro_batch, self.unit, self.relation)
        self._check_by_example()
        if not self.is_private and self.target_epsilon is not None:
            raise ValueError(
                f"target_epsilon {self.target_epsilon} cannot be kept with noise "
                "'none'; leave it out, or ask for noise 'gaussian'"
            )
        check_relation(self.event, self.relation)
        _check_rows(self.mechanism, self.num_rounds, self.relation)
        _check_trials(self.trials, self.event, self.relation)
        target = self.target_epsilon
        if self.charged_once and target is not None and self.total().value > target:
            raise ValueError(
                f"target_epsilon {target:g} is below ε = {rounded_up(self.total().value, 4):.4f} "
                "of the whole run, which is charged at once; raise it, or add more noise"
            )

    @property
    def live_mechanism(self) -> Mechanism:
        """The mechanism as runnable objects.

        Raises:
            ValueError: If the plan was read from a file that only records what it does.
        """
        if not self.mechanism.runs:
            raise ValueError(
                f"the plan only records its mechanism ({self.mechanism.recorded.description}); "
                "build it again to run it"
            )
        return self.mechanism

    def mechanism_for(self, query: str, given: Mechanism | None) -> Mechanism:
        """Return the mechanism that answers a query: the one given with it, or the plan's.

        Raises:
            ValueError: As of `live_mechanism`.
        """
        return self.live_mechanism if given is None else given

    @property
    def is_exact(self) -> bool:
        """As `Mechanism.is_exact`; not of a mechanism that is only recorded."""
        return self.mechanism.runs and self.mechanism.is_exact

    @property
    def replays(self) -> bool:
        """Whether a release that a crash interrupted is computed again without another charge."""
        return self.live_mechanism.privatizer.after_crash == "replay"

    @property
    def num_users(self) -> int:
        """Users on the roster, n."""
        return self.mechanism.num_users

    def _check_by_example(self) -> None:
        """Refuse a user's ε that is counted for fewer of its examples than it may have.

        Raises:
            ValueError: If that is so, or not every user has as many slots.
        """
        if self.unit != BY_EXAMPLE:
            return
        most = self.max_examples_per_user
        if most is None or self.num_users % most:
            raise ValueError(
                f"{self.num_users:,} slots do not make users of max_examples_per_user {most} each; "
                "give every user as many"
            )
        counted = self.event.devices or 1
        if self.is_private and counted != most:
            raise ValueError(
                f"a user has up to {most} examples, and each charge is accounted for {counted}: "
                f"its ε would not be of a user; draw them by DevicesSampler(devices={most})"
            )

    @property
    def is_private(self) -> bool:
        """Whether ε is finite: noise on a bounded sum."""
        return self.event.is_private

    @property
    def event(self) -> Event:
        """Event of one charge."""
        return self.mechanism.event

    @property
    def noise_multiplier(self) -> float:
        """As `Mechanism.noise_multiplier`."""
        return self.live_mechanism.noise_multiplier

    @property
    def charged_once(self) -> bool:
        """Whether one charge pays for all rounds of the run."""
        return self.mechanism.charged_once

    @property
    def _num_charges(self) -> int:
        """Charges that pay for all rounds."""
        return 1 if self.charged_once else self.num_rounds

    @property
    def budget(self) -> str:
        """Description of the plan's budget."""
        return f"{self.num_rounds:,} {'rows' if self.charged_once else 'charges'}"

    def total(self) -> Epsilon:
        """Return ε after all planned rounds."""
        return self.epsilon(self.num_rounds)

    def guaranteed(self) -> Epsilon:
        """Return ε after everything that is paid for; a target may end a run before its rounds."""
        return self.epsilon(self.affordable_rounds)

    def epsilon(self, num_charges: int) -> Epsilon:
        """Return ε after a number of charges, 0 to num_rounds; infinite, with a reason, unnoised.

        The best of several trials was chosen by what all of their rounds came to, so that every one
        of its rounds costs what the whole study does.

        Every value along a run uses the grid chosen for `num_rounds`, so calls after the first
        take a few hundredths of a second and a progress bar may ask every round.

        Raises:
            ValueError: If the number is not a count the plan pays for.
        """
        charges = 0 if num_charges == 0 else positive_int("num_charges", num_charges)
        if charges > self.num_rounds:
            raise ValueError(
                f"{charges} charges are more than the {self.num_rounds} rounds of "
                "the plan; make a new plan"
            )
        if self.trials is not None and charges:
            charges = self.affordable_rounds
        return self._accounted({self.event: min(charges, self._num_charges)})

    def epsilon_of(self, events: Mapping[Event, int]) -> Epsilon:
        """Return ε of events with their counts, as a ledger has them.

        Raises:
            ValueError: If no accountant composes them.
        """
        if not events or (self.trials is not None and set(events) == {self.event}):
            return self.epsilon(events.get(self.event, 0))
        return self._accounted(events)

    def _accounted(self, charges: Mapping[Event, int]) -> Epsilon:
        assert self.delta is not None
        spent = epsilon_of(
            # Without noise ε is infinite from the start, not from the first charge on.
            tuple(charges.items()) if self.is_private else [(self.event, 1)],
            delta=self.delta,
            relation=self.relation,
            num_rounds=self._num_charges,
            trials=self.trials,
        )
        return replace(spent, unit=unit_name(self.unit))

    def refusal(self, spent: Counter[Event], event: Event) -> str:
        """Return why one more charge exceeds the budget, or "" if it fits; ask before writing it.

        Args:
            spent: Charges so far, by event.
            event: What the next one does.
        """
        if event != self.event:
            return f"it is charged for {event}, the plan says {self.event}"
        charges = spent.total()
        if self.charged_once:
            return "the run was charged for all of its rows" if charges else ""
        if charges < self.affordable_rounds:
            return ""
        if charges >= self.num_rounds:
            return f"all {self.num_rounds} charges are spent"
        after = "" if self.trials else f" to {rounded_up(self.epsilon(charges + 1).value, 4):.4f}"
        return f"charge {charges + 1} would take ε{after}, above the target {self.target_epsilon:g}"

    def pays_for_more(self, spent: Counter[Event], num_rows: int) -> bool:
        """Return whether another round is paid for.

        Args:
            spent: Charges so far, by event.
            num_rows: Rounds whose correlated noise was drawn so far.
        """
        used = num_rows if self.charged_once else spent.total()
        return used < self.affordable_rounds

    def left(self, spent: Counter[Event]) -> float:
        """Return the ρ that is left: infinite, since no total was set."""
        return math.inf

    def used(self, spent: Counter[Event], num_rows: int) -> BudgetUse:
        """Return how much of the budget is spent; arguments as of `pays_for_more`."""
        amount = num_rows if self.charged_once else spent.total()
        text = f"{amount} of {self.budget} {'used' if self.charged_once else 'spent'}"
        return BudgetUse(amount=amount, total=self.num_rounds, text=text)

    @property
    def planned_rounds(self) -> int:
        """num_rounds; None of an adaptive plan, which cannot know it."""
        return self.num_rounds

    @property
    def affordable_rounds(self) -> int:
        """Charges the budget pays for: num_rounds, or fewer where the target stops earlier."""
        if self.target_epsilon is None or self.charged_once:
            return self.num_rounds
        assert self.delta is not None
        return affordable_rounds(
            self.event,
            self.num_rounds,
            self.target_epsilon,
            self.delta,
            self.relation,
            self.trials,
        )

    def calibrated(self, target_epsilon: float) -> Plan:
        """Return the plan with the least noise that keeps ε within a target after all rounds.

        The target becomes the plan's budget.

        Args:
            target_epsilon: The ε that must not be exceeded.

        Returns:
            A plan whose `epsilon(num_rounds)` is at most the target, and short of it by 0.01 %.

        Raises:
            ValueError: If its noise is no Gaussian's, or no noise reaches the target.
        """
        mechanism, noise = self.live_mechanism, self.live_mechanism.privatizer

        def event(sigma: float) -> Event:
            return mechanism.sampler.event(noise.scaled(sigma))

        target = positive_float("target_epsilon", target_epsilon)
        assert self.delta is not None
        sigma = calibrate(
            event,
            self._num_charges,
            target_epsilon=target,
            delta=self.delta,
            relation=self.relation,
            trials=self.trials,
        )
        noised = replace(mechanism, privatizer=noise.scaled(sigma))
        return replace(self, mechanism=noised, target_epsilon=target)


# A price is ρ/T in float64, made a σ or an ε and squared again: about ten roundings of 2^-53 each.
# T of them are the whole, though their sum in floats is that much above it.
_PRICE_ROUNDING = 2.0**-48


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPlan(_Guarantee):
    """A zCDP privacy filter: charges are chosen during the run, up to a total ρ.

    Attributes:
        num_users: Users on the frozen roster, n.
        rho: The preset total, ρ, under `relation`.
        relation: Neighbouring relation, by name or `Relation`.
        delta: δ at which ρ is stated as an ε; None takes n^-1.1.
        max_examples_per_user: Cap on the examples a user's contribution looks at, or None.
        roster_sha256: As `Plan.roster_sha256`.
        unit: As `Plan.unit`.

    Guarantees:
        * All charges together are ρ-zCDP, hence (`epsilon`, δ)-DP by the Rényi conversion, for
          one user under `relation`, if each is an answer of a mechanism of its event. ρ and ε are
          float64: the sum of prices may be above ρ by their rounding, a part in 2^48 at most.
        * Charges whose cohort is drawn are refused: amplification by sampling has no ρ.

    Raises:
        ValueError: If a value is out of range.
    """

    num_users: PositiveInt = field()  # else the base's property would be its default
    rho: PositiveFloat

    target_epsilon = None  # the total ρ is the only budget
    trials = None  # the best of several trials is accounted for plans of equal charges only
    planned_rounds = affordable_rounds = None  # what a round costs is decided during the run
    charged_once = False
    event = mechanism = noise_multiplier = None  # each query has its own
    is_exact = False  # `fedpriv.training.algorithm.is_exact` asks the algorithm about its queries
    replays = False  # after a crash a query is asked again, as a new charge

    def check(self) -> None:
        """Choose δ, and refuse a unit of several examples: each query bounds single ones."""
        if self.unit in ("owner", BY_EXAMPLE):
            raise ValueError(
                f"unit {self.unit!r}: a filter's queries bound single examples, or users; use one "
                "of those, or a plan that is fixed"
            )
        total = Event(kind="zcdp", rho=self.rho)
        object.__setattr__(self, "delta", delta_of(self.delta, self.num_users, total))

    @property
    def live_mechanism(self) -> Mechanism:
        """None exists for all charges.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "an adaptive plan has no mechanism for all charges; give each request its "
            "own (SumRequest(mechanism=...))"
        )

    def total(self) -> Epsilon:
        """Return the ε that the filter guarantees, whatever is spent of it."""
        assert self.delta is not None
        value = epsilon_of_rho(self.rho, self.delta)
        return Epsilon(
            value=value,
            delta=self.delta,
            relation=self.relation,
            accountant="RDP",
            rdp=value,
            unit=self.unit,
        )

    def guaranteed(self) -> Epsilon:
        """As `total`."""
        return self.total()

    @property
    def budget(self) -> str:
        """The total, in words."""
        return f"ρ = {self.rho:g}"

    def used(self, spent: Counter[Event], num_rows: int) -> BudgetUse:
        """Return how much of the total ρ is spent.

        Args:
            spent: Charges so far, by event.
            num_rows: As of a fixed plan; here there are none.
        """
        amount, charges = min(self._sum(spent), self.rho), spent.total()
        return BudgetUse(
            amount=amount,
            total=self.rho,
            text=f"ρ = {rounded_up_to(amount, 6):g} of {self.rho:g} spent in {charges} "
            f"charge{'' if charges == 1 else 's'}",
        )

    def pays_for_more(self, spent: Counter[Event], num_rows: int) -> bool:
        """Return whether any ρ is left; the next charge may still be refused."""
        return self.left(spent) > 0.0

    def epsilon(self, num_charges: int) -> Epsilon:
        """Return the total ε: the ρ spent depends on releases and allows no smaller claim."""
        return self.total()

    def epsilon_of(self, events: Mapping[Event, int]) -> Epsilon:
        """Return the total ε: the ρ spent depends on releases and allows no smaller claim.

        Raises:
            ValueError: If the events add up to more than the total, or the filter refuses one.
        """
        total = self._sum(Counter(events))
        if total > self._limit:
            raise ValueError(f"charges of ρ = {total:g} are above the {self.rho:g} of the plan")
        return self.total()

    def refusal(self, spent: Counter[Event], event: Event) -> str:
        """Return why one more charge exceeds the total, or "" if it fits; ask before writing it."""
        if not has_rho(event):
            return (
                f"a filter of ρ takes no {event.kind} charge; let everybody take part, with noise "
                "that has a ρ"
            )
        price = rho_of(event, self.relation)
        total = self._sum(spent) + price
        if total <= self._limit:
            return ""
        return (
            f"ρ = {price:g} more would take the total to {total:g}, above the {self.rho:g} of "
            "the plan"
        )

    @property
    def _limit(self) -> float:
        return self.rho * (1.0 + _PRICE_ROUNDING)

    def _sum(self, spent: Counter[Event]) -> float:
        return math.fsum(count * rho_of(event, self.relation) for event, count in spent.items())

    def mechanism_for(self, query: str, given: Mechanism | None) -> Mechanism:
        """Return the mechanism given with a query.

        Raises:
            ValueError: If it brings none.
        """
        if given is None:
            raise ValueError(f"query {query!r} of an adaptive plan needs its mechanism")
        return given

    def left(self, spent: Counter[Event]) -> float:
        """Return the ρ that is left."""
        return max(0.0, self.rho - self._sum(spent))


AnyPlan = Plan | FilterPlan
"""A plan of either kind. Both answer to the same names: `total`, `guaranteed`, `epsilon`,
`epsilon_of`, `refusal`, `pays_for_more`, `used`, `left`, `budget`, `mechanism_for`, `replays`, and
`planned_rounds`, which is None where only a refused charge ends the run."""


def read_plan(value: Any) -> AnyPlan:
    """Return a plan, fixed or adaptive, from its JSON.

    Raises:
        ValueError: If it is neither.
    """
    return cast(AnyPlan, _Guarantee.from_json(value))


def plan_digest(
    plan: AnyPlan, roster: Sequence[str], published: Mapping[str, str] | None = None
) -> str:
    """Return the SHA-256 of a plan, its roster and published files, by which a node may allow it.

    It is of the plan's JSON: two plans have one digest if and only if that, the roster and the
    published files are equal, whatever is learned under them.

    * δ, relation, unit, number of rounds, target ε, cap on examples and trials are always in it.
    * Of a mechanism each part that is written is, with all its fields, and what is recorded: event,
      hence ε, the cohort, how it is charged.
    * Of parts that are not written only a description is, by names and six digits. Classes of one
      name, and parameters that are not described, have one digest.
    * Of an adaptive plan ρ is, and no mechanism: each query brings its own.

    Args:
        plan: The plan.
        roster: The frozen ids; their order is part of the digest.
        published: SHA-256 by name of files such as an encoder's, of which the plan covers nothing:
            agreeing to it is agreeing to these. None for none.

    Returns:
        64 hex digits.
    """
    also = {"published": dict(published)} if published else {}
    return document_sha256({"plan": plan.to_json(), "roster": list(roster), **also})


def _check_micro_batch(size: int, unit: Unit, relation: Relation) -> None:
    """Refuse micro-batches where the sensitivity of their sum is not known.

    Raises:
        ValueError: If they are of users, or a neighbour is another record in one's place; or if the
            unit is an owner, whose examples a neighbour blanks, under another relation.
    """
    if unit in ("owner", BY_EXAMPLE) and relation is not Relation.ADD_REMOVE:
        raise ValueError(
            f"relation {relation.value!r}: neighbours have all of one {unit_name(unit)}'s "
            "examples blanked, which is accounted as 'add-remove'; use that"
        )
    if size > 1 and (unit != "example" or relation is not Relation.ADD_REMOVE):
        raise ValueError(f"micro_batch {size} is for examples under relation 'add-remove'; use 1")


def _check_rows(mechanism: Mechanism, num_rounds: int, relation: Relation) -> None:
    """Refuse more rounds than correlated noise was made for, and relations that it does not cover.

    Raises:
        ValueError: If that is so.
    """
    if not mechanism.runs:
        return
    limit = mechanism.privatizer.participation
    if limit is None or limit.num_rows is None:
        return
    if num_rounds > limit.num_rows:
        raise ValueError(
            f"{num_rounds:,} rounds are more than the {limit.num_rows:,} rows that "
            f"{mechanism.privatizer.name} noise was made for; make it for as many"
        )
    if relation is Relation.ADD_REMOVE:
        raise ValueError(
            f"{mechanism.privatizer.name} noise is accounted for a user who contributes zero in "
            "all of its rows, or not; use relation 'zero-out'"
        )


def _check_trials(trials: Trials | None, event: Event, relation: Relation) -> None:
    """Refuse private selection among runs that RDP does not account: only RDP accounts it.

    Raises:
        ValueError: If that is so.
    """
    if trials is None or not event.is_private:
        return
    if not has_rdp(event, relation):
        raise ValueError(
            f"the best of {trials.mean:g} trials on average is accounted by RDP, which cannot "
            f"account {event.kind} under {relation.value}; leave out the cap, group a "
            "person's devices before the bound, put the noise on the gradients, or use relation "
            "'add-remove'"
        )
