"""What a file says of a mechanism: enough to make it again, or else to account it and no more."""

import json

import pytest

from fedpriv.mechanisms import (
    AdaptiveClip,
    Banded,
    BinaryTree,
    Bound,
    Buffered,
    Capped,
    Clip,
    Correlated,
    NoisyMin,
    Normalise,
    OutputGaussian,
    Rounded,
    Unbounded,
    Unprotected,
)
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.plan import Plan, plan_digest
from fedpriv.privacy.sampling import CyclicSampler, DevicesSampler, FixedSizeSampler, PoissonSampler
from fedpriv.privacy.statement.verify import verify_run
from tests.harness.refusals import refuses
from tests.privacy.costing import EVERYBODY, POISSON, Costing, mechanism, through_json


class Median(Clip):
    """A bound of somebody's own."""


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """Files are read by a process that does not know it."""
    monkeypatch.delitem(Bound.kinds, "Median")


def plan(rest=None, **changes):
    return Plan(mechanism=mechanism(**changes), num_rounds=10, **(rest or {}))


STREAMS = (
    BinaryTree(num_rows=10, restart=5, completion=True),
    Banded(coefficients=(1.0, 0.5), num_rows=10),
    Buffered(outputs=(0.25,), decays=(0.5,), num_rows=10),
)


def stream(strategy):
    """Correlated noise, and a sampler that keeps its limit."""
    noise = Correlated(
        noise_multiplier=2.0,
        strategy=strategy,
        participation=Participation(most=2, min_separation=5),
    )
    kept = {"num_users": 400, "max_participations": 2}
    return {"privatizer": noise, "sampler": CyclicSampler(groups=5, mean=20, **kept)}


def of_everybody(*cost, **whole):
    return plan(sampler=EVERYBODY, privatizer=Costing(*cost, **whole))


OWN = {
    "pure": of_everybody("pure", 0.5),
    "zcdp": of_everybody("zcdp", 0.01),
    "whole run": of_everybody("gaussian", 2.0, whole_run=True),
    "own bound": plan(bound=Median(l2_clip_norm=0.5)),
    "own privatizer": plan(privatizer=Costing("gaussian", 2.0)),
    "examples": plan({"unit": "example"}, privatizer=Costing("gaussian", 2.0), micro_batch=4),
    "nonprivate": of_everybody("nonprivate"),
}


ORDINARY = {
    "clip": plan(),
    "clip, rounded": plan(bound=Rounded(bound=Clip(l2_clip_norm=0.5))),
    "normalise": plan(bound=Normalise(l2_clip_norm=0.5)),
    "normalise by 5": plan(bound=Normalise(l2_clip_norm=0.5, regulariser=5)),
    "normalise by 5, rounded": plan(
        bound=Rounded(bound=Normalise(l2_clip_norm=0.5, regulariser=5))
    ),
    "adaptive": plan(bound=AdaptiveClip(l2_clip_norm=0.5, least=0.1, most=2.0)),
    "adaptive, rounded": plan(
        bound=Rounded(bound=AdaptiveClip(l2_clip_norm=0.5, least=0.1, most=2.0))
    ),
    "capped": plan(sampler=PoissonSampler(num_users=400, expected_cohort_size=20, cap=40)),
    "fixed": plan({"relation": "replace-one"}, sampler=FixedSizeSampler(num_users=400, size=20)),
    "unprotected": plan(privatizer=Unprotected()),
    "unprotected noise": plan(privatizer=Unprotected(stddev=3)),
    "unbounded": plan(bound=Unbounded(), privatizer=Unprotected()),
    "devices": plan(sampler=DevicesSampler(draws=POISSON, devices=2)),
    "pure minimum": plan(
        sampler=EVERYBODY,
        bound=Capped(cap=1.0, num_coordinates=2),
        privatizer=NoisyMin(epsilon=0.5, offset=(0.0, 1.5)),
    ),
    "released once": plan(sampler=EVERYBODY, privatizer=OutputGaussian(noise_multiplier=2)),
    **{f"stream of {one.name}": plan({"relation": "zero-out"}, **stream(one)) for one in STREAMS},
}
every_kind = pytest.mark.parametrize("made", OWN.values(), ids=OWN)


@every_kind
def test_they_come_back_accountable(made):
    value = through_json(made.to_json())
    found = Plan.from_json(value)
    assert not found.mechanism.runs
    assert through_json(found.to_json()) == value
    assert Plan.from_json(value) == found
    for name in ("event", "num_users", "delta", "charged_once", "is_private", "budget"):
        assert getattr(found, name) == getattr(made, name), name
    assert found.total() == made.total()
    assert [found.epsilon(n) for n in (0, 1, 10)] == [made.epsilon(n) for n in (0, 1, 10)]
    assert found.warnings == made.warnings
    assert found.affordable_rounds == made.affordable_rounds


