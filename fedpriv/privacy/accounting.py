"""Privacy accounting: the ε of charges, with δ, relation and accountant, and calibrated noise.

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

Pure answers alone cost the sum of their ε at δ = 0, and at δ > 0 the smaller of that sum and the
composed loss; together with other kinds, the composed loss. Wherever a zCDP answer or a cohort of
fixed size is among the charges all are priced by RDP. So is a study that keeps the best of several
trials (`fedpriv.privacy.trials`).

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

`calibrate` finds the smallest noise multiplier whose ε stays within a target:

>>> sigma = calibrate(
...     lambda sigma: Event(kind="poisson-gaussian", noise_multiplier=sigma, sampling_prob=0.05),
...     100, target_epsilon=2.0, delta=1 / 400, relation="add-remove")
>>> f"{sigma:.3f}"
'0.977'

ρ-zCDP says that the Rényi divergence of every order α is at most αρ. Bun and Steinke (2016,
Proposition 1.3) turn that into ε = ρ + 2 √(ρ ln(1/δ)); Canonne, Kamath and Steinke (2020,
Proposition 12) into the least over α > 1 of

    ε = αρ + ln(1 - 1/α) + (ln(1/δ) - ln α) / (α - 1),

which is never larger. Either holds; papers state budgets by the first.

>>> f"{rho_bs16(1.0, 1e-5):.6f} {rho_of_epsilon(1.0, 1e-5):.6f}"
'0.020820 0.030557'
"""

# pyright: reportMissingTypeStubs=false
# (dp-accounting brings none)

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging as absl_logging

from fedpriv.libraries import library
from fedpriv.mechanisms.event import (
    FIELDS,
    LARGEST_NOISE_MULTIPLIER,
    SMALLEST_NOISE_MULTIPLIER,
    Event,
    Relation,
)
from fedpriv.privacy.epsilon import Epsilon, default_delta
from fedpriv.privacy.trials import Trials
from fedpriv.ranges import finite_float, positive_float, positive_int, probability

# Loading it takes a second, and workers that train price nothing: it is loaded where it is called.
if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution as pld


Loss = Callable[[Event, Relation, float], "pld.PrivacyLossDistribution"]
"""Returns the privacy loss of one charge, rounded up to a grid of so wide cells."""
_ADDED: dict[str, Loss] = {}


def add_kind(kind: str, fields: tuple[str, ...], loss: Loss) -> None:
    """Make a further kind of event known, which is then written, read and priced by PLD.

    Args:
        kind: Its name.
        fields: Its numbers, attributes of `Event`.
        loss: Of one charge, an upper bound: nothing here can check a proof.

    Raises:
        ValueError: If fedpriv itself has such a kind, or a field is none of an `Event`'s.
    """
    if kind in FIELDS and kind not in _ADDED:  # a module that adds one may be loaded again
        raise ValueError(f"kind {kind!r} of event is fedpriv's own; give yours another name")
    for name in fields:
        if name not in Event.__dataclass_fields__:
            known = ", ".join(Event.__dataclass_fields__)
            raise ValueError(f"field {name!r} is none of an Event's; use some of {known}")
    FIELDS[kind], _ADDED[kind] = fields, loss
    for cached in (_epsilon, _pld_epsilon, _one_loss, _rdp_curve, affordable_rounds):
        cached.cache_clear()  # prices of what had this name before


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
        given: Any = event
        if not isinstance(given, Event):
            raise ValueError(f"{event!r} is not an Event")
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
    checked = checked_delta(delta, groups) if trials is None else probability("delta", delta)
    return _epsilon(tuple(groups.items()), checked, related, max(rounds, 1), trials)


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
    groups: tuple[tuple[Event, int], ...],
    delta: float,
    relation: Relation,
    num_rounds: int,
    trials: Trials | None,
) -> Epsilon:
    for event, _ in groups:
        check_relation(event, relation)
    summed = None if trials else _pure_epsilon(groups, relation)
    rdp_only = any(event.kind in ("fixed-size-gaussian", "zcdp") for event, _ in groups)
    by_rdp = rdp_only or trials is not None
    groups = tuple((event, count) for event, count in groups if count)
    answer = functools.partial(Epsilon, delta=delta, relation=relation)
    if not groups:
        accountant = "composition" if delta == 0.0 else "RDP" if by_rdp else "PLD"
        return answer(value=0.0, rdp=None if delta == 0.0 else 0.0, accountant=accountant)
    if delta == 0.0:
        assert summed is not None
        return answer(value=summed, accountant="composition")
    rdp = _rdp_epsilon(groups, delta, relation, trials)
    if rdp is None and trials is not None:
        kinds = ", ".join(sorted({event.kind for event, _ in groups}))
        raise ValueError(
            f"the best of several trials is accounted by RDP, which does not account {kinds} under "
            f"{relation.value}; run the trials without a cap, and with a person's devices grouped"
        )
    if rdp is None and rdp_only:
        raise ValueError(
            "charges that only RDP accounts (fixed-size cohorts, zCDP answers) and charges "
            "that it does not (capped cohorts, devices) in one ledger; run them as two plans"
        )
    if by_rdp or _too_many(groups, num_rounds):
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
        return answer(value=summed, rdp=rdp, accountant="composition")
    reason = "beyond what the accountant can resolve" if math.isinf(value) else ""
    return answer(value=value, rdp=rdp, accountant=accountant, reason=reason)


