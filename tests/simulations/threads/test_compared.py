"""Differences between methods count only where one of them is above the majority class."""

from simulations.evaluation.evaluate import Estimate, Interval
from simulations.threads.compared import lines


def estimate(value):
    ends = Interval(low=value - 0.01, high=value + 0.01)
    return Estimate(value=value, by_thread=ends, by_user=ends)


def test_two_that_learnt_nothing_are_not_compared():
    found = {
        ("a", "b"): estimate(0.02),
        ("a", "c"): estimate(-0.05),
        ("b", "c"): estimate(-0.05),
        ("a", "majority"): estimate(0.005),
        ("b", "majority"): estimate(-0.02),
        ("c", "majority"): estimate(0.03),
    }
    said = dict(zip(found, list(lines(found))[5:], strict=True))
    assert "no signal" in said["a", "b"]
    assert not any("no signal" in text for pair, text in said.items() if pair != ("a", "b"))
    assert "+3.0" in said["c", "majority"]
