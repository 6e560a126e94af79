"""What rounds cost, and how much noise a budget needs: the numbers, without a run.

Both price a `fedpriv.api.own_loop.plan`, so what no plan may be has no price here either.

>>> price = account(users=400, cohort=20, rounds=100, noise_multiplier=1.0, delta=1 / 400)
>>> print(price)
ε = 1.9059 at δ = 0.0025 (add-remove, per user, by PLD; RDP 2.3891)
note: δ is not below 1/users = 0.0025: it allows publishing one user outright
>>> calibrate(users=400, cohort=20, rounds=100, epsilon=2.0).epsilon.value <= 2.0
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedpriv.api.own_loop import plan
from fedpriv.experiments.parts.options import said_as_options
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.plans.plan import Plan
from fedpriv.privacy.statement.statement import NO_MEANINGFUL_PROTECTION_ABOVE

#: Noise is a multiple of the bound, so whatever the bound, the price is the same.
_ANY_BOUND = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a number of rounds costs.

    Attributes:
        epsilon: The ε, with its δ, relation, unit and accountant; `.value` is the bare number.
        noise_multiplier: σ = stddev of the noise on the sum / bound of one user.
        users: Users on the roster.
        cohort: Expected cohort, or its exact size.
        rounds: Rounds, each charged once.
        event: What one round does.
        notes: What is to be read with the ε, in words.
    """

    epsilon: Epsilon
    noise_multiplier: float
    users: int
    cohort: float
    rounds: int
    event: Event
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([str(self.epsilon), *(f"note: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as `fedpriv account --json` prints them."""
        return {
            **self.epsilon.to_json(),
            "noise_multiplier": self.noise_multiplier,
            "users": self.users,
            "cohort": self.cohort,
            "rounds": self.rounds,
            "event": self.event.to_json(),
            "notes": list(self.notes),
        }


def account(
    *,
    users: int,
    cohort: float,
    rounds: int,
    noise_multiplier: float,
    delta: float | None = None,
    sampling: str = "poisson",
    relation: str | Relation | None = None,
    cap: int | None = None,
) -> Account:
    """Return what a number of rounds costs: ε at δ, per user.

    Args:
        users: Users on the roster.
        cohort: Expected cohort (poisson) or its size (fixed).
        rounds: Rounds, each charged once.
        noise_multiplier: Stddev of the noise on the sum over the bound of one user.
        delta: δ; None for users^-1.1.
        sampling: "poisson" (independent draws) or "fixed" (exact size).
        relation: "add-remove" or "replace-one"; None for add-remove with poisson, replace-one
            with fixed.
        cap: Largest poisson cohort, at least twice the mean; a uniform subset takes part above.

    Guarantees:
        * An upper bound on ε for the stated relation; `str` rounds it up.

    Raises:
        ValueError: If a number is out of range, or `fedpriv.plan` refuses them together.
    """
    priced = plan(
        users=users,
        cohort=cohort,
        rounds=rounds,
        l2_clip_norm=_ANY_BOUND,
        noise_multiplier=noise_multiplier,
        delta=delta,
        sampling=sampling,
        relation=relation,
        cap=cap,
    )
    return _account(priced)


def calibrate(
    *,
    users: int,
    cohort: float,
    rounds: int,
    epsilon: float,
    delta: float | None = None,
    sampling: str = "poisson",
    relation: str | Relation | None = None,
    cap: int | None = None,
) -> Account:
    """Return the least noise that keeps ε within a target, with what it costs.

    Args:
        users: Users on the roster.
        cohort: Expected cohort (poisson) or its size (fixed).
        rounds: Rounds, each charged once.
        epsilon: The ε not to be exceeded.
        delta: As for `account`.
        sampling: As for `account`.
        relation: As for `account`.
        cap: As for `account`.

    Guarantees:
        * The answer's ε never exceeds the target.

    Raises:
        ValueError: If a number is out of range, or no noise reaches the target.
    """
    with said_as_options({"target_epsilon": "epsilon"}):
        priced = plan(
            users=users,
            cohort=cohort,
            rounds=rounds,
            l2_clip_norm=_ANY_BOUND,
            target_epsilon=epsilon,
            delta=delta,
            sampling=sampling,
            relation=relation,
            cap=cap,
        )
    return _account(priced)


def _account(plan: Plan) -> Account:
    spent, mechanism = plan.total(), plan.mechanism
    cohort = mechanism.expected_cohort_size
    return Account(
        epsilon=spent,
        noise_multiplier=plan.event.sigma,
        users=plan.num_users,
        cohort=cohort,
        rounds=plan.num_rounds,
        event=plan.event,
        notes=_notes(spent, plan.num_users),
    )


def _notes(spent: Epsilon, users: int) -> tuple[str, ...]:
    notes = []
    if not spent.value <= NO_MEANINGFUL_PROTECTION_ABOVE:
        notes.append(f"no meaningful protection: ε is above {NO_MEANINGFUL_PROTECTION_ABOVE:g}")
    if spent.delta * users >= 1.0 - 1e-9:
        notes.append(
            f"δ is not below 1/users = {1.0 / users:.3g}: it allows publishing one user outright"
        )
    return tuple(notes)
