"""Mechanisms of the ordinary kind in numbers and names: cohorts, a bounded sum, Gaussian noise.

A plan of such a mechanism is written flat, and made from the same numbers again.
"""

from __future__ import annotations

import math
from typing import Any

from fedpriv.mechanisms.bounds import Bound, Clip, Normalise, Unbounded
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.privacy.event import cohort_event
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.recorded import RecordedMechanism
from fedpriv.privacy.sampling import FixedSizeSampler, PoissonSampler, Sampler
from fedpriv.ranges import finite_float, positive_float

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
)
_BOUNDS = ("clip", "normalise", "none")


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
) -> Mechanism:
    """Return a bounded, noised sum over cohorts.

    Args:
        num_users: Users on the frozen roster, n.
        expected_cohort_size: Mean cohort (Poisson) or exact cohort (fixed); the denominator of
            every round, whoever replies.
        sampling: "poisson" (independent draws) or "fixed" (without replacement).
        cohort_cap: Largest Poisson cohort, at least twice the mean (or everybody), or None.
        bound: What bounds a user's update: "clip", "normalise" or "none".
        l2_bound: The certified l2 bound of one user's vector; None (or infinity) exactly when
            bound is "none".
        noise: "gaussian" on the sum, or "none".
        noise_multiplier: σ = stddev / sensitivity; 0 exactly when noise is "none".
        micro_batch: As `Mechanism.micro_batch`.

    Raises:
        ValueError: If a value is out of range or two parts do not fit.
    """
    return Mechanism(
        sampler=sampler_of(sampling, num_users, expected_cohort_size, cohort_cap),
        bound=bound_of(bound, l2_bound),
        privatizer=privatizer_of(noise, noise_multiplier),
        micro_batch=micro_batch,
    )


def numbers_of(mechanism: Mechanism | RecordedMechanism) -> dict[str, Any] | None:
    """Return the numbers of a mechanism of the ordinary kind, or None of any other."""
    if isinstance(mechanism, RecordedMechanism):
        return None
    sampler, privatizer = mechanism.sampler, mechanism.privatizer
    if not isinstance(sampler, (PoissonSampler, FixedSizeSampler)):
        return None
    if not isinstance(privatizer, (Gaussian, Unprotected)) or mechanism.bound.name not in _BOUNDS:
        return None
    bounded = not math.isinf(mechanism.l2_bound)
    return {
        "num_users": mechanism.num_users,
        "expected_cohort_size": mechanism.expected_cohort_size,
        "sampling": "fixed" if isinstance(sampler, FixedSizeSampler) else "poisson",
        "cohort_cap": sampler.cap if isinstance(sampler, PoissonSampler) else None,
        "bound": mechanism.bound.name,
        "l2_bound": mechanism.l2_bound if bounded else None,
        "noise": privatizer.name,
        "noise_multiplier": mechanism.noise_multiplier,
        "micro_batch": mechanism.micro_batch,
    }


def sampler_of(
    sampling: str, num_users: int, expected_cohort_size: float, cohort_cap: int | None = None
) -> Sampler:
    """Return the sampler of a name.

    Raises:
        ValueError: If the name is unknown, or the numbers do not describe a cohort.
    """
    if sampling == "poisson":
        return PoissonSampler(
            num_users=num_users, expected_cohort_size=expected_cohort_size, cap=cohort_cap
        )
    # The event's checks know every way in which these can be wrong.
    cohort_event(
        num_users=num_users,
        expected_cohort_size=expected_cohort_size,
        noise_multiplier=1.0,
        sampling=sampling,
        cohort_cap=cohort_cap,
    )
    return FixedSizeSampler(num_users=num_users, size=int(expected_cohort_size))


def bound_of(name: str, l2_bound: float | None) -> Bound:
    """Return the bound of a name, as far as a plan records it.

    Raises:
        ValueError: If the name is unknown, or the number does not fit it.
    """
    if name not in _BOUNDS:
        raise ValueError(f"bound {name!r} is unknown; give 'clip', 'normalise' or 'none'")
    if name == "none":
        if l2_bound is not None and l2_bound != math.inf:
            raise ValueError(
                f"l2_bound {l2_bound!r} is given but bound is 'none'; leave it "
                "out, or bound by 'clip' or 'normalise'"
            )
        return Unbounded()
    if l2_bound is None:
        raise ValueError(f"bound {name!r} needs an l2_bound; give one such as 0.5")
    norm = positive_float("l2_bound", l2_bound)
    return Clip(l2_clip_norm=norm) if name == "clip" else Normalise(l2_clip_norm=norm)


def privatizer_of(noise: str, noise_multiplier: float) -> Privatizer:
    """Return the privatizer of a name.

    Raises:
        ValueError: If the name is unknown, or the number does not fit it.
    """
    if noise not in ("gaussian", "none"):
        raise ValueError(f"noise {noise!r} is unknown; give 'gaussian' or 'none'")
    if noise == "gaussian":
        return Gaussian(noise_multiplier=positive_float("noise_multiplier", noise_multiplier))
    sigma = finite_float("noise_multiplier", noise_multiplier)
    if sigma != 0.0:
        raise ValueError(
            f"noise_multiplier {sigma} is given but noise is 'none'; leave it "
            "out, or ask for noise 'gaussian'"
        )
    return Unprotected()