@every_kind
def test_nothing_is_run_from_a_file(made):
    found = Plan.from_json(through_json(made.to_json()))
    assert made.live_mechanism is made.mechanism
    with refuses(ValueError, found.mechanism.recorded.description):
        _ = found.live_mechanism


@pytest.mark.parametrize(("made", "known"), [(OWN["own privatizer"], False), (plan(), True)])
def test_a_cost_that_is_only_recorded_is_not_checked(made, known, tmp_path):
    with Ledger.create(tmp_path / "ledger.jsonl", made, mode="simulation") as ledger:
        ledger.charge(1, 1)
    found = verify_run(tmp_path)
    assert found.ok
    own = Plan.from_json(through_json(made.to_json())).mechanism.user_defined
    assert bool(own) != known
    assert any(own and own[0] in line for line in found.not_checked) != known


@every_kind
def test_no_object_is_named_to_be_imported(made):
    text = json.dumps(made.to_json())
    assert __name__ not in text and "fedpriv" not in text and "module" not in text


def test_calibration_is_for_gaussian_noise_that_can_be_built():
    found = Plan.from_json(OWN["own bound"].to_json())
    with refuses(ValueError, found.mechanism.recorded.description):
        found.calibrated(2.0)
    for made in (OWN["pure"], OWN["own privatizer"]):
        with refuses(ValueError, "target_epsilon"):
            made.calibrated(2.0)


@pytest.mark.parametrize("made", ORDINARY.values(), ids=ORDINARY)
def test_a_plan_of_known_kinds_comes_back_live(made):
    value = through_json(made.to_json())
    assert set(value) == set(OWN["pure"].to_json())
    assert set(value["mechanism"]) == set(OWN["pure"].to_json()["mechanism"])
    assert Plan.from_json(value).live_mechanism == made.mechanism


WRONG = {
    "event": Event(kind="poisson-gaussian", noise_multiplier=9.0, sampling_prob=0.05).to_json(),
    "after_crash": "replay", "noise": "laplace", "num_users": 4000,
    "expected_cohort_size": 2.0, "description": "harmless",
    "sampler": {"kind": "PoissonSampler", "num_users": 400, "expected_cohort_size": 40.0,
                "cap": None},
    "privatizer": {"kind": "Gaussian", "noise_multiplier": 9.0},
    "bound": {"kind": "Clip", "l2_clip_norm": 5.0},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_recorded_follows_from_the_parts(name):
    """An event that the noise does not have would be accounted in its place."""
    value = ORDINARY["clip"].to_json()
    record = value["mechanism"]["recorded"]
    (record if name in record else value["mechanism"])[name] = WRONG[name]
    with refuses(ValueError, record["description"]):
        Plan.from_json(value)


@pytest.mark.parametrize("part", ["sampler", "bound", "privatizer"])
def test_a_kind_that_is_not_known_is_accounted_and_not_run(part):
    value = ORDINARY["clip"].to_json()
    value["mechanism"][part] = {"kind": "Unheard", "number": 3.0}
    found = Plan.from_json(value)
    assert not found.mechanism.runs
    assert found.total() == ORDINARY["clip"].total() and found.to_json() == value


def test_a_digest_tells_mechanisms_apart():
    digests = {plan_digest(made, ["a"]) for made in ORDINARY.values()}
    assert len(digests) == len(ORDINARY)


def test_a_process_that_knows_a_kind_of_ones_own_makes_it_again(monkeypatch):
    monkeypatch.setitem(Bound.kinds, "Median", Median)
    made = OWN["own bound"]
    assert Plan.from_json(through_json(made.to_json())).live_mechanism == made.mechanism


def test_numbers_are_checked_as_in_a_plan_that_runs():
    value = OWN["examples"].to_json()
    with refuses(ValueError, "micro_batch", 4):
        Plan.from_json({**value, "unit": "user"})
    with refuses(ValueError, "delta"):
        Plan.from_json({**value, "delta": 0.0})
    fixed = Event(kind="fixed-size-gaussian", noise_multiplier=2.0, num_users=400, size=20)
    recorded = {**value["mechanism"]["recorded"], "event": fixed.to_json()}
    made = {**value["mechanism"], "recorded": recorded, "micro_batch": 1}
    with refuses(ValueError, "replace-one"):
        Plan.from_json({**value, "mechanism": made}).total()
