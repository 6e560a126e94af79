"""A user moves the sum by at most `l2_bound`, and nobody changes another's contribution."""

import itertools
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.tree import RowSparse
from tests.laws.bounds.bounded import (
    COLUMNS,
    PARAMS,
    ROWS,
    every_bound,
    exact_norm,
    summed,
    updates,
)


def distance(left, right):
    return exact_norm({name: left[name] - right[name] for name in left})


cohorts = st.lists(updates(-40, 40), min_size=1, max_size=6)


class TestSensitivity:
    @every_bound
    @given(cohort=cohorts, exponent=st.floats(-6, 6))
    def test_adding_or_removing_one_user_moves_the_sum_by_at_most_the_bound(
        self, make, cohort, exponent
    ):
        c = 10.0**exponent
        users = {f"u{i}": update for i, update in enumerate(cohort)}
        everyone = make.summed(c, users)[1]
        for left_out in users:
            others = make.summed(c, users, [u for u in users if u != left_out])[1]
            assert distance(everyone, others) <= make(c).l2_bound * (1 + 1e-12)

    @every_bound
    def test_both_are_attained(self, make):
        rng, most = np.random.default_rng(1), make(2.0).l2_bound
        push = {n: (1e6 * rng.normal(size=t.shape)).astype(np.float32) for n, t in PARAMS.items()}
        pull = {n: -t for n, t in push.items()}
        none, one, other = (make.summed(2.0, users)[1] for users in ({}, {"u": push}, {"u": pull}))
        assert most == (1.0 if make.adapts else 2.0)
        assert distance(none, one) == pytest.approx(most, rel=1e-5)
        assert distance(one, other) == pytest.approx(2 * most * make.update_share, rel=1e-5)

    @every_bound
    @given(
        cohort=cohorts, sizes=st.lists(st.sampled_from([0, 1, 7, 10**9]), min_size=6, max_size=6)
    )
    def test_example_counts_do_not_weigh(self, make, cohort, sizes):
        users = {f"u{i}": update for i, update in enumerate(cohort)}
        plain = make.summed(1.0, users)[1]
        weighed = make.summed(1.0, users, sizes=dict(zip(users, sizes, strict=False)))[1]
        for name in plain:
            np.testing.assert_array_equal(plain[name], weighed[name])

    @every_bound
    @given(cohort=cohorts)
    def test_the_sum_is_the_sum(self, make, cohort):
        users = {f"u{i}": update for i, update in enumerate(cohort)}
        result, found = make.summed(1.0, users)
        expected = tree.zeros(found)
        failed = 0
        for update in cohort:
            try:
                for name, array in make.bounded(1.0, update).items():
                    expected[name] += array
            except ValueError:
                failed += 1
        assert (result.num_users, result.num_failed) == (len(cohort), failed)
        for name in found:
            assert found[name].dtype == np.float64
            near = 2.0**-50 * len(cohort)
            np.testing.assert_allclose(found[name], expected[name], rtol=near, atol=near)

    def test_the_raw_sum_does_not_print(self):
        result, _ = summed(Clip(l2_clip_norm=1.0), {"u": {n: t + 1 for n, t in PARAMS.items()}})
        assert "0." not in repr(result) and "array" not in repr(result)


def raises(error):
    def train(params, key):
        raise error

    return train


def tensors(**changes):
    return {**{n: np.ones_like(t) for n, t in PARAMS.items()}, **changes}


def _rows(rows, num_rows=ROWS, width=COLUMNS):
    rows = np.asarray(rows)
    return RowSparse(rows=rows, values=np.ones((len(rows), width)), num_rows=num_rows)


