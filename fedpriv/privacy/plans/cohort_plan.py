"""Plans of cohorts from numbers and names."""

from __future__ import annotations

from typing import Any

from fedpriv.privacy.plans.named import named_mechanism
from fedpriv.privacy.plans.plan import Plan


def cohort_plan(
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
    **rest: Any,
) -> Plan:
    """Return the plan of a bounded, noised sum over cohorts.

    Args:
        num_users: As this and the following of `fedpriv.privacy.plans.named.named_mechanism`.
        expected_cohort_size: The denominator of every round.
        sampling: "poisson" or "fixed".
        cohort_cap: Largest Poisson cohort.
        bound: "clip", "normalise" or "none".
        l2_bound: The certified l2 bound of one user's vector.
        noise: "gaussian" or "none".
        noise_multiplier: σ = stddev / sensitivity.
        micro_batch: As `Mechanism.micro_batch`.
        **rest: Every other field of a `Plan`.

    Raises:
        ValueError: If a value is out of range or two parts do not fit.
    """
    mechanism = named_mechanism(
        num_users=num_users,
        expected_cohort_size=expected_cohort_size,
        sampling=sampling,
        cohort_cap=cohort_cap,
        bound=bound,
        l2_bound=l2_bound,
        noise=noise,
        noise_multiplier=noise_multiplier,
        micro_batch=micro_batch,
    )
    return Plan(mechanism=mechanism, **rest)
