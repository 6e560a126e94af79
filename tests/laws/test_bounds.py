"""Laws of every bound, and of the sum that is built on it.

A user moves the sum by at most `l2_bound`, whatever it sends and however much it has; nobody
changes anybody else's contribution; and the released mean has a public denominator. Planted wrong
bounds show that the laws can fail.
"""

import logging
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.mechanisms import Clip, Normalise, Preconditioned, Rounded, Unbounded
from fedpriv.noise.gaussian import gaussian
from fedpriv.optimizers import sgd
from fedpriv.privacy.plans.cohort_plan import cohort_plan
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.work import as_work
from fedpriv.transform import identity
from fedpriv.tree import RowSparse

ROWS, COLUMNS = 12, 3
PARAMS = {"kernel": np.zeros((ROWS, COLUMNS), np.float32), "bias": np.zeros(COLUMNS, np.float32)}
_rng = np.random.default_rng(5)
MULTIPLIER = {
    # Condition number 1e8, one factor for each row; the bias has none.
    "kernel": (10.0 ** _rng.uniform(-4, 4, (ROWS, 1))).astype(np.float32)
}
BOUNDS = {
    "clip": lambda c: Clip(l2_clip_norm=c),
    "normalise": lambda c: Normalise(l2_clip_norm=c),
    "normalise-regularised": lambda c: Normalise(l2_clip_norm=c, regulariser=0.3 * c),
    "precondition-clip": lambda c: Preconditioned(
        multiplier=MULTIPLIER, bound=Clip(l2_clip_norm=c)
    ),
    "precondition-normalise": lambda c: Preconditioned(
        multiplier=MULTIPLIER, bound=Normalise(l2_clip_norm=c)
    ),
    "rounded-clip": lambda c: Rounded(bound=Clip(l2_clip_norm=c)),
    "rounded-normalise": lambda c: Rounded(bound=Normalise(l2_clip_norm=c)),
    "rounded-precondition": lambda c: Rounded(
        bound=Preconditioned(multiplier=MULTIPLIER, bound=Clip(l2_clip_norm=c))
    ),
}
every_bound = pytest.mark.parametrize("make", BOUNDS.values(), ids=BOUNDS)


