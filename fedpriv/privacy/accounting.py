"""Privacy accounting: from the events of charges to an ε with its δ, relation and accountant.

The numbers are dp-accounting's. `epsilon` prices a count of identical charges and always answers
with the δ, the relation, the unit and the accountant; σ is the noise multiplier of the event.

How a kind is accounted:

==========================  ===========================================  =======================
kind                        dp-accounting event                          accountant
==========================  ===========================================  =======================
gaussian                    Gaussian(σ)                                  PLD, and RDP
poisson-gaussian            PoissonSampled(q, Gaussian(σ))               PLD, RDP under add-remove
truncated-poisson-gaussian  TruncatedSubsampledGaussian(n, q, cap, σ)    PLD
fixed-size-gaussian         SampledWithoutReplacement(n, m, Gaussian)    RDP, replace-one only
poisson-devices-gaussian    MixtureOfGaussians(σ, 0..K, binomial)        PLD, add-remove only
cyclic-poisson-gaussian     PoissonSampled(q, Gaussian(σ)), `rows` times   PLD, and RDP
objective-gaussian          Gaussian(σ), never below 0, plus the shift   PLD, add-remove only
pure                        ε₀, composed by adding up; at δ > 0 also in   composition (δ = 0), PLD
                            a privacy loss distribution
zcdp                        ZCDp(ρ)                                      RDP
nonprivate                  NonPrivate                                   none: ε = ∞
==========================  ===========================================  =======================

Pure answers alone cost the sum of their ε, at δ = 0; beside others, and at δ > 0, the smaller of
that sum and the composed loss. Wherever a zCDP answer is among the charges all are priced by RDP.
So is a study that keeps the best of several trials (`fedpriv.privacy.trials`).

Above a million charges RDP alone prices what PLD otherwise does; kinds that it does not price are
refused there.

Replacing a user moves the sum by up to twice the bound, and costs a pure answer twice its ε.
dp-accounting's PLD accountant counts a Gaussian's twice itself, its RDP accountant (0.6.0) does
not, so RDP under replace-one is fed σ/2; tests pin both behaviours. The privacy loss distribution
is discretised pessimistically (Doroshenko et al. 2022, "Connect the Dots"), on a grid chosen per
event, so ε is rounded up, by about 0.4 T h² over T charges on a grid of width h (`grid_interval`).

>>> event = Event(kind="poisson-gaussian", noise_multiplier=1.0, sampling_prob=0.05)
>>> print(epsilon(event, 100, delta=1 / 400, relation=Relation.ADD_REMOVE))
ε = 1.9059 at δ = 0.0025 (add-remove, per user, by PLD; RDP 2.3891)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import logging as absl_logging

from fedpriv.privacy.epsilon import Epsilon, default_delta
from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.trials import Trials
from fedpriv.ranges import finite_float, positive_int, probability

# Loading it takes a second, and workers that train price nothing: it is loaded where it is called.
if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution as pld


#: More charges than these are priced by RDP alone, whose cost does not grow with their number.
MOST_BY_PLD = 1_000_000
_NOT_BY_PLD = ("fixed-size-gaussian", "pure", "zcdp", "nonprivate")


def epsilon(
    event: Event,
    count: int,
    *,
    delta: float,
    relation: Relation | str,
    num_rounds: int | None = None,
    trials: Trials | None = None,
) -> Epsilon:
    """Return the ε of `count` identical charges.

    Args:
        event: What each charge did.
        count: Number of charges, at least 0 (0 costs nothing).
        delta: δ, strictly between 0 and 1.
        relation: The neighbouring relation.
        num_rounds: The count the PLD grid is chosen for; a plan gives its number of rounds, so
            that every ε along a run comes from one grid. None takes `count`.
        trials: The law of how many trials were run, each of them so charged, of which the best is
            kept; None for one run.

    Returns:
        PLD, with RDP as a second value, where both price the event; RDP alone for fixed-size
        cohorts, and for the best of several trials.

    Guarantees:
        * An upper bound on ε for the stated relation; results are cached.
        * The order of magnitude of its cost is 0.02 s a call once an event is cached, and below
          5 s and 700 MB for the first.

    Raises:
        ValueError: If a number is out of range, or no accountant prices the pair: fixed-size
            cohorts under add-remove; the best of several trials that RDP does not price.
    """
    return epsilon_of(
        [(event, count)], delta=delta, relation=relation, num_rounds=num_rounds, trials=trials
    )


def epsilon_of(
    charges: Sequence[tuple[Event, int]],
    *,
    delta: float,
    relation: Relation | str,
    num_rounds: int | None = None,
    trials: Trials | None = None,
) -> Epsilon:
    """Return the ε of run-length groups of charges, as a ledger holds them.

    Args:
        charges: Pairs of an event and how often it was charged.
        delta: δ, strictly between 0 and 1; 0 where every event is pure.
        relation: The neighbouring relation.
        num_rounds: As for `epsilon`.
        trials: As for `epsilon`; the charges are those of one trial.

    Raises:
        ValueError: As `epsilon`.
    """
    groups: dict[Event, int] = {}
    for event, count in charges:
        if not isinstance(event, Event):
            raise ValueError(f"{event!r} is not an Event; build one with cohort_event(...)")
        groups[event] = groups.get(event, 0) + (0 if count == 0 else positive_int("count", count))
    rounds = sum(groups.values()) if num_rounds is None else positive_int("num_rounds", num_rounds)
    related = Relation.of(relation)
    if any(count and not event.is_private for event, count in groups.items()):
        return Epsilon(
            value=math.inf,
            delta=checked_delta(delta, groups),
            relation=related,
            accountant="none",
            reason="no noise is added",
        )
    charged = tuple(groups.items())
    if trials is not None:
        return _of_trials(charged, probability("delta", delta), related, trials)
    return _epsilon(charged, checked_delta(delta, groups), related, max(rounds, 1))


def checked_delta(delta: float, events: Collection[Event]) -> float:
    """Return δ for these events, a built-in float.

    Raises:
        ValueError: If it is not strictly between 0 and 1; nor 0 for pure answers alone.
    """
    pure = bool(events) and all(event.kind == "pure" for event in events)
    if pure and finite_float("delta", delta) == 0.0:
        return 0.0
    return probability("delta", delta)


@functools.lru_cache(maxsize=4096)
def _epsilon(
    groups: tuple[tuple[Event, int], ...], delta: float, relation: Relation, num_rounds: int
) -> Epsilon:
    fixed = _check_fixed_size(groups, relation)
    summed = _pure_epsilon(groups, relation)
    fixed = fixed or any(event.kind == "zcdp" for event, _ in groups)
    groups = tuple((event, count) for event, count in groups if count)
    if not groups:
        accountant = "composition" if delta == 0.0 else "RDP" if fixed else "PLD"
        rdp = None if delta == 0.0 else 0.0
        return Epsilon(value=0.0, delta=delta, relation=relation, rdp=rdp, accountant=accountant)
    if delta == 0.0:
        assert summed is not None
        return Epsilon(value=summed, delta=0.0, relation=relation, accountant="composition")
    rdp = _rdp_epsilon(groups, delta, relation)
    if fixed:
        if rdp is None:
            raise ValueError(
                "charges that only RDP accounts (fixed-size cohorts, zCDP answers) and charges "
                "that it does not (capped cohorts, devices) in one ledger; run them as two plans"
            )
        return Epsilon(value=rdp, delta=delta, relation=relation, rdp=rdp, accountant="RDP")
    if _too_many(groups, num_rounds):
        if rdp is None and summed is None:
            raise ValueError(
                f"{num_rounds:,} charges are more than the {MOST_BY_PLD:,} that a privacy loss "
                f"distribution composes here, and RDP does not price {groups[0][0].kind} under "
                f"{relation.value}; give fewer rounds"
            )
        value, accountant = math.inf if rdp is None else rdp, "RDP"
    else:
        value, accountant = _pld_epsilon(groups, delta, relation, num_rounds), "PLD"
    if summed is not None and summed <= value:
        return Epsilon(
            value=summed, delta=delta, relation=relation, rdp=rdp, accountant="composition"
        )
    return Epsilon(
        value=value,
        delta=delta,
        relation=relation,
        rdp=rdp,
        accountant=accountant,
        reason="beyond what the accountant can resolve" if math.isinf(value) else "",
    )


def _too_many(groups: Sequence[tuple[Event, int]], num_rounds: int) -> bool:
    return num_rounds * max(event.rows or 1 for event, _ in groups) > MOST_BY_PLD


@functools.lru_cache(maxsize=4096)
def _of_trials(
    groups: tuple[tuple[Event, int], ...], delta: float, relation: Relation, trials: Trials
) -> Epsilon:
    """Return the ε of a study that releases the best of several trials."""
    _check_fixed_size(groups, relation)
    groups = tuple((event, count) for event, count in groups if count)
    value = _rdp_epsilon(groups, delta, relation, trials) if groups else 0.0
    if value is None:
        kinds = ", ".join(sorted({event.kind for event, _ in groups}))
        raise ValueError(
            f"the best of several trials is accounted by RDP, which does not account {kinds} under "
            f"{relation.value}; run the trials without a cap, and with a person's devices grouped"
        )
    return Epsilon(
        value=value,
        delta=delta,
        relation=relation,
        rdp=value,
        accountant="RDP",
        reason="beyond what the accountant can resolve" if math.isinf(value) else "",
    )


def _check_fixed_size(groups: tuple[tuple[Event, int], ...], relation: Relation) -> bool:
    """Return whether any cohort has a fixed size.

    Raises:
        ValueError: If they do, and a user is there or not.
    """
    fixed = any(event.kind == "fixed-size-gaussian" for event, _ in groups)
    if fixed and relation is not Relation.REPLACE_ONE:
        raise ValueError(
            f"fixed-size cohorts cannot be accounted under {relation.value}: leaving a user "
            "out changes who else is drawn; use relation 'replace-one', or poisson "
            "sampling"
        )
    return fixed


def _pure_epsilon(groups: tuple[tuple[Event, int], ...], relation: Relation) -> float | None:
    """Return the sum of pure ε, or None where an answer is not pure."""
    if not groups or any(event.epsilon is None for event, _ in groups):
        return None
    moved = relation.moved
    return math.fsum(
        count * moved * event.epsilon for event, count in groups if event.epsilon is not None
    )


def epsilon_value(
    event: Event, count: int, *, delta: float, relation: Relation, trials: Trials | None = None
) -> float:
    """Return the ε of `count` identical charges without the RDP value.

    The same number as `epsilon(...).value`, bit for bit, for half the time: only a search wants it.
    """
    rounds = positive_int("count", count)
    if trials is not None or event.kind in _NOT_BY_PLD or _too_many([(event, 1)], rounds):
        return epsilon(event, count, delta=delta, relation=relation, trials=trials).value
    return _pld_epsilon(((event, rounds),), probability("delta", delta), relation, rounds)


def epsilon_coarsely(
    event: Event, count: int, *, delta: float, relation: Relation, trials: Trials | None = None
) -> float:
    """Return ε on a grid ten times wider: an upper bound too, looser, and about ten times cheaper.

    Only a search wants it; what is reported is `epsilon`. Events that RDP prices cost the same.
    """
    rounds = positive_int("count", count)
    fixed = event.kind == "fixed-size-gaussian"
    if trials is not None or fixed or _too_many([(event, 1)], rounds):
        return epsilon(event, count, delta=delta, relation=relation, trials=trials).value
    return _pld_epsilon(
        ((event, rounds),),
        probability("delta", delta),
        relation,
        rounds,
        coarse=10.0,
    )


@functools.lru_cache(maxsize=4096)
def _pld_epsilon(
    groups: tuple[tuple[Event, int], ...],
    delta: float,
    relation: Relation,
    num_rounds: int,
    coarse: float = 1.0,
) -> float:
    from fedpriv.privacy.gaussian_loss import composed, grid_interval

    interval = coarse * max(
        grid_interval(event, num_rounds * (event.rows or 1), relation) for event, _ in groups
    )
    loss = None
    try:
        for event, count in groups:
            if event.kind == "gaussian":
                part = _one_loss(event, relation, interval, count)
            else:
                one = _one_loss(event, relation, interval, 1)
                part = composed(one, count * (event.rows or 1))
            loss = part if loss is None else loss.compose(part)
        assert loss is not None
        value = float(loss.get_epsilon_for_delta(delta))
    except OverflowError:
        return math.inf  # ε in the hundreds of thousands; infinity is an upper bound too
    if not value >= 0.0:
        raise ValueError(f"the accountant answered {value} for {groups}; refuse it and report it")
    return value


@functools.lru_cache(maxsize=4)
def _one_loss(
    event: Event, relation: Relation, interval: float, count: int
) -> pld.PrivacyLossDistribution:
    """Return the privacy loss of one charge (of `count`, for a plain Gaussian) on a grid."""
    if event.epsilon is not None:
        from dp_accounting.pld import common
        from dp_accounting.pld import privacy_loss_distribution as pld

        parameters = common.DifferentialPrivacyParameters(relation.moved * event.epsilon, 0.0)
        return pld.from_privacy_parameters(parameters, value_discretization_interval=interval)
    from fedpriv.privacy.gaussian_loss import (
        capped_gaussian_loss,
        devices_gaussian_loss,
        gaussian_loss,
        objective_loss,
    )

    if event.shift is not None:
        return objective_loss(event.sigma, event.shift, interval=interval, relation=relation)
    if event.kind == "poisson-devices-gaussian":
        assert event.sampling_prob and event.devices
        return devices_gaussian_loss(
            event.sigma,
            sampling_prob=event.sampling_prob,
            devices=event.devices,
            interval=interval,
            relation=relation,
        )
    if event.kind == "truncated-poisson-gaussian":
        assert event.num_users and event.sampling_prob and event.cap
        return capped_gaussian_loss(
            event.sigma,
            num_users=event.num_users,
            sampling_prob=event.sampling_prob,
            cap=event.cap,
            interval=interval,
            relation=relation,
        )
    return gaussian_loss(
        event.sigma / math.sqrt(count),
        sampling_prob=1.0 if event.sampling_prob is None else event.sampling_prob,
        interval=interval,
        relation=relation,
    )


def _rdp_epsilon(
    groups: tuple[tuple[Event, int], ...],
    delta: float,
    relation: Relation,
    trials: Trials | None = None,
) -> float | None:
    from dp_accounting.rdp import RdpAccountant, compute_epsilon

    curves = [_rdp_curve(event, relation) for event, _ in groups]
    if any(curve is None for curve in curves):
        return None
    orders = RdpAccountant().orders
    total = np.zeros(len(orders))
    for curve, (_, count) in zip(curves, groups, strict=True):
        total += np.asarray(curve) * count
    if trials is not None:
        with _quiet():
            total = trials.selected(np.asarray(orders, dtype=float), total)
    with _quiet():
        return float(compute_epsilon(orders.tolist(), total.tolist(), delta)[0])


@functools.lru_cache(maxsize=64)
def _rdp_curve(event: Event, relation: Relation) -> tuple[float, ...] | None:
    """Return the RDP of one charge at every default order, or None where RDP has no answer."""
    from dp_accounting.rdp import RdpAccountant

    dp_event = event.to_dp_event(relation, accountant="RDP")
    accountant = RdpAccountant(neighboring_relation=relation.dp_relation)
    if not accountant.supports(dp_event):
        return None
    with _quiet():
        return tuple(float(value) for value in accountant.compose(dp_event).rdp)


class _quiet:
    """Silence absl, which reports every RDP order that failed to converge, one line each."""

    def __enter__(self) -> None:
        self._level = absl_logging.get_verbosity()
        absl_logging.set_verbosity(absl_logging.ERROR)

    def __exit__(self, *_: object) -> None:
        absl_logging.set_verbosity(self._level)


def delta_of(delta: float | None, num_users: int, event: Event) -> float:
    """Return δ, checked; None gives n^-1.1, or 0 for a pure event.

    Raises:
        ValueError: If it is out of range.
    """
    if delta is None:
        return 0.0 if event.kind == "pure" else default_delta(num_users)
    return checked_delta(delta, [event])
