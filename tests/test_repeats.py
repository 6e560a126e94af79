"""No case is lost where many are one test, and no value where few of its combinations run."""

import pytest

from tests.repeats import each_once, every_case, first, only

SLOW = pytest.mark.slow


def default(params):
    return [param.values for param in params if not param.marks]


class TestEveryCase:
    def test_every_one_is_run_with_a_folder_and_patches_of_its_own(self, tmp_path, monkeypatch):
        seen = []

        @every_case("number", [1, pytest.param(2)])
        @every_case(("name", "value"), [("a", 3), ("b", 4)])
        def check(number, name, value, tmp_path, monkeypatch):
            assert not list(tmp_path.iterdir()) and not hasattr(TestEveryCase, "patched")
            (tmp_path / "left").touch()
            monkeypatch.setattr(TestEveryCase, "patched", True, raising=False)
            seen.append((number, name, value))

        check(tmp_path=tmp_path, monkeypatch=monkeypatch)
        assert seen == [(1, "a", 3), (1, "b", 4), (2, "a", 3), (2, "b", 4)]

    def test_the_last_one_may_fail_and_is_named(self):
        @every_case("number", [1, 2, 3], ids=["one", "two", "three"])
        def check(number):
            assert number < 3

        with pytest.raises(AssertionError) as caught:
            check()
        assert caught.value.__notes__ == ["in case 2: three"]

    def test_none_are_refused_and_so_are_marks(self):
        with pytest.raises(AssertionError, match="there are no cases"):
            every_case("number", [])
        with pytest.raises(AssertionError, match="no marks of its own"):
            every_case("number", [pytest.param(1, marks=SLOW)])


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


def test_few_of_one_axis():
    assert default(first(2, "abc")) == [("a",), ("b",)]
    assert default(only(["b", "c-1"], ["a", "b", ("c", 1)])) == [("b",), ("c", 1)]
    with pytest.raises(AssertionError, match="not all are there"):
        only(["d"], "abc")