def _too_many(groups: Sequence[tuple[Event, int]], num_rounds: int) -> bool:
    return num_rounds * max(event.rows or 1 for event, _ in groups) > MOST_BY_PLD


def check_relation(event: Event, relation: Relation) -> None:
    """Refuse an event under a relation for which no accountant bounds it.

    Raises:
        ValueError: If that is so.
    """
    replaced = relation is Relation.REPLACE_ONE
    if event.kind == "fixed-size-gaussian" and not replaced:
        raise ValueError(
            f"fixed-size cohorts cannot be accounted under relation {relation.value!r}: "
            "dp-accounting bounds them under 'replace-one' only; use relation 'replace-one', or "
            "sampling 'poisson'"
        )
    if event.kind == "poisson-devices-gaussian" and replaced:
        raise ValueError(
            f"several devices of one person are accounted under relation 'add-remove', not "
            f"{relation.value!r}; use that, or bound a person's devices together"
        )
    if event.kind == "objective-gaussian" and replaced:
        raise ValueError(
            f"noise within an objective is accounted under relation 'add-remove', not "
            f"{relation.value!r}; use that"
        )


def _pure_epsilon(groups: tuple[tuple[Event, int], ...], relation: Relation) -> float | None:
    """Return the sum of pure ε, or None where an answer is not pure."""
    if not groups or any(event.kind != "pure" for event, _ in groups):
        return None
    moved = relation.moved
    return math.fsum(count * moved * (event.epsilon or 0.0) for event, count in groups)


