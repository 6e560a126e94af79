"""A bounded contribution is no longer than its bound says, whatever was sent.

Planted wrong bounds show that the laws can fail.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.mechanisms import Clip, Normalise, Rounded, Unbounded
from fedpriv.mechanisms.bounds import WITHIN, Bound, OutputSensitivity
from fedpriv.training.bounded_sum import RowStack
from fedpriv.tree import RowSparse
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import bounded
from tests.laws.bounds.bounded import (
    BOUNDS,
    COLUMNS,
    MULTIPLIER,
    PARAMS,
    ROWS,
    every_bound,
    exact_norm,
    updates,
)


def exceeds(make, c, update):
    """Whether the bounded contribution is longer than the bound says."""
    return exact_norm(make.bounded(c, update)) > make(c).l2_bound


class TestNorm:
    @every_bound
    @given(update=updates(), exponent=st.floats(-9, 9))
    def test_no_output_exceeds_the_bound(self, make, update, exponent):
        try:
            assert not exceeds(make, 10.0**exponent, update)
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
            assert not exceeds(make, norm, update)

    @pytest.mark.parametrize("c", [1e-9, 1e-3, 1.0, 1e6])
    @pytest.mark.parametrize(
        ("dtype", "size"),
        [
            *((np.float32, size) for size in (3e38, 1e35, 1e-38, 3e-45)),
            *((np.float64, size) for size in (1e300, 1e-300, 1e-320)),
            *((np.float16, size) for size in (6e4, 6e-8)),
        ],
    )
    def test_the_ends_of_a_dtypes_range(self, c, dtype, size):
        """Factors that float32 cannot hold; a bias of another dtype may be in the same tree."""
        rng = np.random.default_rng(3)
        for other in (dtype, np.float32, np.float64):
            kernel = (rng.uniform(0.3, 1.0, (ROWS, COLUMNS)) * size).astype(dtype)
            update = {"kernel": kernel, "bias": np.zeros(COLUMNS, other)}
            norm = exact_norm(update)
            # What is shorter than 1e-290 counts as the zero update, which stays as it is.
            normalised = c if norm > 1e-290 else norm
            for name, length in (("clip", min(norm, c)), ("normalise", normalised)):
                assert not exceeds(BOUNDS[name], c, update)
                found = exact_norm(BOUNDS[name].bounded(c, update))
                assert found == pytest.approx(length, rel=1e-6)

    @every_bound
    @given(update=updates(-30, 30))
    def test_the_direction_is_kept(self, make, update):
        bound, said = make(1.0), make.said
        wanted = {n: _as64(t) for n, t in update.items()}
        if said.mixture is not None:
            offset = said.mixture.offset
            wanted = {n: 0.75 * t + offset[n] for n, t in tree.to_dense(wanted).items()}
        wanted = tree.to_dense(tree.multiply(wanted, said.multiplier))
        found = make.bounded(1.0, update)
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
        for tensor in make.bounded(10.0**exponent, update).values():
            whole = np.rint(tensor / bound.granularity)
            np.testing.assert_array_equal(whole * bound.granularity, tensor)
            assert np.abs(whole).max() <= 2**24

    @given(update=updates(-30, 30))
    def test_clip_leaves_what_is_short_enough_alone(self, update):
        norm = exact_norm(update)
        if norm == 0.0 or norm > 1e30:
            return
        kept = bounded(Clip(l2_clip_norm=norm * 1.001), update)
        for name, tensor in tree.to_dense(update).items():
            np.testing.assert_array_equal(kept[name], tensor)

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
            found = exact_norm(bounded(bound, update))
            assert found == pytest.approx(length, rel=1e-6, abs=1e-37)

    @given(update=updates(-30, 30), exponent=st.floats(-9, 9))
    def test_an_adapting_clip_sends_two_parts_that_are_one_long_together(self, update, exponent):
        """a Δ / max(‖Δ‖, C), and ±h by the side of C that ‖Δ‖ is on; a² + h² = 1."""
        c, norm = 10.0**exponent, exact_norm(update)
        if abs(norm / c - 1.0) < 1e-6:
            return
        make = BOUNDS["adaptive"]
        found = make.bounded(c, update)
        count = float(found.pop(WITHIN)[0])
        assert count == pytest.approx(0.2 if norm <= c else -0.2, rel=1e-6)
        weight = math.sqrt(1 - 0.2**2)
        assert exact_norm(found) == pytest.approx(weight * min(norm / c, 1.0), rel=1e-6, abs=1e-37)
        if norm > c:
            assert math.hypot(exact_norm(found), count) == pytest.approx(1.0, rel=1e-6)

    @pytest.mark.slow
    @every_bound
    @given(update=updates(-30, 30))
    def test_row_sparse_equals_dense(self, make, update):
        bound = make(1.0)
        sparse, dense = (make.bounded(1.0, u) for u in (update, tree.to_dense(update)))
        for name in dense:
            # Norms that differ in their last bit may round a tie to either side.
            near = 1e-44 if bound.granularity is None else bound.granularity * (1 + 1e-9)
            np.testing.assert_allclose(sparse[name], dense[name], rtol=3e-7, atol=near)

    @every_bound
    @given(update=updates(-30, 30))
    def test_the_update_is_not_changed(self, make, update):
        before = {n: t.copy() for n, t in tree.to_dense(update).items()}
        make.bounded(1e-3, update)
        for name, tensor in tree.to_dense(update).items():
            np.testing.assert_array_equal(tensor, before[name])

    @every_bound
    def test_zero_stays_zero(self, make):
        out = make.bounded(1.0, PARAMS)
        if make.said.mixture is None:  # else the public part is bounded with the user's own
            assert not any(out[name].any() for name in PARAMS)
        assert exact_norm(out) <= make(1.0).l2_bound

    @every_bound
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_what_is_not_finite_is_refused(self, make, bad, dtype):
        for name in PARAMS:
            update = {n: t.astype(dtype) for n, t in PARAMS.items()}
            update[name].reshape(-1)[-1] = bad
            with pytest.raises(ValueError):
                make.bounded(1.0, update)
            with pytest.raises(ValueError):
                bounded(Unbounded(), update)

    def test_matrices_are_measured_by_frobenius_not_spectral_norm(self):
        matrix = {"kernel": np.eye(4, dtype=np.float32) * np.float32(0.9)}
        clipped = bounded(Clip(l2_clip_norm=1.0), matrix)["kernel"]
        np.testing.assert_allclose(clipped, 0.5 * np.eye(4), rtol=1e-6)

    @pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, None, "1", True, 1j, [1.0]])
    def test_a_bound_is_a_positive_number(self, value):
        for make in (lambda c: Clip(l2_clip_norm=c), lambda c: Normalise(l2_clip_norm=c)):
            with refuses(ValueError, "l2_clip_norm"):
                make(value)

    @pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, -math.inf])
    def test_a_regulariser_is_not_negative(self, value):
        with refuses(ValueError, "regulariser", value):
            Normalise(l2_clip_norm=1.0, regulariser=value)

    def test_every_bound_states_its_own(self):
        for make in BOUNDS.values():
            assert make(0.25).l2_bound == (1.0 if make.adapts else 0.25)
        assert Unbounded().l2_bound == math.inf

    def test_none_is_made_that_certifies_and_does_not_bound(self):
        class Mine(Bound):
            l2_bound = 1.0

        made: Any = Mine
        with pytest.raises(TypeError):
            made()

    def test_clip_changes_nothing_up_to_a_part_in_2_22_below_it_and_normalise_everything(self):
        clip, largest = Clip(l2_clip_norm=1.0), 1.0 - 2.0**-22
        for norm, left in ((largest, largest), (np.nextafter(largest, 1), largest), (9, largest)):
            assert clip.factors(np.array([norm], float))[0] * norm == left
        smaller = Normalise(l2_clip_norm=1.0, regulariser=1.0)
        for norm in (0.5, 2.0):
            factor = smaller.factors(np.array([norm]))[0]
            assert factor * norm == pytest.approx(norm / (1 + norm) * largest, rel=1e-15)

    def test_no_sum_of_results_is_held_to_how_far_they_are_apart(self):
        with pytest.raises(ValueError):
            OutputSensitivity(l2_bound=0.1).sum_limit(3)


def _as64(tensor):
    if isinstance(tensor, RowSparse):
        return RowSparse(rows=tensor.rows, values=tensor.values.astype(np.float64), num_rows=ROWS)
    return tensor.astype(np.float64)


def by_tensor(update):
    clip = Clip(l2_clip_norm=1.0)
    return {name: bounded(clip, {name: tensor})[name] for name, tensor in update.items()}


def by_spectral_norm(update):
    norm = max(float(np.linalg.norm(np.atleast_2d(t), 2)) for t in update.values())
    return tree.scale(update, min(1.0, 1.0 / norm))


def rounded_afterwards(update):
    """With nothing set aside for the rounding."""
    found = bounded(Clip(l2_clip_norm=1.0), update)
    return {name: np.rint(tensor / 0.05) * 0.05 for name, tensor in found.items()}


#: Wrong on purpose, with a bound of 1: what the laws above must catch.
WRONG = {
    "each tensor alone": by_tensor,
    "spectral norm": by_spectral_norm,
    "preconditioned afterwards": lambda update: tree.multiply(
        bounded(Clip(l2_clip_norm=1.0), update), MULTIPLIER
    ),
    "without a margin for float32": lambda update: tree.scale(update, 1.0 / tree.l2_norm(update)),
    "rounded afterwards": rounded_afterwards,
    "twice the bound": lambda update: bounded(Clip(l2_clip_norm=2.0), update),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_bound_is_caught(wrong):
    rng = np.random.default_rng(0)
    draws = (
        {n: (9 * rng.normal(size=t.shape)).astype(np.float32) for n, t in PARAMS.items()}
        for _ in range(50)
    )
    assert any(exact_norm(wrong(update)) > 1.0 for update in draws)


@pytest.mark.slow
@every_bound
@settings(max_examples=2000)
@given(update=updates(), exponent=st.floats(-20, 20))
def test_no_output_exceeds_the_bound_at_length(make, update, exponent):
    try:
        assert not exceeds(make, 10.0**exponent, update)
    except ValueError:
        assert exact_norm(update) > 1e30


@pytest.mark.parametrize("batched", [True, False])
def test_a_grid_around_a_bound_is_of_a_batch_where_that_is(batched):
    class OfABatch(Clip):
        pass

    OfABatch.batched = batched
    assert Rounded(bound=OfABatch(l2_clip_norm=1.0)).batched is batched


@pytest.mark.parametrize("size", [1e-162, 1.0, 1e200])
def test_rows_of_any_length_have_their_norm(size):
    """Squares of float64 rows may vanish or overflow, where a bound would let too much through."""
    rows = size * np.array([[1.3, 0.9], [0.3, 0.4]])
    update = {"w": RowSparse(rows=np.array([1, 5]), values=rows, num_rows=9)}
    expected = size * np.linalg.norm([1.3, 0.9, 0.3, 0.4])
    assert RowStack.of(update).norms() == pytest.approx(expected, rel=1e-12, abs=0.0)
