"""Events: only whitelisted kinds, only built-in numbers."""

import json
import subprocess

import numpy as np
import pytest

from fedpriv.privacy.accounting import epsilon
from fedpriv.privacy.epsilon import default_delta
from fedpriv.privacy.event import NONPRIVATE, Event, Relation, cohort_event
from tests.repeats import every_case

GOOD = [
    {"kind": "gaussian", "noise_multiplier": 2.0},
    {"kind": "poisson-gaussian", "noise_multiplier": 1.0, "sampling_prob": 0.05},
    {
        "kind": "truncated-poisson-gaussian",
        "noise_multiplier": 1.0,
        "sampling_prob": 0.05,
        "num_users": 400,
        "cap": 40,
    },
    {"kind": "fixed-size-gaussian", "noise_multiplier": 1.0, "num_users": 400, "size": 20},
    {"kind": "objective-gaussian", "noise_multiplier": 3.0, "shift": 0.02},
    {"kind": "pure", "epsilon": 0.5},
    {"kind": "zcdp", "rho": 0.125},
    {"kind": "nonprivate"},
]


@every_case("value", GOOD, ids=lambda value: value["kind"])
def test_json_comes_back(value):
    event = Event.from_json(json.loads(json.dumps(value)))
    assert event.to_json() == value
    assert Event.from_json(event.to_json()) == event


@every_case(
    "value",
    [
        None,
        [],
        "gaussian",
        {},
        {"kind": "laplace", "noise_multiplier": 1.0},
        {"kind": ["gaussian"], "noise_multiplier": 1.0},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": 1.0, "sampling_prob": 0.5},
        {"kind": "gaussian", "noise_multiplier": "1.0"},
        {"kind": "gaussian", "noise_multiplier": None},
        {"kind": "gaussian", "noise_multiplier": True},
        {"kind": "poisson-gaussian", "noise_multiplier": 1.0},
        {"kind": "poisson-gaussian", "noise_multiplier": 1.0, "sampling_prob": 1.5},
        {"kind": "fixed-size-gaussian", "noise_multiplier": 1.0, "num_users": 400, "size": 401},
        {"kind": "fixed-size-gaussian", "noise_multiplier": 1.0, "num_users": 400.0, "size": 20},
        {"kind": "gaussian", "noise_multiplier": 1.0, "module_name": "os"},
        {"kind": "pure"},
        {"kind": "pure", "epsilon": 0.0},
        {"kind": "pure", "epsilon": -0.5},
        {"kind": "pure", "epsilon": float("inf")},
        {"kind": "pure", "epsilon": float("nan")},
        {"kind": "pure", "epsilon": True},
        {"kind": "pure", "epsilon": 0.5, "rho": 0.125},
        {"kind": "objective-gaussian", "noise_multiplier": 3.0},
        {"kind": "objective-gaussian", "noise_multiplier": 3.0, "shift": 0.0},
        {"kind": "objective-gaussian", "noise_multiplier": 3.0, "shift": "0.1"},
        {"kind": "gaussian", "noise_multiplier": 3.0, "shift": 0.02},
        {"kind": "pure", "rho": 0.125},
        {"kind": "zcdp", "rho": "0.125"},
        {"kind": "zcdp", "rho": 0.0},
        {"kind": "zcdp", "epsilon": 0.5},
        {"kind": "nonprivate", "epsilon": 0.5},
        {"kind": "nonprivate", "noise_multiplier": None},
        {"module_name": "subprocess", "class_name": "Popen", "args": ["true"]},
    ],
    ids=repr,
)
def test_forged_json_is_refused(value, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("it was executed"))
    with pytest.raises(ValueError):
        Event.from_json(value)


@every_case("sigma", [1, np.float32(1.0), np.float64(1.0), np.int64(1)], ids=repr)
def test_numbers_of_any_type_become_built_in_floats(sigma):
    event = cohort_event(
        num_users=np.int64(400), expected_cohort_size=np.float32(20), noise_multiplier=sigma
    )
    for number in (event.noise_multiplier, event.sampling_prob):
        assert type(number) is float
    for relation in Relation:
        for accountant in ("PLD", "RDP"):
            inner = event.to_dp_event(relation, accountant=accountant).event
            assert type(inner.noise_multiplier) is float
    plain = cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=1.0)
    assert event == plain
    got = epsilon(event, 100, delta=1 / 400, relation="add-remove")
    assert got.value == pytest.approx(1.9059, abs=5e-5)
    assert got.rdp == pytest.approx(2.3890, abs=5e-5)


def test_what_a_kind_is():
    kinds = {value["kind"]: Event.from_json(value) for value in GOOD}
    assert {kind for kind, event in kinds.items() if not event.is_private} == {"nonprivate"}
    assert {kind for kind, event in kinds.items() if event.is_sampled} == {
        "poisson-gaussian",
        "truncated-poisson-gaussian",
        "fixed-size-gaussian",
    }
    for kind, event in kinds.items():
        if kind in ("pure", "zcdp", "nonprivate"):
            with pytest.raises(ValueError, match=f"a {kind} event has no noise multiplier"):
                _ = event.sigma
        else:
            assert event.sigma == event.noise_multiplier
    assert kinds["nonprivate"] == NONPRIVATE and len(set(kinds.values())) == len(GOOD)


def test_only_rdp_under_replace_one_gets_half_the_noise():
    event = Event(kind="fixed-size-gaussian", noise_multiplier=3.0, num_users=400, size=20)

    def sigma(relation, accountant):
        return event.to_dp_event(relation, accountant=accountant).event.noise_multiplier

    assert sigma(Relation.REPLACE_ONE, "RDP") == 1.5
    assert sigma(Relation.REPLACE_ONE, "PLD") == 3.0
    assert sigma(Relation.ADD_REMOVE, "RDP") == 3.0


def test_default_delta():
    assert default_delta(400) == pytest.approx(400**-1.1)
    assert default_delta(4000) < 1 / 4000
    with pytest.raises(ValueError, match="delta"):
        default_delta(1)