@st.composite
def updates(draw, low=-300.0, high=300.0):
    """An update shaped like PARAMS: any floating dtypes, dense or row-sparse, any magnitude."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def values(shape):
        dtype = draw(st.sampled_from([np.float16, np.float32, np.float32, np.float64]))
        size = 10.0 ** draw(st.one_of(st.floats(-4, 4), st.floats(low, high)))
        made = rng.normal(size=shape) * min(size, 0.99 * float(np.finfo(dtype).max))
        made[rng.random(shape) < draw(st.sampled_from([0.0, 0.5, 0.95]))] = 0.0
        return np.clip(made, -float(np.finfo(dtype).max), float(np.finfo(dtype).max)).astype(dtype)

    kernel = values((ROWS, COLUMNS))
    if draw(st.booleans()):
        rows = np.sort(rng.choice(ROWS, draw(st.integers(0, ROWS)), replace=False))
        kernel = RowSparse(rows=rows, values=kernel[: len(rows)], num_rows=ROWS)
    return {"kernel": kernel, "bias": values((COLUMNS,))}


def exact_norm(update):
    """The norm without overflow or rounding worth speaking of, independent of fedpriv.tree."""
    flat = []
    for tensor in update.values():
        values = tensor.values if isinstance(tensor, RowSparse) else tensor
        flat += [float(x) for x in np.asarray(values).reshape(-1)]
    assert all(map(math.isfinite, flat))
    peak = max(map(abs, flat), default=0.0)
    if peak == 0.0:
        return 0.0
    exponent = math.frexp(peak)[1]
    root = math.sqrt(math.fsum(math.ldexp(x, -exponent) ** 2 for x in flat))
    return math.ldexp(root, exponent)


def exceeds(bound, update):
    """Whether the bounded update is longer than the bound says."""
    return exact_norm(bound.apply(update)) > bound.l2_bound


class TestNorm:
    @every_bound
    @given(update=updates(), exponent=st.floats(-9, 9))
    def test_no_output_exceeds_the_bound(self, make, update, exponent):
        bound = make(10.0**exponent)
        try:
            assert not exceeds(bound, update)
        except ValueError:
            # Only what leaves the range of its dtype may be refused instead.
            assert exact_norm(update) > 1e30

    @every_bound
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    @pytest.mark.parametrize("norm", [1e-9, 1e-3, 1.0, 1e4])
    def test_no_rounding_takes_it_over(self, make, dtype, norm):
        # Ten thousand coordinates that all round the same way are the worst case.
        for value in np.linspace(1.0, 2.0, 23):
            update = {
                "bias": np.full(COLUMNS, value, dtype),
                "kernel": np.full((ROWS, COLUMNS), value / 3, dtype),
            }
            assert not exceeds(make(norm), update)

    @pytest.mark.parametrize("c", [1e-9, 1e-3, 1.0, 1e6])
    @pytest.mark.parametrize(
        ("dtype", "size"),
        [
            (np.float32, 3e38),
            (np.float32, 1e35),
            (np.float32, 1e-38),
            (np.float32, 3e-45),
            (np.float64, 1e300),
            (np.float64, 1e-300),
            (np.float64, 1e-320),
            (np.float16, 6e4),
            (np.float16, 6e-8),
        ],
    )
    def test_the_ends_of_a_dtypes_range(self, c, dtype, size):
        """Factors that float32 cannot hold; a bias of another dtype may be in the same tree."""
        rng = np.random.default_rng(3)
        for other in (dtype, np.float32, np.float64):
            kernel = (rng.uniform(0.3, 1.0, (ROWS, COLUMNS)) * size).astype(dtype)
            update = {"kernel": kernel, "bias": np.zeros(COLUMNS, other)}
            norm = exact_norm(update)
            for bound, length in (
                (Clip(l2_clip_norm=c), min(norm, c)),
                (Normalise(l2_clip_norm=c), c),
            ):
                assert not exceeds(bound, update)
                assert exact_norm(bound.apply(update)) == pytest.approx(length, rel=1e-6)

    @every_bound
    @given(update=updates(-30, 30))
    def test_the_direction_is_kept(self, make, update):
        bound = make(1.0)
        inner = getattr(bound, "multiplier", {})
        wanted = tree.to_dense(tree.multiply({n: _as64(t) for n, t in update.items()}, inner))
        found = tree.to_dense(bound.apply(update))
        a, b = (
            np.concatenate([t[n].reshape(-1).astype(np.float64) for n in sorted(PARAMS)])
            for t in (wanted, found)
        )
        # Where nearly everything is below float16's or float32's grain, or below the grid's, there
        # is no direction.
        grain = 1e-6 if bound.granularity is None else 1e4 * bound.granularity
        if np.linalg.norm(a) > grain and np.linalg.norm(b) > grain:
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            assert cosine > 1 - 1e-6

    @every_bound
    @given(update=updates(-30, 30), exponent=st.floats(-9, 9))
    def test_what_is_on_a_grid_is_whole(self, make, update, exponent):
        bound = make(10.0**exponent)
        if bound.granularity is None:
            return
        assert bound.granularity == bound.l2_bound / 2**24
        for tensor in tree.to_dense(bound.apply(update)).values():
            whole = np.rint(tensor / bound.granularity)
            np.testing.assert_array_equal(whole * bound.granularity, tensor)
            assert np.abs(whole).max() <= 2**24

    @given(update=updates(-30, 30))
    def test_clip_leaves_what_is_short_enough_alone(self, update):
        norm = exact_norm(update)
        if norm == 0.0 or norm > 1e30:
            return
        kept = Clip(l2_clip_norm=norm * 1.001).apply(update)
        for name, tensor in tree.to_dense(update).items():
            np.testing.assert_array_equal(tree.to_dense(kept)[name], tensor)

    @given(update=updates(-30, 30), exponent=st.floats(-9, 9))
    def test_lengths_are_what_the_formulas_say(self, update, exponent):
        c = 10.0**exponent
        norm = exact_norm(update)
        if not 1e-30 < norm < 1e30:
            return
        for bound, length in (
            (Clip(l2_clip_norm=c), min(norm, c)),
            (Normalise(l2_clip_norm=c), c),
            (Normalise(l2_clip_norm=c, regulariser=c), c * norm / (c + norm)),
        ):
            found = exact_norm(bound.apply(update))
            # float16 outputs that were not scaled are exact; 1e-37 is float32's grain.
            assert found == pytest.approx(length, rel=1e-6, abs=1e-37)

    @every_bound
    @given(update=updates(-30, 30))
    def test_row_sparse_equals_dense(self, make, update):
        bound = make(1.0)
        sparse, dense = (tree.to_dense(bound.apply(u)) for u in (update, tree.to_dense(update)))
        for name in PARAMS:
            # Norms that differ in their last bit may round a tie to either side.
            near = 1e-44 if bound.granularity is None else bound.granularity * (1 + 1e-9)
            np.testing.assert_allclose(sparse[name], dense[name], rtol=3e-7, atol=near)

    @every_bound
    @given(update=updates(-30, 30))
    def test_the_update_is_not_changed(self, make, update):
        before = {n: t.copy() for n, t in tree.to_dense(update).items()}
        make(1e-3).apply(update)
        for name, tensor in tree.to_dense(update).items():
            np.testing.assert_array_equal(tensor, before[name])

    @every_bound
    def test_zero_stays_zero(self, make):
        out = tree.to_dense(make(1.0).apply(PARAMS))
        assert all(not tensor.any() for tensor in out.values())

    @every_bound
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_what_is_not_finite_is_refused(self, make, bad, dtype):
        for name in PARAMS:
            update = {n: t.astype(dtype) for n, t in PARAMS.items()}
            update[name].reshape(-1)[-1] = bad
            for bound in (make(1.0), Unbounded()):
                with pytest.raises(ValueError, match="norm is"):
                    bound.apply(update)

    def test_matrices_are_measured_by_frobenius_not_spectral_norm(self):
        matrix = {"kernel": np.eye(4, dtype=np.float32) * np.float32(0.9)}
        clipped = Clip(l2_clip_norm=1.0).apply(matrix)["kernel"]
        np.testing.assert_allclose(clipped, 0.5 * np.eye(4), rtol=1e-6)

    @pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, None, "1", True, 1j, [1.0]])
    def test_a_bound_is_a_positive_number(self, value):
        for make in (lambda c: Clip(l2_clip_norm=c), lambda c: Normalise(l2_clip_norm=c)):
            with pytest.raises(ValueError, match="l2_clip_norm"):
                make(value)

    @pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, -math.inf])
    def test_a_regulariser_is_not_negative(self, value):
        with pytest.raises(ValueError, match="regulariser"):
            Normalise(l2_clip_norm=1.0, regulariser=value)

    def test_every_bound_states_its_own(self):
        for make in BOUNDS.values():
            assert make(0.25).l2_bound == 0.25
        assert Unbounded().l2_bound == math.inf


def _as64(tensor):
    if isinstance(tensor, RowSparse):
        return RowSparse(rows=tensor.rows, values=tensor.values.astype(np.float64), num_rows=ROWS)
    return tensor.astype(np.float64)


# Wrong on purpose: what the laws above must catch.


@dataclass
class PerTensorClip:
    l2_bound: float = 1.0

    def apply(self, update):
        clip = Clip(l2_clip_norm=self.l2_bound)
        return {name: clip.apply({name: tensor})[name] for name, tensor in update.items()}


@dataclass
class SpectralClip:
    l2_bound: float = 1.0

    def apply(self, update):
        norm = max(float(np.linalg.norm(np.atleast_2d(t), 2)) for t in update.values())
        return tree.scale(update, min(1.0, self.l2_bound / norm))


@dataclass
class BoundThenPrecondition:
    multiplier: dict = field(default_factory=lambda: MULTIPLIER)
    l2_bound: float = 1.0

    def apply(self, update):
        return tree.multiply(Clip(l2_clip_norm=self.l2_bound).apply(update), self.multiplier)


@dataclass
class ClipWithoutMargin:
    """Exact arithmetic would keep it; float32 does not."""

    l2_bound: float = 1.0

    def apply(self, update):
        return tree.scale(update, self.l2_bound / tree.l2_norm(update))


@dataclass
class RoundedAfterwards:
    """Bounded first and rounded to a grid then, with nothing set aside for the rounding."""

    l2_bound: float = 1.0
    granularity: float = 0.05

    def apply(self, update):
        bounded = Clip(l2_clip_norm=self.l2_bound).apply(update)
        return {
            name: np.rint(tensor / self.granularity) * self.granularity
            for name, tensor in bounded.items()
        }


@dataclass
class TwiceTheBound:
    l2_bound: float = 1.0

    def apply(self, update):
        return Clip(l2_clip_norm=2 * self.l2_bound).apply(update)


@pytest.mark.parametrize(
    "wrong",
    [
        PerTensorClip,
        SpectralClip,
        BoundThenPrecondition,
        ClipWithoutMargin,
        RoundedAfterwards,
        TwiceTheBound,
    ],
)
def test_a_wrong_bound_is_caught(wrong):
    rng = np.random.default_rng(0)
    found = [
        exceeds(
            wrong(),
            {n: (9 * rng.normal(size=t.shape)).astype(np.float32) for n, t in PARAMS.items()},
        )
        for _ in range(50)
    ]
    assert any(found)


# The sum. Every law below goes through the real `partial_sum`.


class Users:
    """Users whose update is written down: a tree, or something that raises or misbehaves."""

    def __init__(self, updates, sizes=None):
        self.updates, self.sizes = updates, sizes or {}

    def examples(self, user_id):
        return user_id, range(self.sizes.get(user_id, 1))

    def train(self, params, examples, key):
        found = self.updates[examples[0]]
        return found(params, key) if callable(found) else found


def summed(bound, updates, user_ids=None, sizes=None):
    users = Users(updates, sizes)
    result = as_work(users).partial_sum(
        params=PARAMS,
        bound=bound,
        data=users,
        user_ids=list(updates) if user_ids is None else user_ids,
        key=Key.simulation(0),
    )
    return result, tree.to_dense(result.real())


def distance(left, right):
    return exact_norm({name: left[name] - right[name] for name in left})


cohorts = st.lists(updates(-40, 40), min_size=1, max_size=6)


@pytest.mark.slow
@every_bound
@settings(max_examples=2000)
@given(update=updates(), exponent=st.floats(-20, 20))
def test_no_output_exceeds_the_bound_at_length(make, update, exponent):
    bound = make(10.0**exponent)
    try:
        assert not exceeds(bound, update)
    except ValueError:
        assert exact_norm(update) > 1e30


class TestSensitivity:
    @every_bound
    @given(cohort=cohorts, exponent=st.floats(-6, 6))
    def test_adding_or_removing_one_user_moves_the_sum_by_at_most_the_bound(
        self, make, cohort, exponent
    ):
        bound = make(10.0**exponent)
        users = {f"u{i}": update for i, update in enumerate(cohort)}
        everyone = summed(bound, users)[1]
        for left_out in users:
            others = summed(bound, users, [u for u in users if u != left_out])[1]
            assert distance(everyone, others) <= bound.l2_bound * (1 + 1e-12)

    @every_bound
    @given(cohort=cohorts, other=updates(-40, 40), exponent=st.floats(-6, 6))
    def test_replacing_one_user_moves_it_by_at_most_twice_the_bound(
        self, make, cohort, other, exponent
    ):
        bound = make(10.0**exponent)
        users = {f"u{i}": update for i, update in enumerate(cohort)}
        before = summed(bound, users)[1]
        for replaced in users:
            after = summed(bound, {**users, replaced: other})[1]
            assert distance(before, after) <= 2 * bound.l2_bound * (1 + 1e-12)

    @every_bound
    def test_both_are_attained(self, make):
        bound, rng = make(2.0), np.random.default_rng(1)
        push = {n: (1e6 * rng.normal(size=t.shape)).astype(np.float32) for n, t in PARAMS.items()}
        pull = {n: -t for n, t in push.items()}
        none, one, other = (summed(bound, users)[1] for users in ({}, {"u": push}, {"u": pull}))
        assert distance(none, one) == pytest.approx(2.0, rel=1e-5)
        assert distance(one, other) == pytest.approx(4.0, rel=1e-5)

    @every_bound
    @given(
        cohort=cohorts, sizes=st.lists(st.sampled_from([0, 1, 7, 10**9]), min_size=6, max_size=6)
    )
    def test_example_counts_do_not_weigh(self, make, cohort, sizes):
        users = {f"u{i}": update for i, update in enumerate(cohort)}
        plain = summed(make(1.0), users)[1]
        weighed = summed(make(1.0), users, sizes=dict(zip(users, sizes, strict=False)))[1]
        for name in PARAMS:
            np.testing.assert_array_equal(plain[name], weighed[name])

    @every_bound
    @given(cohort=cohorts)
    def test_the_sum_is_the_sum(self, make, cohort):
        bound = make(1.0)
        users = {f"u{i}": update for i, update in enumerate(cohort)}
        result, found = summed(bound, users)
        expected = tree.zeros(PARAMS)
        failed = 0
        for update in cohort:
            try:
                for name, array in tree.to_dense(bound.apply(update)).items():
                    expected[name] += array
            except ValueError:
                failed += 1
        assert (result.num_users, result.num_failed) == (len(cohort), failed)
        for name in PARAMS:
            assert found[name].dtype == np.float64
            # `apply` rounds its product to float32; the sum scales in float64.
            near = 2.0**-23 * len(cohort)
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
    @pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
    def test_contributes_exactly_zero_and_changes_nobody_else(self, make, poison):
        bound = make(0.5)
        clean, expected = summed(bound, self.honest)
        for position in (0, 2, 4):
            users = list(self.honest.items())
            users.insert(position, ("evil", poison))
            result, found = summed(bound, dict(users))
            assert (result.num_users, result.num_failed) == (5, clean.num_failed + 1)
            for name in PARAMS:
                np.testing.assert_array_equal(found[name], expected[name])

    def test_all_at_once_and_nobody_left(self):
        clean = summed(Clip(l2_clip_norm=1.0), self.honest)[1]
        result, found = summed(Clip(l2_clip_norm=1.0), {**POISON, **self.honest})
        assert result.num_failed == len(POISON)
        for name in PARAMS:
            np.testing.assert_array_equal(found[name], clean[name])
        result, found = summed(Clip(l2_clip_norm=1.0), POISON)
        assert result.num_failed == result.num_users == len(POISON)
        assert not any(tensor.any() for tensor in found.values())

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
        class Some(Users):
            def examples(self, user_id):
                if user_id not in self.updates:
                    raise ValueError(f"user {user_id!r} is not here")
                return super().examples(user_id)

        users = Some(self.honest)
        result = as_work(users).partial_sum(
            params=PARAMS,
            bound=Clip(l2_clip_norm=1.0),
            data=users,
            user_ids=["h0", "stranger", "h1"],
            key=Key.simulation(0),
        )
        expected = summed(Clip(l2_clip_norm=1.0), self.honest, ["h0", "h1"])[1]
        assert (result.num_users, result.num_failed) == (3, 1)
        for name in PARAMS:
            np.testing.assert_array_equal(tree.to_dense(result.real())[name], expected[name])

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


def make_plan(**changes):
    return cohort_plan(
        **{
            "num_users": 100,
            "expected_cohort_size": 7,
            "num_rounds": 5,
            "bound": "clip",
            "l2_bound": 0.5,
            "noise": "gaussian",
            "noise_multiplier": 1.5,
            "delta": 1e-3,
            **changes,
        }
    )


def release(plan, total, key):
    server = FederatedAveraging(optimizer=sgd(1.0), aggregate=identity())
    state = server.init({n: t.copy() for n, t in PARAMS.items()})
    mechanism = plan.live_mechanism
    answer = mechanism.release(total, mechanism.draw(state.params, key))
    return server.next(state, answer).params


class TestDenominator:
    key = Key.simulation(9).fold("noise").fold(1).fold(1)
    users = {  # noqa: RUF012 - read only
        f"u{i}": {
            n: np.random.default_rng(i).normal(size=t.shape).astype(np.float32)
            for n, t in PARAMS.items()
        }
        for i in range(20)
    }

    @pytest.mark.parametrize("replies", range(0, 21, 2))
    def test_dropouts_change_nothing_but_the_sum(self, replies):
        plan = make_plan()
        total, dense = summed(Clip(l2_clip_norm=0.5), self.users, list(self.users)[:replies])
        found = release(plan, total, self.key)
        noise = gaussian(self.key, PARAMS, plan.live_mechanism.stddev)
        for name in PARAMS:
            # Bit for bit: sum and noise in float64, the public share, and one rounding.
            expected = (dense[name] + noise[name]) * (
                1.0 / plan.live_mechanism.expected_cohort_size
            )
            np.testing.assert_array_equal(found[name], expected.astype(np.float32))
            np.testing.assert_allclose(
                found[name], (dense[name] + noise[name]) / 7, rtol=2e-6, atol=2e-7
            )

    def test_the_empty_cohort_releases_pure_noise(self):
        plan = make_plan()
        found = release(plan, PartialSum(total=tree.zeros(PARAMS), num_users=0), self.key)
        noise = gaussian(self.key, PARAMS, 1.5 * 0.5)
        for name in PARAMS:
            np.testing.assert_allclose(found[name], noise[name] / 7, rtol=1e-6)
            assert np.abs(found[name]).min() > 0

    def test_it_is_the_plans_expected_cohort_size_and_no_count_of_users(self):
        total, _ = summed(Clip(l2_clip_norm=0.5), self.users)
        one = release(make_plan(), total, self.key)
        claimed = PartialSum(total=total.total, num_users=10**6, num_failed=10**6)
        other = release(make_plan(), claimed, self.key)
        doubled = release(make_plan(expected_cohort_size=14), total, self.key)
        for name in PARAMS:
            np.testing.assert_array_equal(one[name], other[name])
            np.testing.assert_allclose(one[name], 2 * doubled[name], rtol=1e-6)

    def test_fractional_expected_cohorts_are_kept_as_they_are(self):
        total, dense = summed(Clip(l2_clip_norm=0.5), self.users)
        found = release(make_plan(expected_cohort_size=2.5), total, self.key)
        noise = gaussian(self.key, PARAMS, 0.75)
        for name in PARAMS:
            np.testing.assert_allclose(
                found[name], (dense[name] + noise[name]) / 2.5, rtol=2e-6, atol=1e-6
            )

    def test_stddev_is_derived_from_multiplier_and_bound(self):
        for bound in (0.1, 1.0, 30.0):
            for sigma in (0.3, 1.0, 8.0):
                plan = make_plan(l2_bound=bound, noise_multiplier=sigma)
                assert plan.live_mechanism.stddev == pytest.approx(sigma * bound)
