"""Arithmetic on named tensors: every operation equals the dense float64 one, to rounding."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.tree import RowSparse
from tests.harness.refusals import refuses


def sparse(rows, values, num_rows, dtype=np.float32):
    return RowSparse(
        rows=np.asarray(rows, np.int64), values=np.asarray(values, dtype), num_rows=num_rows
    )


ANY_MAGNITUDE = st.floats(-300, 38)


@st.composite
def trees(draw, magnitudes=ANY_MAGNITUDE):
    """One to three tensors, dense or row-sparse, float32 or float64, of one magnitude each."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    made = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        dtype = draw(st.sampled_from([np.float32, np.float64]))
        size = 10.0 ** draw(magnitudes)
        shape = (draw(st.integers(0, 6)), draw(st.integers(1, 4)))
        values = np.clip(rng.uniform(-1, 1, shape) * size, -3e38, 3e38).astype(dtype)
        if draw(st.booleans()):
            rows = np.sort(rng.choice(10, len(values), replace=False))
            made[name] = sparse(rows, values, 10, dtype)
        else:
            made[name] = values
    return made


def exact_norm(values):
    """The norm in Python's own float arithmetic, scaled by a power of two, summed exactly."""
    flat = [float(x) for t in tree.to_dense(values).values() for x in t.reshape(-1)]
    peak = max(map(abs, flat), default=0.0)
    if peak == 0:
        return 0.0
    exponent = math.frexp(peak)[1]
    squares = math.fsum(math.ldexp(x, -exponent) ** 2 for x in flat)
    return math.ldexp(math.sqrt(squares), exponent)


class TestNorm:
    @given(trees())
    def test_equals_the_exact_norm_at_every_magnitude(self, values):
        assert tree.l2_norm(values) == pytest.approx(exact_norm(values), rel=1e-12, abs=0)

    def test_is_over_all_tensors_and_not_spectral(self):
        matrix = np.eye(4, dtype=np.float32) * np.float32(0.9)
        assert tree.l2_norm({"m": matrix}) == pytest.approx(1.8, rel=1e-6)
        assert tree.l2_norm({"a": matrix, "b": matrix}) == pytest.approx(1.8 * math.sqrt(2))

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_squares_that_overflow_or_vanish(self, dtype):
        info = np.finfo(dtype)
        for value in (info.max, info.tiny):
            found = tree.l2_norm({"a": np.full(9, value, dtype)})
            assert found == pytest.approx(3 * float(value), rel=1e-9)

    def test_many_float32_squares_are_summed_in_float64(self):
        values = np.full(300_000, 1e-3, np.float32)
        values[0] = 1e4
        expected = math.sqrt(1e8 + 299_999 * float(np.float32(1e-3)) ** 2)
        # In float32 it would be off by 1e-8; the order of a float64 sum is the processor's.
        assert tree.l2_norm({"a": values}) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_shows(self, bad):
        for dtype in (np.float32, np.float64):
            values = {"a": np.array([1, bad, 2], dtype), "b": np.ones(2, dtype)}
            assert not math.isfinite(tree.l2_norm(values))

    def test_of_nothing_is_zero(self):
        assert tree.l2_norm({}) == tree.l2_norm({"a": np.zeros((0, 3), np.float32)}) == 0.0
        assert tree.l2_norm({"s": sparse([], np.zeros((0, 3)), 5)}) == 0.0


class TestArithmetic:
    @given(trees(st.floats(-3, 3)), st.floats(-4, 4))
    def test_scale_equals_dense(self, values, factor):
        found = tree.scale(values, factor)
        for name, tensor in tree.to_dense(values).items():
            out = tree.to_dense(found)[name]
            assert out.dtype == tensor.dtype
            assert type(found[name]) is type(values[name])
            # 1e-35: products of tiny factors may leave float32's normal range.
            np.testing.assert_allclose(out, tensor * factor, rtol=1e-6, atol=1e-35)

    def test_scale_of_half_precision_and_by_large_factors(self):
        half = tree.scale({"a": np.array([1.0, 60000.0], np.float16)}, 1e-7)["a"]
        assert half.dtype == np.float32
        np.testing.assert_allclose(half, [1e-7, 6e-3], rtol=1e-6)
        mixed = {"a": np.zeros(2, np.float32), "b": np.array([1e-300])}
        found = tree.scale(mixed, 1e300)
        assert found["a"].tolist() == [0.0, 0.0] and found["b"][0] == pytest.approx(1.0)

    @given(trees(st.floats(-3, 3)))
    def test_multiply_equals_dense_by_rows_by_columns_and_by_elements(self, values):
        rng = np.random.default_rng(1)
        for shape_of in (lambda s: (s[0], 1), lambda s: (1, s[1]), lambda s: s):
            factors = {
                n: rng.uniform(0.1, 9, shape_of(t.shape)).astype(np.float32)
                for n, t in values.items()
                if n != "b"
            }
            dense = tree.to_dense(tree.multiply(values, factors))
            for name, tensor in tree.to_dense(values).items():
                expected = tensor * factors.get(name, np.float32(1))
                assert dense[name].dtype == tensor.dtype
                np.testing.assert_allclose(dense[name], expected, rtol=1e-6)

    def test_nothing_changes_its_arguments(self):
        values = {"a": np.ones((3, 2), np.float32), "s": sparse([1], [[1, 2]], 4)}
        before = {n: t.copy() for n, t in tree.to_dense(values).items()}
        tree.scale(values, 3.0)
        tree.multiply(values, {"a": np.full((3, 1), 2.0), "s": np.full((4, 1), 2.0)})
        for name, tensor in tree.to_dense(values).items():
            np.testing.assert_array_equal(tensor, before[name])

    def test_counting(self):
        assert tree.num_elements({"a": np.ones((2, 3)), "s": sparse([1], [[1, 2]], 4)}) == 14
        assert tree.zeros({"s": sparse([1], [[1, 2]], 4)})["s"].shape == (4, 2)


