"""Samplers and noise of one's own: what is refused of them, and what is said of the rest."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedpriv.mechanisms import Clip, Rounded
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.parts import PositiveInt, UnknownKindError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import FilterPlan, Plan
from fedpriv.privacy.sampling import DevicesSampler, Everybody, PoissonSampler, Sampler
from fedpriv.privacy.statement.sealed import ASKED, user_defined_of
from fedpriv.privacy.statement.statement import privacy_statement, run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.runs.noise_root import training_digest
from tests.harness.refusals import refuses

ROSTER = tuple(f"u{n}" for n in range(6))


@dataclass(frozen=True, slots=True, kw_only=True)
class These(Sampler):
    """Draws the positions that it is told."""

    num_users: PositiveInt
    drawn: tuple[int, ...]

    @property
    def expected_cohort_size(self):
        return 2.0

    def event(self, noise):
        return noise.event

    def positions(self, memory, key):
        return np.array(self.drawn, np.int64), memory


@dataclass(frozen=True, slots=True, kw_only=True)
class SaysWhole(Privatizer):
    """Has `on_grid`, and draws floats all the same, or whole numbers."""

    whole: bool
    name = "says whole"
    on_grid = True

    @property
    def event(self):
        return Event(kind="gaussian", noise_multiplier=2.0)

    def draws(self, *, template, sensitivity, key, granularity=None):
        kind = np.int64 if self.whole else np.float32
        yield {name: np.ones(array.shape, kind) for name, array in template.items()}


def mechanism(**parts):
    own = {"sampler": Everybody(num_users=6), "bound": Clip(l2_clip_norm=1.0),
           "privatizer": Gaussian(noise_multiplier=1.0)}  # fmt: skip
    return Mechanism(**{**own, **parts})


@pytest.mark.parametrize("drawn", [(0, 0), (2, 1), (-1, 2), (1, 6), (-1,), (6,)])
def test_a_cohort_of_other_than_ascending_positions_is_refused(drawn):
    """A user who is in a sum twice moves it by two bounds, at the price of one."""
    with refuses(ValueError, "These", str(len(ROSTER))):
        These(num_users=6, drawn=drawn).cohort(Key.simulation(0), ROSTER)


@pytest.mark.parametrize("drawn", [(), (0,), (0, 5), (0, 1, 2, 3, 4, 5)])
def test_any_ascending_positions_are_a_cohort(drawn):
    cohort = These(num_users=6, drawn=drawn).cohort(Key.simulation(0), ROSTER)
    assert cohort == tuple(ROSTER[place] for place in drawn)


@pytest.mark.parametrize("base", [PoissonSampler, Everybody])
def test_another_way_to_draw_does_not_keep_the_price_of_its_base(base):
    with refuses(TypeError, "Fewer", "positions", "event"):

        class Fewer(base):
            def positions(self, memory, key):
                return np.arange(2), memory


def test_a_price_is_not_inherited_past_a_mixin_or_an_abstract_class():
    class Silent:
        def draws(self, *, template, sensitivity, key):
            yield {name: np.zeros(array.shape, np.float32) for name, array in template.items()}

    with refuses(TypeError, "Quiet", "draws", "event"):
        type("Quiet", (Silent, Gaussian), {})

    class Rarer:
        sampling_prob = 1e-4

    with refuses(TypeError, "Seldom", "sampling_prob", "event"):
        type("Seldom", (Rarer, PoissonSampler), {})


def test_devices_are_priced_for_poisson_sampling_alone():
    class Always(PoissonSampler):
        def positions(self, memory, key):
            return np.arange(self.num_users), memory

        def event(self, noise):
            return noise.event

    drawn = Always(num_users=100, expected_cohort_size=1)
    with refuses(ValueError, "devices", "Always"):
        DevicesSampler(draws=drawn, devices=2)


@pytest.mark.parametrize("name", ["draws", "release"])
def test_other_noise_does_not_keep_the_price_of_its_base(name):
    with refuses(TypeError, "Less", name, "event"):
        type("Less", (Gaussian,), {name: lambda self, *rest, **named: None})

    class _Same(Gaussian):
        pass  # draws and costs what its base does


@pytest.mark.parametrize("whole", [False, True])
def test_noise_that_says_it_is_whole_is(whole):
    made = mechanism(bound=Rounded(bound=Clip(l2_clip_norm=1.0)), privatizer=SaysWhole(whole=whole))
    assert made.is_exact
    template = {"w": np.zeros(2, np.float32)}
    if whole:
        made.draw(template, Key.secure())
    else:
        with refuses(ValueError, "says whole", "float32", "'w'"):
            made.draw(template, Key.secure())


OWN = {
    "nothing": ({}, ()),
    "noise": ({"privatizer": SaysWhole(whole=True)}, ("noise SaysWhole",)),
    "sampler": ({"sampler": These(num_users=6, drawn=(1,))}, ("sampler These",)),
}


@pytest.mark.parametrize(("parts", "named"), OWN.values(), ids=OWN)
def test_statement_and_verification_name_user_defined_parts(tmp_path, parts, named):
    plan = Plan(mechanism=mechanism(**parts), num_rounds=3, delta=0.1)
    assert plan.mechanism.user_defined == named
    extra = {"hardened": True}
    with Ledger.create(tmp_path / "ledger.jsonl", plan, mode="secure", extra=extra) as ledger:
        ledger.charge(1, 1)
    said = " ".join(str(run_statement(tmp_path)).split())
    left = " ".join(verify_run(tmp_path).not_checked)
    for text in (said, left):
        assert all(name in text for name in named)
    assert ("Parts of the mechanism are user-defined" in said) == bool(named)
    assert ("a rounding of what the Gaussian mechanism answers" in said) != bool(named)


def test_what_requests_bring_is_named_too():
    """Of a run that decides its prices on the way no mechanism is in the plan."""
    plan, own = FilterPlan(num_users=6, rho=1.0, delta=0.1), ["noise SaysWhole"]
    assert user_defined_of(plan, {}) == () and user_defined_of(plan, {ASKED: own}) == tuple(own)
    document = {"mode": "secure", "hardened": True, "plan": plan.to_json()}
    for more, named in (({}, False), ({ASKED: own}, True)):
        said = str(privacy_statement(plan, {**document, **more}, num_charges=1))
        assert ("SaysWhole" in said) == named


def test_a_kind_of_event_that_is_not_known_is_named():
    with refuses(UnknownKindError, "'of-another-file'"):
        Event.from_json({"kind": "of-another-file", "epsilon": 0.5})


def test_what_is_inside_a_part_counts():
    made = mechanism(bound=Rounded(bound=replace(Clip(l2_clip_norm=1.0))))
    assert made.user_defined == ()


class Hidden(Gaussian):
    """Keeps a number that is none of its fields."""

    def __init__(self, noise_multiplier, extra):
        Gaussian.__init__(self, noise_multiplier=noise_multiplier)
        object.__setattr__(self, "extra", extra)


def test_a_class_that_holds_more_than_its_fields_is_not_written():
    with refuses(ValueError, "not written"):
        Hidden(2.0, 5.0).to_json()
    with pytest.raises(UnknownKindError):
        Privatizer.from_json({"kind": "Hidden", "noise_multiplier": 2.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled(Privatizer):
    """Gaussian noise whose multiplier its code decides."""

    scale: float
    name = "scaled"
    factor = 1.0

    @property
    def event(self):
        return Event(kind="gaussian", noise_multiplier=self.scale * type(self).factor)

    def draws(self, *, template, sensitivity, key):
        yield {}


def test_code_that_changes_the_price_changes_the_noise_of_a_simulation(monkeypatch):
    """Two noises under one key would differ by a multiple, and give the sum away."""

    def digest():
        plan = Plan(mechanism=mechanism(privatizer=Scaled(scale=1.0)), num_rounds=3, delta=0.1)
        return training_digest(plan, ROSTER, {}, data={"all": "0" * 64})

    first = digest()
    assert digest() == first
    monkeypatch.setattr(Scaled, "factor", 2.0)
    assert digest() != first


@pytest.mark.parametrize(
    ("name", "value"),
    [("event", {"kind": "gaussian", "noise_multiplier": 50.0}), ("num_users", 600),
     ("expected_cohort_size", 3.0), ("noise", "laplace"), ("after_crash", "discard")],
)  # fmt: skip
def test_a_record_that_the_known_parts_contradict_is_refused(name, value):
    """Of a bound that is not known here, the event follows from the other two all the same."""
    written = Plan(mechanism=mechanism(), num_rounds=3, delta=0.1).to_json()
    written["mechanism"]["bound"] = {"kind": "MyBound"}
    assert Plan.from_json(written).total().value > 1.0
    written["mechanism"]["recorded"][name] = value
    with refuses(ValueError, name):
        Plan.from_json(written)


@pytest.mark.parametrize("part", ["sampler", "bound", "privatizer"])
def test_what_names_no_kind_is_no_part(part):
    written = Plan(mechanism=mechanism(), num_rounds=3, delta=0.1).to_json()
    written["mechanism"][part] = {}
    with pytest.raises(ValueError):
        Plan.from_json(written)


def test_an_unknown_noise_has_the_multiplier_that_is_recorded():
    written = Plan(mechanism=mechanism(), num_rounds=3, delta=0.1).to_json()
    written["mechanism"]["privatizer"] = {"kind": "Elsewhere"}
    found = Plan.from_json(written).mechanism
    assert (found.noise_multiplier, found.stddev) == (1.0, 1.0)


def test_a_price_of_every_row_is_not_one_of_a_whole_run():
    with refuses(TypeError, "Once", "after_crash", "event"):

        class Once(Gaussian):
            after_crash = "discard"