POISON = {
    "raises": raises(RuntimeError("out of luck")),
    "memory": raises(MemoryError()),
    "recursion": raises(RecursionError()),
    "stop": raises(StopIteration()),
    "assertion": raises(AssertionError()),
    "divides": lambda params, key: 1 / 0,
    "nan": tensors(bias=np.full(COLUMNS, np.nan, np.float32)),
    "inf": tensors(kernel=np.full((ROWS, COLUMNS), np.inf, np.float32)),
    "minus-inf": tensors(kernel=np.full((ROWS, COLUMNS), -np.inf)),
    "nan-row": tensors(
        kernel=RowSparse(rows=np.array([2]), values=np.full((1, COLUMNS), np.nan), num_rows=ROWS)
    ),
    "beyond-float64": tensors(bias=np.full(COLUMNS, np.finfo(np.float64).max)),
    "broadcasts": tensors(kernel=np.ones((1, COLUMNS), np.float32)),
    "scalar": tensors(bias=np.ones((), np.float32)),
    "transposed": tensors(kernel=np.ones((COLUMNS, ROWS), np.float32)),
    "rank": tensors(kernel=np.ones((ROWS, COLUMNS, 1), np.float32)),
    "empty": tensors(kernel=np.ones((0, COLUMNS), np.float32)),
    "ints": tensors(bias=np.ones(COLUMNS, np.int64)),
    "bools": tensors(bias=np.ones(COLUMNS, bool)),
    "complex": tensors(bias=np.ones(COLUMNS, complex)),
    "objects": tensors(bias=np.array([1.0] * COLUMNS, object)),
    "strings": tensors(bias=np.array(["1.0"] * COLUMNS)),
    "list": tensors(bias=[1.0] * COLUMNS),
    "missing": {"bias": np.ones(COLUMNS, np.float32)},
    "extra": tensors(more=np.ones(3, np.float32)),
    "renamed": {"kernel": PARAMS["kernel"] + 1, "Bias": np.ones(COLUMNS, np.float32)},
    "none": None,
    "number": 7,
    "tuple": (1, 2),
    "rows-repeat": tensors(kernel=_rows([1, 1])),
    "rows-fall": tensors(kernel=_rows([2, 1])),
    "rows-beyond": tensors(kernel=_rows([ROWS])),
    "rows-negative": tensors(kernel=_rows([-1])),
    "rows-of-another-tensor": tensors(kernel=_rows([1], num_rows=ROWS + 1)),
    "rows-wide": tensors(kernel=_rows([1], width=1)),
    "rows-float": tensors(kernel=_rows([1.0])),
}


class TestPoisonedUsers:
    honest = {  # noqa: RUF012 - read only
        f"h{i}": {
            n: np.random.default_rng(i).normal(size=t.shape).astype(np.float32)
            for n, t in PARAMS.items()
        }
        for i in range(4)
    }

    @every_bound
    def test_contributes_exactly_zero_and_changes_nobody_else(self, make):
        nobody, found = make.summed(0.5, POISON)
        assert nobody.num_failed == nobody.num_users == len(POISON)
        assert not any(tensor.any() for tensor in found.values())
        clean, expected = make.summed(0.5, self.honest)
        for (kind, poison), position in itertools.product(POISON.items(), (0, 2, 4)):
            users = list(self.honest.items())
            users.insert(position, ("evil", poison))
            result, found = make.summed(0.5, dict(users))
            assert (result.num_users, result.num_failed) == (5, clean.num_failed + 1), kind
            for name in expected:
                np.testing.assert_array_equal(found[name], expected[name], kind)

    @pytest.mark.parametrize("value", [1e30, 3e38, -3e38])
    def test_a_huge_update_is_no_larger_than_any(self, value):
        bound = Clip(l2_clip_norm=0.5)
        huge = {n: np.full(t.shape, value, np.float32) for n, t in PARAMS.items()}
        clean = summed(bound, self.honest)[1]
        result, found = summed(bound, {**self.honest, "evil": huge})
        assert result.num_failed == 0
        assert 0.4999 < distance(found, clean) <= 0.5 * (1 + 1e-12)

    def test_what_a_poisoned_user_raises_is_not_written_down(self, caplog):
        """An error's text may hold a user's words; its kind may be told, the user's id may not."""
        caplog.set_level(logging.INFO, logger="fedpriv")
        summed(Clip(l2_clip_norm=1.0), {"evil-1234": POISON["raises"]})
        assert "out of luck" not in caplog.text and "evil-1234" not in caplog.text

    def test_users_that_do_not_exist_are_their_own_zero(self):
        bound = Clip(l2_clip_norm=1.0)
        result, found = summed(bound, self.honest, ["h0", "stranger", "h1"])
        expected = summed(bound, self.honest, ["h0", "h1"])[1]
        assert (result.num_users, result.num_failed) == (3, 1)
        for name in PARAMS:
            np.testing.assert_array_equal(found[name], expected[name])

    def test_each_user_has_a_key_of_its_own_that_nobody_else_moves(self):
        seen = {}

        def spy(name):
            def train(params, key):
                seen.setdefault(name, set()).add(key.to_bytes())
                return tensors()

            return train

        spies = {name: spy(name) for name in ("a", "b", "c")}
        summed(Clip(l2_clip_norm=1.0), spies)
        summed(Clip(l2_clip_norm=1.0), {"evil": POISON["raises"], **spies}, ["c", "evil", "a"])
        assert {len(keys) for keys in seen.values()} == {1}
        assert len(set().union(*seen.values())) == 3
        assert Key.simulation(0).to_bytes() not in set().union(*seen.values())
