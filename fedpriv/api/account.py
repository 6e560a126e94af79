"""What rounds cost, and how much noise a budget needs: the numbers, without a run.

>>> price = account(users=400, cohort=20, rounds=100, noise_multiplier=1.0, delta=1 / 400)
>>> print(price)
ε = 1.9059 at δ = 0.0025 (add-remove, per user, by PLD; RDP 2.3891)
note: δ is not below 1/users = 0.0025: it allows publishing one user outright
>>> calibrate(users=400, cohort=20, rounds=100, epsilon=2.0).epsilon.value <= 2.0
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from fedpriv.privacy.accounting import Epsilon, epsilon
from fedpriv.privacy.calibration import calibrate as smallest_noise
from fedpriv.privacy.event import Event, Relation, cohort_event, default_delta
from fedpriv.privacy.statement.statement import NO_MEANINGFUL_PROTECTION_ABOVE
from fedpriv.ranges import positive_int, probability


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
        cap: Largest poisson cohort; a uniform subset takes part above.

    Guarantees:
        * An upper bound on ε for the stated relation; `str` rounds it up.

    Raises:
        ValueError: If a number is out of range, or nobody can account for the pair.
    """
    event = _event_of(noise_multiplier, users=users, cohort=cohort, sampling=sampling, cap=cap)
    at, related = _delta(delta, users), _relation(relation, sampling)
    spent = epsilon(event, positive_int("rounds", rounds), delta=at, relation=related)
    return Account(
        epsilon=spent,
        noise_multiplier=event.sigma,
        users=users,
        cohort=cohort,
        rounds=rounds,
        event=event,
        notes=_notes(spent, event, users, cohort),
    )


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
    event_of = partial(_event_of, users=users, cohort=cohort, sampling=sampling, cap=cap)
    sigma = smallest_noise(
        event_of,
        positive_int("rounds", rounds),
        target_epsilon=epsilon,
        delta=_delta(delta, users),
        relation=_relation(relation, sampling),
    )
    return account(
        users=users,
        cohort=cohort,
        rounds=rounds,
        noise_multiplier=sigma,
        delta=delta,
        sampling=sampling,
        relation=relation,
        cap=cap,
    )


def _event_of(
    noise_multiplier: float, *, users: int, cohort: float, sampling: str, cap: int | None
) -> Event:
    return cohort_event(
        num_users=users,
        expected_cohort_size=cohort,
        sampling=sampling,
        cohort_cap=cap,
        noise_multiplier=noise_multiplier,
    )


def _delta(delta: float | None, users: int) -> float:
    return default_delta(users) if delta is None else probability("delta", delta)


def _relation(name: str | Relation | None, sampling: str) -> Relation:
    if name is None:
        return Relation.REPLACE_ONE if sampling == "fixed" else Relation.ADD_REMOVE
    return Relation.of(name)


def _notes(spent: Epsilon, event: Event, users: int, cohort: float) -> tuple[str, ...]:
    notes = []
    if not spent.value <= NO_MEANINGFUL_PROTECTION_ABOVE:
        notes.append(f"no meaningful protection: ε is above {NO_MEANINGFUL_PROTECTION_ABOVE:g}")
    if spent.delta * users >= 1.0 - 1e-9:
        notes.append(
            f"δ is not below 1/users = {1.0 / users:.3g}: it allows publishing one user outright"
        )
    if event.cap is not None and event.cap < 2.0 * cohort:
        notes.append(
            f"a cap of {event.cap} is below twice the mean ({2.0 * cohort:g}); a plan "
            "refuses it, because it multiplies ε"
        )
    return tuple(notes)
