"""A privacy filter: a plan whose total ρ is fixed and whose charges are decided during the run.

A method that looks at earlier releases before it decides how much noise to add next cannot name
its charges in advance. It can name their sum: a privacy filter refuses the charge that would
exceed it. For zero-concentrated DP such a filter costs nothing: charges ρ₁ + ρ₂ + ... <= ρ, each
chosen after the ones before, are ρ-zCDP together (Feldman and Zrnic 2021, Theorem 3.1; Whitehouse
et al. 2023, Theorem 1). The ε of a run is the filter's, whatever was spent of it.

>>> plan = AdaptivePlan(num_users=400, rho=0.5, delta=1e-5)
>>> gaussian = Event(kind="gaussian", noise_multiplier=2.0)
>>> plan.refusal(Counter({gaussian: 3}), gaussian), plan.refusal(Counter({gaussian: 4}), gaussian)
('', 'ρ = 0.125 more would take the total to 0.625, above the 0.5 of the plan')
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedpriv.privacy.accounting import delta_of
from fedpriv.privacy.epsilon import BudgetUse, Epsilon, rounded_up_to
from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.unit import Unit, check_roster_sha256, check_roster_size, check_unit
from fedpriv.privacy.zcdp import epsilon_of_rho, rho_of
from fedpriv.ranges import positive_float, positive_int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptivePlan:
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
          one user under `relation`, if each is an answer of a mechanism of its event.
        * Charges whose cohort is drawn are refused: amplification by sampling has no ρ.

    Raises:
        ValueError: If a value is out of range.
    """

    num_users: int
    rho: float
    relation: Relation = Relation.ADD_REMOVE
    delta: float | None = None
    max_examples_per_user: int | None = None
    roster_sha256: str | None = None
    unit: Unit = "user"

    def __post_init__(self) -> None:
        self._put("num_users", positive_int("num_users", self.num_users))
        self._put("rho", positive_float("rho", self.rho))
        self._put("relation", Relation.of(self.relation))
        self._put("delta", delta_of(self.delta, self.num_users, Event(kind="zcdp", rho=self.rho)))
        if self.max_examples_per_user is not None:
            capped = positive_int("max_examples_per_user", self.max_examples_per_user)
            self._put("max_examples_per_user", capped)
        check_unit(self.unit)
        check_roster_sha256(self.roster_sha256)

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_private(self) -> bool:
        """True: a filter refuses charges without noise."""
        return True

    @property
    def target_epsilon(self) -> None:
        """None: the total ρ is the only budget."""

    @property
    def trials(self) -> None:
        """None: selection among several trials is accounted for plans of equal charges only."""

    @property
    def planned_rounds(self) -> None:
        """None: what a round costs is decided during the run."""

    @property
    def affordable_rounds(self) -> None:
        """None, as `planned_rounds`."""

    @property
    def charged_once(self) -> bool:
        """False: every answer has its own cost."""
        return False

    @property
    def event(self) -> None:
        """None: each charge has its own event."""

    @property
    def is_exact(self) -> bool:
        """False: each query has its own mechanism.

        `fedpriv.training.algorithm.is_exact` asks the algorithm which they are.
        """
        return False

    @property
    def mechanism(self) -> None:
        """None: each query has its own mechanism."""

    @property
    def noise_multiplier(self) -> None:
        """None, likewise."""

    @property
    def live_mechanism(self) -> Mechanism:
        """None exists for all charges.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "an adaptive plan has no mechanism for all charges; give each query its own "
            "(Query(mechanism=...))"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Empty: what would weaken the guarantee is refused."""
        return ()

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
        if event.is_sampled or not event.is_private:
            return f"a filter of ρ takes no {event.kind} charge; let everybody take part"
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
        return self.rho * (1.0 + 1e-12)  # sums of floats: 10 charges of a tenth are the whole

    def _sum(self, spent: Counter[Event]) -> float:
        return math.fsum(count * rho_of(event, self.relation) for event, count in spent.items())

    @property
    def replays(self) -> bool:
        """False: after a crash, a release of an adaptive plan is asked again as a new charge."""
        return False

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

    def check_roster(self, roster: Sequence[str]) -> None:
        """Refuse a roster of another size than the plan's.

        Raises:
            ValueError: If its length is not num_users.
        """
        check_roster_size(roster, self.num_users, self.unit)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a dict of plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": "adaptive", **values, "relation": self.relation.value}

    @classmethod
    def from_json(cls, value: Any) -> AdaptivePlan:
        """Return the plan that `to_json` wrote.

        Raises:
            ValueError: If fields are missing or unknown, or the plan would be refused.
        """
        names = {"kind", *(field.name for field in fields(cls))}
        if not isinstance(value, Mapping) or value.get("kind") != "adaptive":
            raise ValueError(f"{value!r} is not an adaptive plan")
        if set(value) != names:
            odd = ", ".join(sorted(map(str, set(value) ^ names)))
            raise ValueError(f"the plan's fields do not match ({odd}); it was edited")
        return cls(**{name: value[name] for name in names - {"kind"}})
