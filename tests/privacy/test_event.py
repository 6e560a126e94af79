"""Events: what a kind is, and what accountants get of it."""

import pytest
from dp_accounting import dp_event

from fedpriv.mechanisms.event import NONPRIVATE, Event, Relation
from fedpriv.privacy.accounting import add_kind
from tests.harness.refusals import refuses

EVENTS = [
    Event(kind="gaussian", noise_multiplier=2.0),
    Event(kind="poisson-gaussian", noise_multiplier=1.0, sampling_prob=0.05),
    Event(
        kind="truncated-poisson-gaussian", noise_multiplier=1.0, sampling_prob=0.05, num_users=400,
        cap=40,
    ),
    Event(kind="fixed-size-gaussian", noise_multiplier=1.0, num_users=400, size=20),
    Event(
        kind="poisson-devices-gaussian", noise_multiplier=1.0, sampling_prob=0.05, devices=3
    ),
    Event(kind="cyclic-poisson-gaussian", noise_multiplier=1.5, sampling_prob=0.2, rows=5),
    Event(kind="objective-gaussian", noise_multiplier=3.0, shift=0.02),
    Event(kind="pure", epsilon=0.5),
    Event(kind="zcdp", rho=0.125),
    NONPRIVATE,
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_what_a_kind_is(event):
    assert event.is_private == (event.kind != "nonprivate")
    drawn = ("poisson", "truncated", "fixed-size", "cyclic")
    assert event.is_sampled == event.kind.startswith(drawn)
    if event.kind in ("pure", "zcdp", "nonprivate"):
        with refuses(ValueError, event.kind):
            _ = event.sigma
    else:
        assert event.sigma == event.noise_multiplier


SIGMA = 3.0
SAMPLED = {"noise_multiplier": SIGMA, "sampling_prob": 0.25}


def of(noise_multiplier):
    return dp_event.GaussianDpEvent(noise_multiplier)


#: Each kind, and dp-accounting's event of it at the noise multiplier that its accountant is given.
PRICED = {
    "gaussian": (Event(kind="gaussian", noise_multiplier=SIGMA), of),
    "poisson": (
        Event(kind="poisson-gaussian", **SAMPLED),
        lambda sigma: dp_event.PoissonSampledDpEvent(0.25, of(sigma)),
    ),
    "cyclic": (
        Event(kind="cyclic-poisson-gaussian", rows=7, **SAMPLED),
        lambda sigma: dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(0.25, of(sigma)), 7
        ),
    ),
    "truncated": (
        Event(kind="truncated-poisson-gaussian", num_users=400, cap=210, **SAMPLED),
        lambda sigma: dp_event.TruncatedSubsampledGaussianDpEvent(400, 0.25, 210, sigma),
    ),
    "devices": (
        Event(kind="poisson-devices-gaussian", devices=2, **SAMPLED),
        lambda sigma: dp_event.MixtureOfGaussiansDpEvent(
            sigma, [0.0, 1.0, 2.0], [0.75**2, 2 * 0.25 * 0.75, 0.25**2]
        ),
    ),
    "fixed size": (
        Event(kind="fixed-size-gaussian", noise_multiplier=SIGMA, num_users=400, size=20),
        lambda sigma: dp_event.SampledWithoutReplacementDpEvent(400, 20, of(sigma)),
    ),
}


@pytest.mark.parametrize("kind", PRICED)
def test_accountants_get_the_event_and_rdp_under_replace_one_half_its_noise(kind):
    event, expected = PRICED[kind]
    for relation in Relation:
        assert event.to_dp_event(relation) == expected(SIGMA)
        share = 0.5 if relation is Relation.REPLACE_ONE else 1.0
        assert event.to_dp_event(relation, accountant="RDP") == expected(SIGMA * share)
    assert event.to_dp_event() == expected(SIGMA)


@pytest.mark.parametrize("relation", list(Relation))
def test_pure_and_concentrated_answers_are_priced_by_rho(relation):
    moved = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    for accountant in ("PLD", "RDP"):
        pure = Event(kind="pure", epsilon=0.5).to_dp_event(relation, accountant=accountant)
        assert pure == dp_event.ZCDpEvent((moved * 0.5) ** 2 / 2)
        concentrated = Event(kind="zcdp", rho=0.125).to_dp_event(relation, accountant=accountant)
        assert concentrated == dp_event.ZCDpEvent(moved**2 * 0.125)


def test_what_no_accountant_of_theirs_prices():
    assert NONPRIVATE.to_dp_event() == dp_event.NonPrivateDpEvent()
    objective = Event(kind="objective-gaussian", noise_multiplier=3.0, shift=0.02)
    assert objective.to_dp_event() == dp_event.UnsupportedDpEvent()


@pytest.mark.parametrize(
    ("kind", "name", "named"),
    [("gaussian", "noise_multiplier", "gaussian"), ("mine", "sigma", "sigma")],
)
def test_a_kind_is_not_priced_anew_by_its_name(kind, name, named):
    with refuses(ValueError, named):
        add_kind(kind, (name,), lambda event: None)
