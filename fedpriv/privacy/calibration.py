"""Calibration: the smallest noise multiplier whose ε stays within a target.

>>> from fedpriv.privacy.event import cohort_event
>>> sigma = calibrate(
...     lambda sigma: cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=sigma),
...     100, target_epsilon=2.0, delta=1 / 400, relation="add-remove")
>>> f"{sigma:.3f}"
'0.977'
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from fedpriv.privacy.accounting import epsilon, epsilon_coarsely, epsilon_value
from fedpriv.privacy.event import (
    LARGEST_NOISE_MULTIPLIER,
    SMALLEST_NOISE_MULTIPLIER,
    Event,
    Relation,
)
from fedpriv.privacy.trials import Trials
from fedpriv.ranges import positive_float, positive_int


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

    def excess(log_sigma: float, price: Callable[..., float]) -> float:
        event = make_event(math.exp(log_sigma))
        value = price(event, rounds, delta=delta, relation=related, trials=trials)
        return math.log(max(value, 1e-30) / target) if math.isfinite(value) else math.inf

    # A cheap grid finds the neighbourhood; the grid that will be reported has the last word.
    near = _smallest_within(
        lambda point: excess(point, epsilon_coarsely), 0.0, math.log(2.0), target
    )
    return math.exp(
        _smallest_within(lambda point: excess(point, epsilon_value), near, 5e-4, target)
    )


def _smallest_within(
    excess: Callable[[float], float], start: float, step: float, target: float
) -> float:
    """Return log σ with excess in [-1e-4, 0], for an excess falling in log σ.

    Bracket by growing steps from `start`, then regula falsi with halving (the Illinois rule);
    the returned end of the bracket was itself evaluated and found within the target.
    """
    bottom, top = (
        math.log(SMALLEST_NOISE_MULTIPLIER) + 1e-12,
        math.log(LARGEST_NOISE_MULTIPLIER) - 1e-12,
    )
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
    low, high = 0, num_rounds - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if spent(middle) <= target else (low, middle - 1)
    return low
