"""Accounting without a run: the ε of rounds, and the noise that a target ε needs.

Both price a `fedpriv.api.custom_loop.plan`, so what no plan may be has no price here either.

>>> price = account(users=400, cohort=20, rounds=100, noise_multiplier=1.0, delta=1 / 400)
>>> print(price)
ε = 1.9059 at δ = 0.0025 (add-remove, per user, by PLD; RDP 2.3891)
noise multiplier 1, 100 rounds, cohort 20 of 400 users
note: δ is not below 1/users = 0.0025: it allows publishing one user outright
>>> calibrate(users=400, cohort=20, rounds=100, target_epsilon=2.0).epsilon.value <= 2.0
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.api.custom_loop import plan
from fedpriv.experiments.options import naming_options
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.noise_grid import NoiseGrid, NoisePoint
from fedpriv.privacy.noise_grid import noise_grid as privacy_noise_grid
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import DevicesSampler
from fedpriv.privacy.statement.statement import NO_MEANINGFUL_PROTECTION_ABOVE
from fedpriv.privacy.trials import Trials

#: Noise is a multiple of the bound, so whatever the bound, the price is the same.
_ANY_BOUND = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Cost of a number of rounds.

    Attributes:
        epsilon: The ε, with its δ, relation, unit and accountant; `.value` is the bare number.
        noise_multiplier: σ = stddev of the noise on the sum / bound of one user.
        users: Users on the roster.
        cohort: Expected cohort, or its exact size.
        rounds: Rounds, each charged once.
        event: What one round does.
        notes: What is to be read with the ε, in words.
        devices: How many of the users one person has, each drawn and bounded alone.
        trials: The law of how many such runs were made of which the best is kept; None for one.
    """

    epsilon: Epsilon
    noise_multiplier: float
    users: int
    cohort: float
    rounds: int
    event: Event
    notes: tuple[str, ...]
    devices: int = 1
    trials: Trials | None = None

    @property
    def noise_on_mean(self) -> float:
        """Stddev of the noise on a coordinate of the released mean over C, the clip norm."""
        return self.noise_multiplier / self.cohort

    @property
    def point(self) -> NoisePoint:
        """The same as a cell of `noise_grid`."""
        return NoisePoint(
            cohort=self.cohort,
            rounds=self.rounds,
            noise_multiplier=self.noise_multiplier,
            noise_on_mean=self.noise_on_mean,
        )

    def __repr__(self) -> str:
        noise = f"noise multiplier {self.noise_multiplier:.6g}"
        plan = f"{noise}, {self.rounds:,} rounds, cohort {self.cohort:,g} of {self.users:,} users"
        return "\n".join([str(self.epsilon), plan, *(f"note: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as `fedpriv account --json` prints them."""
        return {
            **self.epsilon.to_json(),
            "noise_multiplier": self.noise_multiplier,
            "noise_on_mean": self.noise_on_mean,
            "users": self.users,
            "cohort": self.cohort,
            "rounds": self.rounds,
            "event": self.event.to_json(),
            "notes": list(self.notes),
            "devices": self.devices,
            "trials": None if self.trials is None else self.trials.to_json(),
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
    devices: int = 1,
    trials: float | None = None,
    shape: float | None = None,
) -> Account:
    """Return the cost of a number of rounds: ε at δ, per user.

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
        devices: How many of the users are devices of one person, each drawn and bounded alone; ε is
            per person then. A person whose devices are bounded together is one user.
        trials: Mean of the random number of such runs that a study makes, keeping the best one and
            without publishing how many there were; ε is of the whole study then. None for one run.
        shape: Of the law of that number, a truncated negative binomial: 1 for geometric, inf for
            Poisson; None for 1.

    Guarantees:
        * An upper bound on ε for the stated relation; `str` rounds it up.

    Raises:
        ValueError: If a number is out of range, or `fedpriv.plan` refuses them together.
    """
    return _account(
        _plan(
            devices,
            law_of_trials(trials, shape),
            None,
            users=users,
            cohort=cohort,
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling=sampling,
            relation=relation,
            cap=cap,
        )
    )


def calibrate(
    *,
    users: int,
    cohort: float,
    rounds: int,
    target_epsilon: float,
    delta: float | None = None,
    sampling: str = "poisson",
    relation: str | Relation | None = None,
    cap: int | None = None,
    devices: int = 1,
    trials: float | None = None,
    shape: float | None = None,
) -> Account:
    """Return the least noise that keeps ε within a target, with what it costs.

    Args:
        users: Users on the roster.
        cohort: Expected cohort (poisson) or its size (fixed).
        rounds: Rounds, each charged once.
        target_epsilon: The ε not to be exceeded.
        delta: As for `account`.
        sampling: As for `account`.
        relation: As for `account`.
        cap: As for `account`.
        devices: As for `account`.
        trials: As for `account`.
        shape: As for `account`.

    Guarantees:
        * The answer's ε never exceeds the target.

    Raises:
        ValueError: If a number is out of range, or no noise reaches the target.
    """
    accounted = _plan(
        devices,
        law_of_trials(trials, shape),
        target_epsilon,
        users=users,
        cohort=cohort,
        rounds=rounds,
        noise_multiplier=1.0,
        delta=delta,
        sampling=sampling,
        relation=relation,
        cap=cap,
    )
    return _account(accounted)


def law_of_trials(trials: float | None, shape: float | None = None) -> Trials | None:
    """Return the law of a random number of trials, or None where there is one run.

    Raises:
        ValueError: If a number is out of range, or there is a shape without a mean.
    """
    if trials is None:
        if shape is not None:
            raise ValueError(f"shape {shape!r} is of the number of trials; give trials, its mean")
        return None
    return Trials(mean=trials, shape=1.0 if shape is None else shape)


def noise_grid(
    *,
    users: int,
    target_epsilon: float,
    cohorts: Sequence[float] | None = None,
    rounds: Sequence[int] | None = None,
    delta: float | None = None,
    sampling: str = "poisson",
    relation: str | Relation | None = None,
    cap_over_cohort: float | None = None,
    devices: int = 1,
    trials: float | None = None,
    shape: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NoiseGrid:
    """Return the noise on the mean by cohort and rounds at one ε, and the saturation points.

    Args:
        users: Users on the roster.
        target_epsilon: The ε that no cell exceeds.
        cohorts: Expected cohorts (poisson) or their sizes (fixed); None for doublings from a
            twentieth of the roster, at most 250, to 4,000.
        rounds: Numbers of rounds; None for 25, 50, 100, 200 and 400.
        delta: As for `account`.
        sampling: As for `account`.
        relation: As for `account`.
        cap_over_cohort: Largest poisson cohort over the expected one; None for no cap.
        devices: As for `account`.
        trials: As for `account`.
        shape: As for `account`.
        progress: Called with how many cells are done, of how many.

    Guarantees:
        * Each cell has the noise multiplier that `calibrate` finds for it alone.

    Raises:
        ValueError: If a number is out of range.
    """
    default = "replace-one" if sampling == "fixed" else "add-remove"
    if cap_over_cohort is not None and cap_over_cohort < 2.0:
        raise ValueError(
            f"cap_over_cohort {cap_over_cohort:g} is below 2: a cap that often acts is not "
            "guaranteed; raise it, or leave it out"
        )
    with naming_options({"num_users": "users", "num_rounds": "rounds"}):
        return privacy_noise_grid(
            num_users=users,
            target_epsilon=target_epsilon,
            cohorts=cohorts,
            rounds=rounds,
            delta=delta,
            sampling=sampling,
            relation=default if relation is None else relation,
            cap_over_cohort=cap_over_cohort,
            devices=devices,
            trials=law_of_trials(trials, shape),
            unit="user" if devices == 1 else "person",
            progress=progress,
        )


def _plan(devices: int, trials: Trials | None, target: float | None, **numbers: Any) -> Plan:
    """Return the plan of what is priced; nothing is ever run with it."""
    if trials is not None and devices != 1:
        raise ValueError(
            f"trials {trials.mean:g} are accounted by RDP, which does not account {devices!r} "
            "devices of one person; bound a person's devices together, as one user"
        )
    draft = plan(l2_clip_norm=_ANY_BOUND, **numbers)
    if devices != 1:
        mechanism = draft.live_mechanism
        sampler = DevicesSampler(draws=mechanism.sampler, devices=devices)
        draft = replace(draft, mechanism=replace(mechanism, sampler=sampler))
    draft = replace(draft, trials=trials)
    return draft if target is None else draft.calibrated(target)


def _account(plan: Plan) -> Account:
    spent, mechanism = plan.total(), plan.mechanism
    devices = plan.event.devices or 1
    if devices > 1:
        spent = replace(spent, unit="person")
    cohort = mechanism.expected_cohort_size
    return Account(
        epsilon=spent,
        noise_multiplier=plan.event.sigma,
        users=plan.num_users,
        cohort=cohort,
        rounds=plan.num_rounds,
        event=plan.event,
        notes=_notes(spent, plan.num_users, devices, plan.trials),
        devices=devices,
        trials=plan.trials,
    )


def _notes(spent: Epsilon, users: int, devices: int, trials: Trials | None) -> tuple[str, ...]:
    notes = []
    if devices > 1:
        notes.append(
            f"the {users:,} users are devices, each drawn and bounded alone; it holds for a person "
            f"who has at most {devices} of them"
        )
    if trials is not None:
        notes.append(
            f"it covers keeping the best of a random number of such runs ({trials.name}), drawn "
            "once and never published, by a score that is public or charged"
        )
    if not spent.value <= NO_MEANINGFUL_PROTECTION_ABOVE:
        notes.append(f"no meaningful protection: ε is above {NO_MEANINGFUL_PROTECTION_ABOVE:g}")
    if spent.delta * users >= 1.0 - 1e-9:
        notes.append(
            f"δ is not below 1/users = {1.0 / users:.3g}: it allows publishing one user outright"
        )
    return tuple(notes)
