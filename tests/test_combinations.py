"""No value is lost where few combinations run."""

import pytest

from tests.harness.combinations import each_once

SLOW = pytest.mark.slow


def default(params):
    return [param.values for param in params if not param.marks]


class TestEachOnce:
    def test_all_combinations_are_there_and_every_value_runs(self):
        left, right = ["a", "b", "c"], {"one": 1, "two": 2}
        found = each_once(left, right)
        assert [param.id for param in found] == [f"{a}-{b}" for a in left for b in right]
        assert default(found) == [("a", 1), ("b", 2), ("c", 1)]
        assert {mark.name for param in found for mark in param.marks} == {"slow"}

    def test_more_may_run_and_what_is_slow_does_not(self):
        left = ["a", pytest.param("b", marks=SLOW), "c"]
        found = each_once(left, [1, 2], also=lambda name, number: name == "a")
        assert default(found) == [("a", 1), ("a", 2), ("c", 2)]
