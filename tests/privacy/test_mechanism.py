"""Mechanisms: everything about an answer is derived from the objects that make it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.mechanisms import Clip, Normalise, Rounded, Unbounded
from fedpriv.mechanisms.event import NONPRIVATE, Event
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected, gaussian
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody, FixedSizeSampler
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from tests.harness.refusals import refuses
from tests.privacy.costing import EVERYBODY, POISSON, Costing, mechanism

PARAMS = {"w": np.zeros((30, 20), np.float32), "b": np.zeros(20, np.float32)}
KEY = Key.simulation(4).fold("noise")


class TestDerived:
    @pytest.mark.parametrize("norm", [0.01, 0.5, 30.0])
    @pytest.mark.parametrize("sigma", [0.3, 1.0, 8.0])
    def test_noise_follows_the_bound_and_the_multiplier(self, norm, sigma):
        for bound in (Clip(l2_clip_norm=norm), Normalise(l2_clip_norm=norm, regulariser=0.1)):
            made = mechanism(bound=bound, privatizer=Gaussian(noise_multiplier=sigma))
            assert (made.l2_bound, made.sensitivity, made.noise_multiplier) == (norm, norm, sigma)
            assert made.stddev == sigma * norm
            rounded = replace(made, bound=Rounded(bound=bound))
            assert (rounded.stddev, rounded.event) == (made.stddev, made.event)

    @pytest.mark.parametrize(
        ("sampler", "kind", "denominator"),
        [
            (POISSON, "poisson-gaussian", 20.0),
            (replace(POISSON, expected_cohort_size=2.5), "poisson-gaussian", 2.5),
            (replace(POISSON, cap=60), "truncated-poisson-gaussian", 20.0),
            (FixedSizeSampler(num_users=400, size=20), "fixed-size-gaussian", 20.0),
            (replace(POISSON, expected_cohort_size=400), "gaussian", 400.0),
            (EVERYBODY, "gaussian", 400.0),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )
    def test_event_and_denominator_follow_the_sampler(self, sampler, kind, denominator):
        made = mechanism(sampler=sampler)
        assert (made.event.kind, made.event.noise_multiplier) == (kind, 2.0)
        assert (made.num_users, made.denominator) == (400, denominator)
        assert made.expected_cohort_size == sampler.expected_cohort_size == denominator
        assert made.is_private

    def test_a_micro_batch_doubles_the_sensitivity_and_divides_the_denominator(self):
        for size in (2, 4, 20):
            made = mechanism(micro_batch=size)
            assert (made.l2_bound, made.sensitivity, made.stddev) == (0.5, 1.0, 2.0)
            assert (made.denominator, made.event) == (20 / size, mechanism().event)
        assert mechanism(micro_batch=1) == mechanism()
        assert type(mechanism(micro_batch=np.int64(4)).micro_batch) is int

    def test_other_costs_are_their_own_events(self):
        for kind, event in (
            ("pure", Event(kind="pure", epsilon=0.5)),
            ("zcdp", Event(kind="zcdp", rho=0.5)),
        ):
            made = mechanism(sampler=EVERYBODY, privatizer=Costing(kind, 0.5))
            assert (made.event, made.noise_multiplier, made.stddev) == (event, 0.0, 0.0)
            assert made.is_private and made.sensitivity == 0.5

    def test_without_noise_or_without_a_bound_nothing_is_promised(self):
        for bound in (Unbounded(), Clip(l2_clip_norm=0.5)):
            made = mechanism(bound=bound, privatizer=Unprotected())
            assert (made.event, made.is_private, made.stddev) == (NONPRIVATE, False, 0.0)
        open_ = mechanism(bound=Unbounded(), privatizer=Unprotected())
        assert (open_.l2_bound, open_.sensitivity) == (math.inf, 0.0)
        # Noise that is added for comparison only buys nothing.
        shown = mechanism(privatizer=Unprotected(stddev=7.0))
        assert (shown.event, shown.noise_multiplier, shown.stddev) == (NONPRIVATE, 0.0, 0.0)
        assert drawn(shown)["w"].std() == pytest.approx(7.0, rel=0.15)  # of 600 normals


def drawn(mechanism, key=KEY):
    """What is drawn for a sum of the params' shapes."""
    return mechanism.draw(PARAMS, key).take(PartialSum(total=PARAMS, num_users=0), mechanism)


class TestAnswers:
    def test_what_is_released_is_the_noised_sum_over_the_denominator(self):
        made = mechanism(micro_batch=4)
        total = {name: np.full(tensor.shape, 3.0) for name, tensor in PARAMS.items()}
        noise = gaussian(KEY, PARAMS, 2.0)
        for num_users in (0, 20, 10**6):  # neither the users drawn nor those that failed count
            answer = made.release(
                PartialSum(total=total, num_users=num_users, num_failed=num_users, l2_bound=0.5),
                made.draw(PARAMS, KEY),
            )
            for name in PARAMS:
                np.testing.assert_allclose(answer[name], (3.0 + noise[name]) / 5, rtol=1e-6)

    def test_a_stream_of_rows_is_drawn_by_a_run_alone(self):
        privatizer = Costing("gaussian", 2.0, whole_run=True)
        made = mechanism(sampler=EVERYBODY, privatizer=privatizer)
        with refuses(ValueError, "written down"):
            made.draw(PARAMS, KEY)

    def test_the_privatizer_has_the_last_word(self):
        made = mechanism(sampler=Everybody(num_users=2), privatizer=Costing("pure", 0.5))
        assert drawn(made) == 0.5  # the sensitivity it was given
        total = PartialSum(total={"w": np.full((2, 2), 3.0)}, num_users=2, l2_bound=0.5)
        assert made.release(total, made.draw(PARAMS, KEY)) == 6.0


