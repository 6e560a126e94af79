"""What a file says of a mechanism that is not of the ordinary kind: enough to account, no more."""

import json
import math

import pytest

from fedpriv.mechanisms import AdaptiveClip, Clip, Normalise, Rounded, Unbounded
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.privacy.event import Event
from fedpriv.privacy.mechanism import Mechanism, RecordedMechanism
from fedpriv.privacy.plan import Plan, cohort_plan, plan_digest
from fedpriv.privacy.sampling import Everybody, PoissonSampler
from tests.harness.refusals import refuses
from tests.privacy.costing import Costing
from tests.privacy.ledger.test_entries import through_json


class Median(Clip):
    """A bound of somebody's own, which options have no name for."""

    name = None


def mechanism(**changes):
    given = {
        "sampler": Everybody(num_users=400),
        "bound": Clip(l2_clip_norm=0.5),
        "privatizer": Costing("pure", 0.5),
    }
    return Mechanism(**{**given, **changes})


def plan(rest=None, **changes):
    return Plan(mechanism=mechanism(**changes), num_rounds=10, **(rest or {}))


OWN = {
    "pure": plan(),
    "zcdp": plan(privatizer=Costing("zcdp", 0.01)),
    "whole run": plan(privatizer=Costing("gaussian", 2.0, whole_run=True)),
    "own bound": plan(bound=Median(l2_clip_norm=0.5), privatizer=Gaussian(noise_multiplier=2.0)),
    "own privatizer": plan(
        sampler=PoissonSampler(num_users=400, expected_cohort_size=20),
        privatizer=Costing("gaussian", 2.0),
    ),
    "examples": plan(
        {"unit": "example"},
        sampler=PoissonSampler(num_users=400, expected_cohort_size=20),
        privatizer=Costing("gaussian", 2.0),
        micro_batch=4,
    ),
    "nonprivate": plan(privatizer=Costing("nonprivate")),
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
        with refuses(ValueError, found.mechanism.description):
            _ = found.live_mechanism

    @every_kind
    def test_no_object_is_named_to_be_imported(self, made):
        text = json.dumps(made.to_json())
        assert __name__ not in text and "fedpriv" not in text and "module" not in text

    def test_calibration_is_for_gaussian_noise_that_can_be_built(self):
        found = Plan.from_json(OWN["own bound"].to_json())
        for made in (found, OWN["pure"], OWN["own privatizer"]):
            with refuses(ValueError, "target_epsilon"):
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
        digests = {plan_digest(made, ["a"]) for made in ORDINARY.values()}
        assert len(digests) == len(ORDINARY)

    def test_bounds_that_numbers_do_not_determine_are_recorded(self):
        for bound in (
            Shorter(l2_clip_norm=0.5),
            AdaptiveClip(initial=0.5, least=0.1, most=2.0),
            Rounded(bound=AdaptiveClip(initial=0.5, least=0.1, most=2.0)),
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
            {"rounding": "each"},
            {"exact_sum": "all"},
            {"exact_sum": "true"},
            {"exact_sum": 1},
            {"exact_sum": None},
            {"exact_sum": {"float_error": 0.1}},
            {"unprotected_stddev": 1.0},
            {"noise": "none", "noise_multiplier": 0.0, "unprotected_stddev": -1.0},
            {"noise": "none", "noise_multiplier": 0.0, "unprotected_stddev": math.inf},
            {"bound": "none", "l2_bound": None, "noise": "none", "noise_multiplier": 0.0,
             "exact_sum": True},
        ],
        ids=str,
    )  # fmt: skip
    def test_hostile_numbers_are_refused(self, change):
        with pytest.raises(ValueError):
            Plan.from_json({**ORDINARY["clip"].to_json(), **change})


GOOD = OWN["examples"].to_json()["mechanism"]


class TestRecords:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *((name, ...) for name in GOOD),
            *(("name", value) for value in (3, None)),
            *(("whole_run", value) for value in (1, "false")),
            *(("num_users", value) for value in (0, 400.0, "400")),
            *(("micro_batch", value) for value in (0, True)),
            *(("expected_cohort_size", value) for value in (0, math.inf, "20")),
            *(("event", value) for value in (None, {}, {"kind": "pure", "epsilon": -1.0})),
            ("event", {"module_name": "subprocess", "class_name": "Popen", "args": ["true"]}),
            ("module_name", "os"),
        ],
    )
    def test_hostile_records_are_refused(self, name, value):
        record = {**GOOD, name: value}
        if value is ...:
            del record[name]
        self.refuse(record)

    @pytest.mark.parametrize("value", [None, [], "laplace", 3, {}], ids=str)
    def test_what_is_no_record_at_all_is_refused(self, value):
        self.refuse(value)

    def refuse(self, record):
        whole = {**OWN["examples"].to_json(), "mechanism": record}
        for reader, given in ((RecordedMechanism, record), (Plan, whole)):
            with pytest.raises(ValueError):
                reader.from_json(given)

    def test_a_plan_has_a_record_or_flat_numbers_and_not_both(self):
        value = OWN["pure"].to_json()
        for odd in ({**value, "num_users": 400}, {**value, "l2_bound": 0.5}):
            with refuses(ValueError, *odd.keys() - value.keys()):
                Plan.from_json(odd)

    def test_numbers_are_checked_as_in_a_plan_that_runs(self):
        value = OWN["examples"].to_json()
        with refuses(ValueError, "micro_batch", 4):
            Plan.from_json({**value, "unit": "user"})
        with refuses(ValueError, "delta"):
            Plan.from_json({**value, "delta": 0.0})
        fixed = Event(kind="fixed-size-gaussian", noise_multiplier=2.0, num_users=400, size=20)
        record = {**value["mechanism"], "event": fixed.to_json(), "micro_batch": 1}
        with refuses(ValueError, "replace-one"):
            Plan.from_json({**value, "mechanism": record}).total()
