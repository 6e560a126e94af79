"""Noise on the mean for grids: known figures, the same as each cell alone, and never a bare ε."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest

import fedpriv as fp
from fedpriv.privacy.noise_grid import (
    SATURATION_FACTOR,
    default_cohorts,
    find_saturation_point,
    noise_grid,
)
from tests.harness.refusals import refuses
from tests.privacy import costing

# 6,716 users, δ = 6716^-1.1, PLD, add-remove; cohort, rounds and thousandths of C.
CASES = [(350, 100), (1000, 100), (1000, 50), (1000, 25), (2000, 25)]
KNOWN = {8.0: (1.90, 1.10, 0.91, 0.77, 0.55), 2.0: (3.62, 2.87, 2.16, 1.69, 1.46)}


@pytest.mark.slow
@pytest.mark.parametrize("target", KNOWN)
def test_known_noise_on_the_mean(target):
    for rounds in (25, 50, 100):
        wanted = {
            cohort: noise
            for (cohort, count), noise in zip(CASES, KNOWN[target], strict=True)
            if count == rounds
        }
        asked = fp.Rounds(users=6716, cohort=350, rounds=rounds)
        found = asked.noise_grid(target, cohorts=tuple(wanted), rounds=(rounds,))
        assert found.delta == pytest.approx(6.17e-5, rel=2e-3)
        for cohort, noise in wanted.items():
            assert found.at(cohort, rounds).noise_on_mean == pytest.approx(noise / 1e3, abs=5.01e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{}, {"relation": "replace-one"}, {"cap": 40}, {"sampling": "fixed"}], ids=str
)
def test_each_cell_is_what_calibrating_it_alone_finds(more):
    asked = fp.Rounds(users=400, cohort=20, rounds=5, **more)
    grid = asked.noise_grid(3.0, cohorts=(20, 400), rounds=(5, 10))
    assert [(p.cohort, p.rounds) for p in grid.points] == [(20, 5), (20, 10), (400, 5), (400, 10)]
    for point in grid.points:
        cap = 40 if "cap" in more and point.cohort == 20 else None
        one = replace(asked, cohort=point.cohort, rounds=point.rounds, cap=cap)
        alone = one.calibrate(3.0)
        assert point.noise_multiplier == alone.noise_multiplier
        assert point.noise_on_mean == alone.noise_on_mean == alone.point.noise_on_mean
        assert (grid.relation, grid.delta) == (alone.epsilon.relation, alone.epsilon.delta)
        assert alone.epsilon.accountant in grid.accountant


@pytest.fixture(scope="module")
def small():
    return fp.Rounds(users=400, cohort=50, rounds=10).noise_grid(
        2.0, cohorts=(50, 200), rounds=(10, 20)
    )


@pytest.mark.slow
def test_no_epsilon_without_its_terms(small):
    told = json.loads(json.dumps(small.to_json(), allow_nan=False))
    assert {"target_epsilon", "delta", "relation", "unit", "accountant"} <= set(told)
    assert len(told["points"]) == 4 and len(told["saturation_points"]) == 2


def test_micro_batches_and_examples(small):
    plan = costing.plan(
        expected_cohort_size=50, l2_bound=0.3, noise_multiplier=1.0, unit="example", micro_batch=5
    )
    found = noise_grid(plan, 2.0, cohorts=(50,), rounds=(10,))
    assert found.points[0].noise_on_mean == pytest.approx(10 * small.at(50, 10).noise_on_mean)
    assert "per example" in str(found)


@pytest.mark.slow
def test_a_cell_without_noise_says_so_and_the_others_stand():
    asked = fp.Rounds(users=400, cohort=400, rounds=1, delta=1e-3)
    found = asked.noise_grid(1e4, cohorts=(400,), rounds=(1, 1000))
    assert [point.noise_on_mean is None for point in found.points] == [True, False]


@pytest.mark.parametrize("users", [1, 3, 40, 400, 6716, 1_000_000])
def test_default_cohorts_are_doublings_within_the_roster(users):
    found = default_cohorts(users)
    assert 1 <= found[0] <= max(1, users / 19) and found[-1] <= users
    assert all(b == 2 * a for a, b in pairwise(found))
    assert found[-1] >= min(2000, users / 2)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"target_epsilon": 0}, ["target_epsilon", 0.0]),
        ({"cohorts": (20, 401)}, [401]),
        ({"cohorts": ()}, []),
        ({"rounds": (1.5,)}, [1.5]),
    ],
)
def test_bad_numbers_are_named(given, named):
    asked = fp.Rounds(users=400, cohort=20, rounds=5)
    with refuses(ValueError, *named):
        asked.noise_grid(**{"target_epsilon": 2.0, "rounds": (5,), **given})


@pytest.mark.slow
def test_a_cap_over_its_cohort_is_that_cap_again():
    # Times the cohort, 62 / 30 is above 62 by a rounding: a cap of 63 would be another event.
    assert 62 / 30 * 30 > 62
    asked = fp.Rounds(users=400, cohort=30, rounds=5, cap=62)
    cell = asked.noise_grid(2.0, cohorts=(30,), rounds=(5,)).points[0]
    alone, other = (replace(asked, cap=cap).calibrate(2.0) for cap in (62, 63))
    assert cell.noise_multiplier == alone.noise_multiplier != other.noise_multiplier


def test_half_way_between_all_and_nothing():
    assert math.log(SATURATION_FACTOR) == pytest.approx(0.5 * math.log(2.0))


@pytest.mark.parametrize(("part", "floor"), [(1.0, 0.01), (1.0, 0.002), (7.0, 0.01)])
def test_known_in_closed_form(part, floor):
    # (a/m)² + b² halves from m to 2m where m = a / (b √2).
    line = [(m, math.hypot(part / m, floor)) for m in (2.0 ** (k / 4) for k in range(0, 60))]
    found = find_saturation_point(50, line)
    assert found.side == "at" and found.rounds == 50
    assert found.cohort == pytest.approx(part / (floor * math.sqrt(2.0)), rel=0.03)


def test_like_one_over_the_cohort_has_none_yet():
    found = find_saturation_point(5, [(m, 1 / m) for m in (10.0, 20.0, 40.0)])
    assert (found.side, found.cohort) == ("above", pytest.approx(20.0))
    assert str(found) == "> 20"


@pytest.mark.parametrize("line", [[], [(10.0, 1.0)], [(10.0, 1.0), (15.0, 0.9)]])
def test_too_few_cohorts_say_nothing(line):
    found = find_saturation_point(5, line)
    assert (found.side, found.cohort, str(found)) == ("unknown", None, "unknown")