def epsilon_value(
    event: Event,
    count: int,
    *,
    delta: float,
    relation: Relation,
    trials: Trials | None = None,
    coarse: float = 1.0,
) -> float:
    """Return the ε of `count` identical charges without the RDP value, which a search does not use.

    It equals `epsilon(...).value` bit for bit and takes half the time. A grid that is `coarse`
    times wider gives a looser upper bound, ten times cheaper at 10.
    """
    rounds = positive_int("count", count)
    if trials is not None or event.kind in _NOT_BY_PLD or _too_many([(event, 1)], rounds):
        return epsilon(event, count, delta=delta, relation=relation, trials=trials).value
    return _pld_epsilon(((event, rounds),), probability("delta", delta), relation, rounds, coarse)


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
    from fedpriv.privacy.gaussian_loss import LOSSES, gaussian_loss

    check_relation(event, relation)
    loss = _ADDED.get(event.kind) or LOSSES.get(event.kind)
    if loss is not None:
        return loss(event, relation, interval)
    return gaussian_loss(
        event.sigma / math.sqrt(count),
        sampling_prob=event.sampling_prob or 1.0,
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


def has_rdp(event: Event, relation: Relation) -> bool:
    """Return whether RDP accounts an event: only then the best of several trials is."""
    return _rdp_curve(event, relation) is not None


def _say_nothing(*_: object) -> None:
    pass


@contextmanager
def _quiet() -> Generator[None]:
    """Drop what dp-accounting reports of every RDP order that failed to converge, a line each.

    absl sets up the root logger for a line, even for one that its verbosity leaves out: so it is
    not called at all.
    """
    module: Any = library("dp_accounting.rdp.rdp_privacy_accountant")
    module.logging = SimpleNamespace(warning=_say_nothing)
    try:
        yield
    finally:
        module.logging = absl_logging


def delta_of(delta: float | None, num_users: int, event: Event) -> float:
    """Return δ, checked; None gives n^-1.1, or 0 for a pure event.

    Raises:
        ValueError: If it is out of range.
    """
    if delta is None:
        return 0.0 if event.kind == "pure" else default_delta(num_users)
    return checked_delta(delta, [event])


class NoNoiseFitsError(ValueError):
    """No noise multiplier of the range has an ε within a target, or each of them has."""


def calibrate(
    make_event: Callable[[float], Event],
    num_rounds: int,
    *,
    target_epsilon: float,
    delta: float,
    relation: Relation | str,
    trials: Trials | None = None,
) -> float:
    """Return the smallest noise multiplier whose ε stays within a target.

    Args:
        make_event: The event of a noise multiplier.
        num_rounds: Charges to pay for.
        target_epsilon: Largest ε allowed.
        delta: δ, strictly between 0 and 1.
        relation: The neighbouring relation.
        trials: As for `fedpriv.privacy.accounting.epsilon`.

    Returns:
        A built-in float whose ε, by the same accountant, never exceeds the target and falls short
        of it by at most 0.01 % (more only where ε jumps, at the ends of the range).

    Raises:
        ValueError: If a number is out of range.
        NoNoiseFitsError: If no noise multiplier between 0.01 and 100000 reaches the target, or all
            of them do.
    """
    target = positive_float("target_epsilon", target_epsilon)
    rounds = positive_int("num_rounds", num_rounds)
    related = Relation.of(relation)

    def excess(log_sigma: float, coarse: float) -> float:
        event = make_event(math.exp(log_sigma))
        value = epsilon_value(
            event, rounds, delta=delta, relation=related, trials=trials, coarse=coarse
        )
        return math.log(max(value, 1e-30) / target) if math.isfinite(value) else math.inf

    # A cheap grid finds the neighbourhood; the grid that will be reported has the last word.
    near = _smallest_within(lambda point: excess(point, 10.0), 0.0, math.log(2.0), target)
    return math.exp(_smallest_within(lambda point: excess(point, 1.0), near, 5e-4, target))


def _smallest_within(
    excess: Callable[[float], float], start: float, step: float, target: float
) -> float:
    """Return log σ with excess in [-1e-4, 0], for an excess falling in log σ.

    Bracket by growing steps from `start`, then regula falsi with halving (the Illinois rule);
    the returned end of the bracket was itself evaluated and found within the target.
    """
    bottom = math.log(SMALLEST_NOISE_MULTIPLIER) + 1e-12
    top = math.log(LARGEST_NOISE_MULTIPLIER) - 1e-12
    low = high = min(max(start, bottom), top)
    gap_low = gap_high = excess(high)
    down, up = step, step
    while gap_high > 0.0:
        if high >= top:
            raise NoNoiseFitsError(
                f"target_epsilon {target:g} is out of reach even with a noise "
                f"multiplier of {LARGEST_NOISE_MULTIPLIER:g}; raise it or delta, or "
                "lower the number of rounds or the cohort"
            )
        low, gap_low = high, gap_high
        high, up = min(high + up, top), 2.0 * up
        gap_high = excess(high)
    while gap_low <= 0.0 and gap_high < -1e-4:
        if low <= bottom:
            raise NoNoiseFitsError(
                f"target_epsilon {target:g} asks for no noise to speak of (even a "
                f"noise multiplier of {SMALLEST_NOISE_MULTIPLIER} stays within it); "
                "lower it, or ask for noise 'none'"
            )
        high, gap_high = low, gap_low
        low, down = max(low - down, bottom), 2.0 * down
        gap_low = excess(low)
    weight_low, weight_high = gap_low, gap_high
    for _ in range(100):
        if gap_high >= -1e-4 or high - low < 1e-9:
            break
        guess = 0.5 * (low + high)
        if math.isfinite(weight_low):
            # Aim a little inside the target, else the last steps all land just outside it.
            aimed = high - (weight_high + 5e-5) * (high - low) / (weight_high - weight_low)
            guess = aimed if low < aimed < high else guess
        gap = excess(guess)
        if gap > 0.0:
            low, weight_low, weight_high = guess, gap, weight_high / 2.0
        else:
            high, gap_high, weight_high, weight_low = guess, gap, gap, weight_low / 2.0
    return high


@functools.lru_cache(maxsize=64)
def affordable_rounds(
    event: Event,
    num_rounds: int,
    target: float,
    delta: float,
    relation: Relation,
    trials: Trials | None = None,
) -> int:
    """Return how many charges of an event stay within a target, num_rounds at most.

    It is searched for once: every ε on the way costs more than a round.
    """

    def spent(charges: int) -> float:
        return epsilon(
            event, charges, delta=delta, relation=relation, num_rounds=num_rounds, trials=trials
        ).value

    if spent(num_rounds) <= target:
        return num_rounds
    return bisect_right(range(1, num_rounds), target, key=spent)


def epsilon_bs16(rho: float, delta: float) -> float:
    """Return ρ + 2 √(ρ ln(1/δ)).

    Raises:
        ValueError: If ρ is not positive, or δ not strictly between 0 and 1.
    """
    rho, left = positive_float("rho", rho), _log_inverse(delta)
    return rho + 2.0 * math.sqrt(rho * left)


def rho_bs16(epsilon: float, delta: float) -> float:
    """Return the ρ of which `epsilon_bs16` makes this ε: (√(ln(1/δ) + ε) - √ln(1/δ))².

    Raises:
        ValueError: If ε is not positive, or δ not strictly between 0 and 1.
    """
    epsilon, left = positive_float("epsilon", epsilon), _log_inverse(delta)
    # The difference of the two roots, without their cancellation.
    return (epsilon / (math.sqrt(left + epsilon) + math.sqrt(left))) ** 2


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Return the ε of ρ-zCDP, minimised over every order.

    Guarantees:
        * ρ-zCDP is (ε, δ)-DP: each order gives a valid ε, so that an inexact minimum is one too.

    Raises:
        ValueError: If ρ is not positive, or δ not strictly between 0 and 1.
    """
    rho, left = positive_float("rho", rho), _log_inverse(delta)

    def bound(log_excess: float) -> float:
        excess = math.exp(log_excess)  # α - 1
        order = 1.0 + excess
        return order * rho + log_excess - math.log(order) + (left - math.log(order)) / excess

    # The plain conversion is that of one order, so it is above the minimum but for rounding.
    return max(0.0, min(_least(bound), epsilon_bs16(rho, delta)))


def rho_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest ρ whose `epsilon_of_rho` does not exceed this ε, less a part in 10¹².

    Raises:
        ValueError: If ε is not positive, or δ not strictly between 0 and 1.
    """
    epsilon, left = positive_float("epsilon", epsilon), _log_inverse(delta)

    def less(log_excess: float) -> float:
        """Return -ρ of the conversion by one order, which is `epsilon_of_rho`'s bound solved."""
        excess = math.exp(log_excess)
        order = 1.0 + excess
        fixed = log_excess - math.log(order) + (left - math.log(order)) / excess
        return (fixed - epsilon) / order

    return max(-_least(less), rho_bs16(epsilon, delta)) * (1.0 - 1e-12)


def _least(bound: Callable[[float], float]) -> float:
    """Return the least value over every order α, of log(α - 1).

    Orders are between 1 + e^-15 and 1 + e^35: where ρ is below e^-60 nothing is left to minimise.
    """
    found = library("scipy.optimize").minimize_scalar(
        bound, bounds=(-15.0, 35.0), method="bounded", options={"xatol": 1e-10}
    )
    return float(found.fun)


def _log_inverse(delta: float) -> float:
    return -math.log(probability("delta", delta))


def has_rho(event: Event) -> bool:
    """Return whether one charge has a ρ; amplification by sampling has none."""
    return event.kind in ("gaussian", "pure", "zcdp")


def rho_of(event: Event, relation: Relation) -> float:
    """Return the ρ of one charge: 1/(2σ²) of a Gaussian, ε²/2 of a pure answer, or its own.

    Under replace-one all of them are four times as much: a replaced user is two that are there or
    not (Bun and Steinke 2016, Proposition 1.9).

    Raises:
        ValueError: If it has none.
    """
    if not has_rho(event):
        raise ValueError(f"a {event.kind} charge has no ρ; let everybody take part")
    moved = relation.moved
    if event.kind == "zcdp":
        return moved**2 * (event.rho or 0.0)
    if event.kind == "pure":
        return 0.5 * (moved * (event.epsilon or 0.0)) ** 2
    return 0.5 * (moved / event.sigma) ** 2
