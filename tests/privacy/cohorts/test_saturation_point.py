"""The saturation point: a doubling of the cohort gains the factor half way between 2 and 1."""

import math

import pytest

from fedpriv.privacy.noise_grid import SATURATION_FACTOR, find_saturation_point


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
