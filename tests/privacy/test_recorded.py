"""What a file says of a mechanism that is not of the ordinary kind: enough to account, no more."""

import json
import math

import numpy as np
import pytest

from fedpriv.mechanisms import Clip, Rounded
from fedpriv.mechanisms.bounds import Normalise, Preconditioned, RoundedSum, Unbounded
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.privatizer import Cost, Privatizer
from fedpriv.privacy.event import Event
from fedpriv.privacy.mechanism import Mechanism, RecordedMechanism
from fedpriv.privacy.plan import Plan, cohort_plan, plan_digest
from fedpriv.privacy.sampling import Everybody, PoissonSampler


class Laplace(Privatizer):
    """A privatizer of somebody's own."""

    name = "laplace"
    cost = None  # of each its own

    def __init__(self, kind="pure", value=0.5, whole_run=False):
        self.cost = Cost(kind=kind, value=value, whole_run=whole_run)


class Median(Clip):
    """A bound of somebody's own, which options have no name for."""

    name = None


def mechanism(**changes):
    given = {
        "sampler": Everybody(num_users=400),
        "bound": Clip(l2_clip_norm=0.5),
        "privatizer": Laplace(),
    }
    return Mechanism(**{**given, **changes})


def plan(rest=None, **changes):
    return Plan(mechanism=mechanism(**changes), num_rounds=10, **(rest or {}))


def through_json(value):
    return json.loads(json.dumps(value, allow_nan=False))


OWN = {
    "pure": plan(),
    "zcdp": plan(privatizer=Laplace("zcdp", 0.01)),
    "whole run": plan(privatizer=Laplace("gaussian", 2.0, whole_run=True)),
    "own bound": plan(bound=Median(l2_clip_norm=0.5), privatizer=Gaussian(noise_multiplier=2.0)),
    "own privatizer": plan(
        sampler=PoissonSampler(num_users=400, expected_cohort_size=20),
        privatizer=Laplace("gaussian", 2.0),
    ),
    "examples": plan(
        {"unit": "example"},
        sampler=PoissonSampler(num_users=400, expected_cohort_size=20),
        privatizer=Laplace("gaussian", 2.0),
        micro_batch=4,
    ),
    "nonprivate": plan(privatizer=Laplace("nonprivate", 0.0)),
}

POISSON = PoissonSampler(num_users=400, expected_cohort_size=20)


class Shorter(Clip):
    """A bound of somebody's own, which has kept the name."""


def ordinary(bound=None, privatizer=None):
    bound = Clip(l2_clip_norm=0.5) if bound is None else bound
    privatizer = Gaussian(noise_multiplier=2.0) if privatizer is None else privatizer
    return plan(sampler=POISSON, bound=bound, privatizer=privatizer)


ORDINARY = {
    "clip": ordinary(),
    "clip, rounded": ordinary(Rounded(bound=Clip(l2_clip_norm=0.5))),
    "clip, sum rounded": ordinary(RoundedSum(bound=Clip(l2_clip_norm=0.5), float_error=1e-9)),
    "clip, mixed sum rounded": ordinary(
        RoundedSum(bound=Clip(l2_clip_norm=0.5), float_error=1e-9, mixed_error=1e-8)
    ),
    "normalise": ordinary(Normalise(l2_clip_norm=0.5)),
    "normalise by 5": ordinary(Normalise(l2_clip_norm=0.5, regulariser=5)),
    "normalise by 5, rounded": ordinary(Rounded(bound=Normalise(l2_clip_norm=0.5, regulariser=5))),
    "unprotected": ordinary(privatizer=Unprotected()),
    "unprotected noise": ordinary(privatizer=Unprotected(stddev=3)),
    "unbounded": ordinary(Unbounded(), Unprotected()),
}
every_kind = pytest.mark.parametrize("made", OWN.values(), ids=OWN)


