"""The default tests try every value of every parameter, and no more."""

from itertools import product

import pytest

from tests.covering import each_choice

pytest_plugins = ["pytester"]


def chosen(case):
    return frozenset(((str(place),), (value,)) for place, value in enumerate(case))


@pytest.mark.parametrize("sizes", [(1,), (5,), (3, 4), (2, 2, 2), (4, 1, 3, 2)])
def test_every_value_is_tried_by_as_many_cases_as_the_longest_parameter_has(sizes):
    cases = list(product(*map(range, sizes)))
    kept = each_choice(cases, chosen)
    assert len(kept) == max(sizes)
    for place, size in enumerate(sizes):
        assert {case[place] for case in kept} == set(range(size))


def test_rows_of_one_table_are_all_tried():
    rows = [(1, 2), (1, 3), (2, 3), (2, 2)]
    assert each_choice(rows, lambda row: frozenset({(("a", "b"), row)})) == rows


@pytest.mark.slow
def test_pytest_leaves_out_the_others_and_what_is_combined_stays(pytester):
    pytester.makeconftest(
        "from tests.covering import mark_repeats\n"
        "import pytest\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items):\n"
        "    mark_repeats(items)\n"
    )
    pytester.makeini(
        "[pytest]\naddopts = -m 'not slow' -p no:cacheprovider\nmarkers =\n slow: s\n combined: c\n"
    )
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("a", [1, 2, 3])
        @pytest.mark.parametrize("b", ["x", "y"])
        def test_product(a, b): pass

        @pytest.mark.combined
        @pytest.mark.parametrize("a", [1, 2, 3])
        @pytest.mark.parametrize("b", ["x", "y"])
        def test_whole(a, b): pass

        @pytest.mark.parametrize(("a", "b"), [(1, "x"), (1, "y"), (2, "x")])
        def test_rows(a, b): pass

        @pytest.mark.parametrize("a", [1, pytest.param(2, marks=pytest.mark.slow)])
        def test_slow(a): pass
    """)
    pytester.runpytest_inprocess().assert_outcomes(passed=3 + 6 + 3 + 1, deselected=3 + 1)
    pytester.runpytest_inprocess("-m", "slow or not slow").assert_outcomes(passed=6 + 6 + 3 + 2)