class TestWhatIsNotTrusted:
    template = {  # noqa: RUF012 - read only
        "kernel": np.zeros((5, 2), np.float32),
        "bias": np.zeros(2, np.float32),
    }

    def good(self, **changes):
        tensors = {"kernel": sparse([1, 3], [[1, 2], [3, 4]], 5), "bias": np.ones(2, np.float32)}
        return {**tensors, **changes}

    def test_what_fits_comes_back_as_plain_arrays(self):
        masked = np.ma.masked_array(np.full((5, 2), 9e9), mask=np.eye(5, 2))
        for kernel in (self.good()["kernel"], np.ones((5, 2)), np.ones((5, 2), "f2"), masked):
            checked = tree.check_like(self.template, self.good(kernel=kernel))
            dense = tree.to_dense(checked)
            np.testing.assert_array_equal(
                dense["kernel"], np.asarray(tree.to_dense({"kernel": kernel})["kernel"])
            )
            assert type(dense["kernel"]) is np.ndarray

    def test_a_malformed_tensor_is_refused_by_a_value_error(self, subtests):
        for kernel in [
            np.ones((1, 2), np.float32),  # would broadcast
            np.ones((2,), np.float32),
            np.ones((), np.float32),
            np.ones((5, 2, 1), np.float32),
            np.ones((2, 5), np.float32),
            np.ones((5, 2), np.int64),
            np.ones((5, 2), bool),
            np.ones((5, 2), complex),
            np.ones((5, 2), object),
            np.full((5, 2), "1.0"),
            np.zeros((5, 2), "datetime64[s]"),
            np.zeros((5, 2), [("f", np.float32)]),
            [[1.0, 2.0]] * 5,
            1.0,
            None,
            "kernel",
            sparse([1, 1], [[1, 2], [3, 4]], 5),
            sparse([3, 1], [[1, 2], [3, 4]], 5),
            sparse([1, 5], [[1, 2], [3, 4]], 5),
            sparse([-1, 1], [[1, 2], [3, 4]], 5),
            sparse([1], [[1, 2], [3, 4]], 5),
            sparse([1, 3], [[1, 2], [3, 4]], 6),
            sparse([1, 3], [[1], [3]], 5),
            sparse([1, 3], [[1, 2], [3, 4]], 5, np.int32),
            RowSparse(rows=np.array([1.0]), values=np.ones((1, 2)), num_rows=5),
            RowSparse(rows=np.array([[1]]), values=np.ones((1, 2)), num_rows=5),
            RowSparse(rows=[1], values=np.ones((1, 2)), num_rows=5),  # type: ignore[arg-type]
            RowSparse(rows=np.array([1]), values=[[1.0, 2.0]], num_rows=5),  # type: ignore
        ]:
            with subtests.test(kernel=kernel), pytest.raises(ValueError):
                tree.check_like(self.template, self.good(kernel=kernel))

    @pytest.mark.parametrize("found", [None, 3, [], (), "kernel", {}, {"kernel": 1}])
    def test_names_must_be_exactly_the_templates(self, found):
        with pytest.raises(ValueError):
            tree.check_like(self.template, found)

    def test_extra_and_missing_names(self):
        with refuses(ValueError, "extra"):
            tree.check_like(self.template, self.good(extra=np.ones(1)))
        with pytest.raises(ValueError):
            tree.check_like(self.template, {"bias": np.ones(2)})
        with pytest.raises(ValueError):
            tree.check_like(self.template, {**self.good(), 7: np.ones(1)})

    def test_a_mapping_that_answers_differently_the_second_time_gains_nothing(self):
        class TwoFaced(dict):
            asked = 0

            def __getitem__(self, name):
                self.asked += 1
                honest = np.zeros((5, 2), np.float32) if name == "kernel" else np.zeros(2)
                return honest if self.asked <= 2 else honest + np.float32(1e9)

        checked = tree.check_like(self.template, TwoFaced(kernel=0, bias=0))
        for _ in range(3):
            assert all(np.abs(checked[name]).max() == 0 for name in checked)

    def test_validate_returns_itself(self):
        good = sparse([0, 4], [[1, 2], [3, 4]], 5)
        assert good.validate() is good and good.shape == (5, 2) and good.dtype == np.float32


def test_rows_whose_differences_overflow_do_not_pass_for_increasing():
    """5 - (-2**63) wraps to a positive number; compiled loops would write outside the tensor."""
    rows = np.array([5, -(2**63), -1, 7])
    hostile = RowSparse(rows=rows, values=np.ones((4, 2), np.float32), num_rows=8)
    with pytest.raises(ValueError):
        hostile.validate()