class TestPlansOfOnesOwn:
    @every_kind
    def test_they_come_back_accountable(self, made):
        value = through_json(made.to_json())
        found = Plan.from_json(value)
        assert isinstance(found.mechanism, RecordedMechanism)
        assert through_json(found.to_json()) == value
        assert Plan.from_json(value) == found
        for name in ("event", "num_users", "delta", "charged_once", "is_private", "budget"):
            assert getattr(found, name) == getattr(made, name), name
        assert found.total() == made.total()
        assert [found.epsilon(n) for n in (0, 1, 10)] == [made.epsilon(n) for n in (0, 1, 10)]
        assert found.warnings == made.warnings
        assert found.affordable_rounds == made.affordable_rounds

    @every_kind
    def test_nothing_is_run_from_a_file(self, made):
        found = Plan.from_json(through_json(made.to_json()))
        assert made.live_mechanism is made.mechanism
        with pytest.raises(ValueError, match=r"only records its mechanism .* build it again"):
            _ = found.live_mechanism

    @every_kind
    def test_no_object_is_named_to_be_imported(self, made):
        text = json.dumps(made.to_json())
        assert __name__ not in text and "fedpriv" not in text and "module" not in text

    def test_calibration_is_for_gaussian_noise_that_can_be_built(self):
        found = Plan.from_json(OWN["own bound"].to_json())
        for made in (found, OWN["pure"], OWN["own privatizer"]):
            with pytest.raises(ValueError, match="calibrates Gaussian noise only"):
                made.calibrated(2.0)

    def test_a_plan_of_the_ordinary_kind_stays_flat_and_comes_back_live(self):
        """As ledgers and run folders have always had it."""
        ordinary = cohort_plan(
            num_users=400, expected_cohort_size=20, num_rounds=10, bound="clip", l2_bound=0.5,
            noise="gaussian", noise_multiplier=2.0,
        )  # fmt: skip
        names = set(ordinary.to_json())
        assert "mechanism" not in names and {"num_users", "l2_bound", "noise_multiplier"} <= names
        for made in ORDINARY.values():
            found = Plan.from_json(through_json(made.to_json()))
            assert set(made.to_json()) == names
            assert found == made and found.live_mechanism == made.mechanism
            assert through_json(found.to_json()) == through_json(made.to_json())

    def test_a_digest_tells_mechanisms_apart(self):
        """Red before: equal for other regularisers, for Clip and Rounded(Clip), for other noise."""
        digests = {plan_digest(made, ["a"]) for made in ORDINARY.values()}
        assert len(digests) == len(ORDINARY)

    def test_bounds_that_numbers_do_not_determine_are_recorded(self):
        """Red before: they came back as a plain clip, which ran."""
        for bound in (
            Shorter(l2_clip_norm=0.5),
            Preconditioned(multiplier={"w": np.ones(2)}, bound=Clip(l2_clip_norm=0.5)),
        ):
            made = plan(sampler=POISSON, bound=bound, privatizer=Gaussian(noise_multiplier=2.0))
            found = Plan.from_json(through_json(made.to_json()))
            assert isinstance(found.mechanism, RecordedMechanism)
            assert found.total() == made.total()

    @pytest.mark.parametrize(
        "change",
        [
            {"regulariser": 0.1},
            {"bound": "normalise", "regulariser": -1.0},
            {"bound": "normalise", "regulariser": None},
            {"rounding": "all"},
            {"rounding": True},
            {"rounding": {"float_error": 0.1}},
            {"rounding": {"float_error": -0.1, "mixed_error": None}},
            {"rounding": {"float_error": "0", "mixed_error": None}},
            {"unprotected_stddev": 1.0},
            {"noise": "none", "noise_multiplier": 0.0, "unprotected_stddev": -1.0},
            {"noise": "none", "noise_multiplier": 0.0, "unprotected_stddev": math.inf},
            {"bound": "none", "l2_bound": None, "noise": "none", "noise_multiplier": 0.0,
             "rounding": "each"},
        ],
        ids=str,
    )  # fmt: skip
    def test_hostile_numbers_are_refused(self, change):
        with pytest.raises(ValueError):
            Plan.from_json({**ORDINARY["clip"].to_json(), **change})


GOOD = OWN["examples"].to_json()["mechanism"]


class TestRecords:
    def test_hostile_records_are_refused(self, subtests):
        for change in [
            *({name: ...} for name in GOOD),
            {"module_name": "os"},
            {"name": 3},
            {"name": None},
            {"whole_run": 1},
            {"whole_run": "false"},
            {"num_users": 0},
            {"num_users": 400.0},
            {"num_users": "400"},
            {"micro_batch": 0},
            {"micro_batch": True},
            {"expected_cohort_size": 0},
            {"expected_cohort_size": math.inf},
            {"expected_cohort_size": "20"},
            {"event": None},
            {"event": {}},
            {"event": {"kind": "laplace"}},
            {"event": {"kind": "pure", "epsilon": -1.0}},
            {"event": {"module_name": "subprocess", "class_name": "Popen", "args": ["true"]}},
        ]:
            with subtests.test(change=change):
                value = {n: v for n, v in {**GOOD, **change}.items() if v is not ...}
                whole = {**OWN["examples"].to_json(), "mechanism": value}
                for reader, given in ((RecordedMechanism, value), (Plan, whole)):
                    with pytest.raises(ValueError):
                        reader.from_json(given)

    @pytest.mark.parametrize("value", [None, [], "laplace", 3, {}], ids=str)
    def test_what_is_no_record_at_all_is_refused(self, value):
        whole = {**OWN["pure"].to_json(), "mechanism": value}
        for read in (lambda: RecordedMechanism.from_json(value), lambda: Plan.from_json(whole)):
            with pytest.raises(ValueError):
                read()

    def test_a_plan_has_a_record_or_flat_numbers_and_not_both(self):
        value = OWN["pure"].to_json()
        for odd in ({**value, "num_users": 400}, {**value, "l2_bound": 0.5}):
            with pytest.raises(ValueError, match="do not match"):
                Plan.from_json(odd)

    def test_numbers_are_checked_as_in_a_plan_that_runs(self):
        value = OWN["examples"].to_json()
        with pytest.raises(ValueError, match="is for examples"):
            Plan.from_json({**value, "unit": "user"})
        with pytest.raises(ValueError, match="delta"):
            Plan.from_json({**value, "delta": 0.0})
        fixed = Event(kind="fixed-size-gaussian", noise_multiplier=2.0, num_users=400, size=20)
        record = {**value["mechanism"], "event": fixed.to_json(), "micro_batch": 1}
        with pytest.raises(ValueError, match="replace-one"):
            Plan.from_json({**value, "mechanism": record}).total()