NINE = Everybody(num_users=9)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"bound": Unbounded()}, ["gaussian"]),
        ({"privatizer": Gaussian(noise_multiplier=1e-3)}, ["noise_multiplier", 0.001]),
        ({"bound": Clip(l2_clip_norm=1e31)}, ["2e+31"]),
        ({"privatizer": Costing("pure", 0.5)}, ["pure"]),
        ({"privatizer": Costing("zcdp", 0.5)}, ["zcdp"]),
        (
            {
                "sampler": FixedSizeSampler(num_users=400, size=20),
                "privatizer": Costing("pure", 0.5),
            },
            ["pure"],
        ),
        ({"privatizer": Costing("gaussian", 2.0, whole_run=True)}, []),
        (
            {"sampler": NINE, "bound": Unbounded(), "privatizer": Costing("pure", 0.5)},
            ["written down"],
        ),
        ({"sampler": NINE, "privatizer": Costing("pure", 0.0)}, ["epsilon", 0.0]),
        ({"sampler": NINE, "privatizer": Costing("zcdp", -1.0)}, ["rho", -1.0]),
    ],
)
def test_parts_that_do_not_fit(changes, named):
    with refuses(ValueError, *named):
        mechanism(**changes)


def test_a_plan_with_another_mechanism_has_its_epsilon():
    """What runs and what is accounted are one object."""
    first = Plan(mechanism=mechanism(), num_rounds=10, delta=1e-4)
    for changes, cheaper in (
        ({"privatizer": Gaussian(noise_multiplier=4.0)}, True),
        ({"privatizer": Gaussian(noise_multiplier=1.0)}, False),
        ({"sampler": replace(POISSON, expected_cohort_size=10)}, True),
        ({"sampler": EVERYBODY}, False),
    ):
        other = replace(first, mechanism=replace(first.live_mechanism, **changes))
        assert other.event == other.live_mechanism.event != first.event
        assert (other.total().value < first.total().value) == cheaper, changes
        assert other != first


@pytest.mark.parametrize("other", [np.random.default_rng(0), np.random, 7, None])
def test_generators_and_seeds_draw_no_noise(other):
    with refuses(TypeError, type(other).__name__):
        mechanism().draw(PARAMS, other)


class OnGrid(Costing):
    """Returns what it was asked with."""

    on_grid = True
    event = Costing.event

    def draws(self, *, template, sensitivity, key, granularity=None):
        yield template, sensitivity, key, granularity


@pytest.mark.parametrize("mode", ["simulation", "secure"])
@pytest.mark.parametrize("whole", [False, True])
def test_secure_noise_is_drawn_on_the_grid_wherever_there_is_one(mode, whole):
    key = KEY if mode == "simulation" else Key.secure()
    bound = Clip(l2_clip_norm=0.5)
    bound = Rounded(bound=bound) if whole else bound
    made = mechanism(bound=bound, privatizer=OnGrid("gaussian", 2.0))
    found = drawn(made, key)
    grid = made.bound.granularity if mode == "secure" else None
    assert found == (PARAMS, made.sensitivity, key, grid)


def test_a_round_may_not_let_through_more_than_noise_is_for():
    """A wider bound than the mechanism's would be noised for less, and ε stay what it was."""
    made, template = mechanism(bound=Clip(l2_clip_norm=1.0)), {"w": np.zeros(2, np.float32)}

    def released(norm):
        total = PartialSum(total={"w": np.ones(2)}, num_users=1, l2_bound=norm)
        return made.release(total, made.draw(template, Key.simulation(0)))

    for norm in (0.5, 1.0, 1.0 + 5e-13):  # what rounding of one product may add
        assert released(norm)["w"].shape == (2,)
    for norm in (1.0 + 1e-11, 2.0, np.inf, np.nan):
        with refuses(ValueError, norm, 1.0):
            released(norm)


def test_a_sum_on_another_grid_than_the_bounds_is_refused():
    """Noise in steps of one grid would be of another size on the other."""
    made, template = mechanism(bound=Rounded(bound=Clip(l2_clip_norm=1.0))), {"w": np.zeros(2)}
    grid, draw = made.bound.granularity, made.draw(template, Key.secure())
    total = PartialSum(
        total={"w": np.ones(2, np.int64)}, num_users=1, l2_bound=1.0, granularity=2 * grid
    )
    with refuses(ValueError, grid, 2 * grid):
        made.release(total, draw)
