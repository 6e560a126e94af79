"""Mechanisms of any cost and plans of any numbers, for tests of what is accounted."""

import json

from fedpriv.mechanisms import Clip, Normalise, Rounded, Unbounded
from fedpriv.mechanisms.event import FIELDS, Event
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import DevicesSampler, Everybody, PoissonSampler, sampler_of

EVERYBODY = Everybody(num_users=400)
POISSON = PoissonSampler(num_users=400, expected_cohort_size=20)


class Costing(Privatizer):
    """A privatizer of a kind and value of cost; what it draws is the sensitivity."""

    name = "written down"

    def __init__(self, kind, *values, whole_run=False, participation=None):
        self.numbers = {"kind": kind, **dict(zip(FIELDS[kind], values, strict=False))}
        self.participation = participation
        self.after_crash = "discard" if whole_run else "retry"

    @property
    def event(self):
        return Event(**self.numbers)

    def draws(self, *, template, sensitivity, key):
        yield sensitivity

    def release(self, total, drawn, share):
        return total.total["w"].sum() * share


def through_json(value):
    """What is read of a value that was written down."""
    return json.loads(json.dumps(value, allow_nan=False))


def mechanism(**changes):
    """A mechanism of Poisson cohorts, clipping to 0.5 and noise of σ 2, with parts substituted."""
    given = {
        "sampler": POISSON,
        "bound": Clip(l2_clip_norm=0.5),
        "privatizer": Gaussian(noise_multiplier=2.0),
    }
    return Mechanism(**{**given, **changes})


def cohort_event(
    *, num_users, expected_cohort_size, noise_multiplier, sampling="poisson", cohort_cap=None,
    devices=1,
):  # fmt: skip
    """The event of a round of Gaussian noise over cohorts, from plain numbers and names."""
    sampler = sampler_of(sampling, num_users, expected_cohort_size, cohort_cap)
    if devices != 1:
        sampler = DevicesSampler(draws=sampler, devices=devices)
    return sampler.event(Gaussian(noise_multiplier=noise_multiplier))


def cohort_plan(
    *, num_users, expected_cohort_size, sampling="poisson", cohort_cap=None, bound="none",
    l2_bound=None, noise="none", noise_multiplier=0.0, micro_batch=1, exact_sum=False, **rest,
):  # fmt: skip
    """A plan of a bounded, noised sum over cohorts, from plain numbers and names."""
    made_by = {"none": Unbounded, "clip": Clip, "normalise": Normalise}[bound]
    bounded = made_by() if bound == "none" else made_by(l2_clip_norm=l2_bound)
    gaussian = noise == "gaussian"
    made = Mechanism(
        sampler=sampler_of(sampling, num_users, expected_cohort_size, cohort_cap),
        bound=Rounded(bound=bounded) if exact_sum else bounded,
        privatizer=Gaussian(noise_multiplier=noise_multiplier) if gaussian else Unprotected(),
        micro_batch=micro_batch,
    )
    return Plan(mechanism=made, **rest)


def plan(**changes):
    """A plan of ten rounds of clipping to 0.5 and noise of σ 2, with other numbers."""
    given = {
        "num_users": 400, "expected_cohort_size": 20, "num_rounds": 10, "bound": "clip",
        "l2_bound": 0.5, "noise": "gaussian", "noise_multiplier": 2.0,
    }  # fmt: skip
    return cohort_plan(**{**given, **changes})
