"""Exact bounded sums of linear models, against one dense float64 example after another."""

import logging
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedpriv.mechanisms import Clip, Normalise, Preconditioned, Rounded, Unbounded
from fedpriv.mechanisms.bound import Mixture
from fedpriv.training.per_example.linear import (
    LinearRegressionGradients,
    LogisticGradients,
    SoftmaxGradients,
    linear_metrics,
)
from fedpriv.training.per_example.sparse_sums import SparseRows

NUM, INPUTS, CLASSES = 14, 25, 4


def accuracy_and_loss(params, x, y):
    found = linear_metrics(params, x, y).totals
    return found["accuracy"].value, found["loss"].value


class Case:
    """A model, its data, and the same updates made dense by other means."""

    def __init__(self, kind, seed=0, num=NUM):
        self.rng = rng = np.random.default_rng(seed)
        self.kind = kind
        self.x = (rng.normal(size=(num, INPUTS)) * (rng.random((num, INPUTS)) < 0.3)).astype(
            np.float32
        )
        self.x[2] = 0.0  # an example without words
        self.csr = sparse.csr_matrix(self.x)
        self.shapes = {
            "logistic": {"weight": (INPUTS,), "bias": (1,)},
            "softmax": {"kernel": (INPUTS, CLASSES), "bias": (CLASSES,)},
            "regression": {"weight": (INPUTS,)},
        }[kind]
        self.params = {
            name: rng.normal(size=shape).astype(np.float32) for name, shape in self.shapes.items()
        }
        if kind == "logistic":
            self.y = rng.integers(0, 2, num)
        elif kind == "softmax":
            self.y = rng.integers(0, CLASSES, num)
        else:
            self.y = rng.normal(size=num)
        self.made = self.make(self.csr)

    def make(self, csr):
        if self.kind == "logistic":
            return LogisticGradients(csr, self.y)
        if self.kind == "softmax":
            return SoftmaxGradients(csr, self.y, CLASSES)
        return LinearRegressionGradients(csr.toarray(), self.y)

    def updates(self, params=None):
        """Minus every example's gradient, dense and float64."""
        params = {n: a.astype(np.float64) for n, a in (params or self.params).items()}
        for row, label in zip(self.x.astype(np.float64), self.y, strict=True):
            if self.kind == "regression":
                yield {"weight": -(row @ params["weight"] - label) * row}
            elif self.kind == "logistic":
                p = 1 / (1 + math.exp(-(row @ params["weight"] + params["bias"][0])))
                yield {"weight": -(p - label) * row, "bias": np.array([label - p])}
            else:
                z = row @ params["kernel"] + params["bias"]
                p = np.exp(z) / np.exp(z).sum()
                p[label] -= 1
                yield {"kernel": -np.outer(row, p), "bias": -p}

    def random(self, low, high, *, full):
        """float32 arrays by name: of all coordinates, or one a row."""
        out = {}
        for name, shape in self.shapes.items():
            shape = shape if full else (shape[0], *(1 for _ in shape[1:]))
            out[name] = self.rng.uniform(low, high, shape).astype(np.float32)
        return out


KINDS = ("logistic", "softmax", "regression")
every_kind = pytest.mark.parametrize("kind", KINDS)
BOUNDS = {
    "clip": Clip(l2_clip_norm=0.7),
    "normalise": Normalise(l2_clip_norm=0.7),
    "regularised": Normalise(l2_clip_norm=0.7, regulariser=0.1),
    "unbounded": Unbounded(),
}
every_bound = pytest.mark.parametrize("inner", BOUNDS.values(), ids=BOUNDS)


def oracle(updates, groups, bound):
    updates = list(updates)
    total = {name: np.zeros(array.shape) for name, array in updates[0].items()}
    for group in groups:
        mean = {n: sum(updates[i][n] for i in group) / len(group) for n in total}
        for name, array in bound.apply(mean).items():
            total[name] = total[name] + array
    return total


def singles(index):
    return [[i] for i in index]


def close(found, expected, tolerance=1e-6):
    assert set(found) == set(expected)
    norm = math.sqrt(sum((a**2).sum() for a in expected.values()))
    for name, array in expected.items():
        assert found[name].shape == array.shape and found[name].dtype == np.float64
        np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance * max(norm, 1e-3))


def distance(a, b):
    return math.sqrt(sum(((a[name] - b[name]) ** 2).sum() for name in a))


def preconditioned(case, inner, shape, mixed):
    multiplier = {} if shape is None else case.random(0.2, 5.0, full=shape == "full")
    if shape == "matrix alone":
        multiplier.pop("bias", None)
    mixture = Mixture(own=0.9, offset=case.random(-0.3, 0.3, full=True)) if mixed else None
    if not multiplier and mixture is None:
        return inner
    return Preconditioned(multiplier=multiplier, bound=inner, mixture=mixture)


class TestEqualsTheDenseLoop:
    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("shape", [None, "row", "matrix alone", "full"])
    @every_bound
    @every_kind
    def test_examples_and_groups(self, kind, inner, shape, mixed):
        case = Case(kind)
        bound = preconditioned(case, inner, shape, mixed)
        index = np.array([3, 0, 2, 7, 13, 5])
        updates = list(case.updates())
        close(
            case.made.bounded_sum(case.params, index, bound),
            oracle(updates, singles(index), bound),
        )
        groups = [np.array([3, 0, 9]), np.array([2]), np.array([7, 13, 5, 1])]
        close(case.made.grouped_sum(case.params, groups, bound), oracle(updates, groups, bound))

    @every_kind
    def test_gradient_is_the_mean(self, kind):
        case = Case(kind)
        index = np.array([1, 4, 6])
        found = case.made.gradient(case.params, index)
        updates = list(case.updates())
        for name, array in found.items():
            assert array.dtype == np.float32 and array.shape == case.params[name].shape
            expected = -sum(updates[i][name] for i in index) / 3
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("kind", ["logistic", "softmax"])
    def test_duplicates_in_a_row_are_merged_first(self, kind):
        """A word stored twice weighs (a + b)², not a² + b²."""
        case = Case(kind)
        csr = case.csr
        half = sparse.csr_matrix(
            (np.repeat(csr.data / 2, 2), np.repeat(csr.indices, 2), csr.indptr * 2), csr.shape
        )
        stored = half.data.copy()
        made, index, bound = case.make(half), np.arange(NUM), Clip(l2_clip_norm=0.3)
        close(
            made.bounded_sum(case.params, index, bound),
            oracle(case.updates(), singles(index), bound),
        )
        assert np.array_equal(half.data, stored)

    @every_kind
    def test_chunks_do_not_show(self, kind, monkeypatch):
        case, index = Case(kind), np.arange(NUM)
        whole = case.made.gradient(case.params, index)
        monkeypatch.setattr("fedpriv.training.per_example.linear._CHUNK", 3)
        for name, array in case.made.gradient(case.params, index).items():
            np.testing.assert_allclose(array, whole[name], rtol=1e-6, atol=1e-8)

    @every_kind
    def test_params_and_data_are_not_changed(self, kind):
        case = Case(kind)
        before = {name: array.copy() for name, array in case.params.items()}
        case.made.bounded_sum(case.params, np.arange(NUM), Clip(l2_clip_norm=0.1))
        assert all(np.array_equal(before[name], case.params[name]) for name in before)
        assert np.array_equal(case.csr.toarray(), case.x)


class TestLaws:
    @settings(max_examples=60, deadline=None)
    @given(
        kind=st.sampled_from(KINDS),
        seed=st.integers(0, 1000),
        out=st.integers(0, NUM - 1),
        inner=st.sampled_from([b for b in BOUNDS.values() if b.l2_bound < math.inf]),
        shape=st.sampled_from([None, "row", "full"]),
        mixed=st.booleans(),
        size=st.sampled_from([1e-20, 1e-3, 1.0, 1e4, 1e15]),
    )
    def test_an_example_moves_the_sum_by_at_most_the_bound(
        self, kind, seed, out, inner, shape, mixed, size
    ):
        case = Case(kind, seed)
        case.x *= np.float32(size)
        made, bound = (
            case.make(sparse.csr_matrix(case.x)),
            preconditioned(case, inner, shape, mixed),
        )
        everyone = np.arange(NUM)
        moved = distance(
            made.bounded_sum(case.params, everyone, bound),
            made.bounded_sum(case.params, np.delete(everyone, out), bound),
        )
        assert moved <= bound.l2_bound * (1 + 1e-9)
        groups = np.array_split(everyone, 5)
        changed = [group[group != out] for group in groups]
        moved = distance(
            made.grouped_sum(case.params, groups, bound),
            made.grouped_sum(case.params, changed, bound),
        )
        assert moved <= 2 * bound.l2_bound * (1 + 1e-9)

    @every_kind
    def test_the_whole_group_moves_the_sum_by_the_bound_once(self, kind):
        """A bound of every member before the mean would be as small, but not this."""
        case = Case(kind)
        bound, members = Clip(l2_clip_norm=1e-3), np.array([0, 3, 4, 5])
        found = case.made.grouped_sum(case.params, [members], bound)
        zeros = {name: np.zeros_like(array) for name, array in found.items()}
        assert distance(found, zeros) == pytest.approx(1e-3, rel=1e-6)
        members_first = oracle(case.updates(), singles(members), bound)
        assert distance(found, {n: a / 4 for n, a in members_first.items()}) > 1e-4

    @every_bound
    @every_kind
    def test_groups_of_one_are_examples(self, kind, inner):
        case = Case(kind)
        for shape, mixed in ((None, False), ("full", False), ("row", True)):
            bound = preconditioned(case, inner, shape, mixed)
            index = np.array([4, 1, 9])
            close(
                case.made.grouped_sum(case.params, [index[:1], index[1:2], index[2:]], bound),
                case.made.bounded_sum(case.params, index, bound),
                1e-12,
            )

    @every_kind
    def test_a_group_of_the_same_is_one(self, kind):
        case = Case(kind)
        bound = preconditioned(case, Normalise(l2_clip_norm=0.5, regulariser=0.2), "row", True)
        close(
            case.made.grouped_sum(case.params, [np.array([6, 6, 6])], bound),
            case.made.bounded_sum(case.params, np.array([6]), bound),
            1e-12,
        )

    @every_kind
    def test_nobody_is_zero(self, kind):
        case = Case(kind)
        bound = preconditioned(case, Clip(l2_clip_norm=1.0), "row", True)
        nobody = np.zeros(0, np.int64)
        for found in (
            case.made.bounded_sum(case.params, nobody, bound),
            case.made.grouped_sum(case.params, [], bound),
        ):
            assert {n: a.shape for n, a in found.items()} == case.shapes
            assert all(a.dtype == np.float64 and not a.any() for a in found.values())
        with pytest.raises(ValueError, match="no examples"):
            case.made.gradient(case.params, nobody)

    @every_kind
    @pytest.mark.parametrize("shape", ["row", "full"])
    def test_a_multiplier_of_ones_changes_no_bit(self, kind, shape):
        """AdaDPS with A = 1 is DP-SGD."""
        case, inner = Case(kind), Clip(l2_clip_norm=0.3)
        ones = {n: np.ones_like(a) for n, a in case.random(0, 1, full=shape == "full").items()}
        bound = Preconditioned(multiplier=ones, bound=inner)
        for plain, same in (
            (
                case.made.bounded_sum(case.params, np.arange(NUM), inner),
                case.made.bounded_sum(case.params, np.arange(NUM), bound),
            ),
            (
                case.made.grouped_sum(case.params, [np.arange(5), np.arange(5, 9)], inner),
                case.made.grouped_sum(case.params, [np.arange(5), np.arange(5, 9)], bound),
            ),
        ):
            assert all(np.array_equal(plain[name], same[name]) for name in plain)

    @every_kind
    @pytest.mark.parametrize("broadcast", [False, True])
    def test_a_multiplier_of_one_number_scales(self, kind, broadcast):
        case = Case(kind)
        full = {
            n: np.full((1,) * len(s) if broadcast else s, 2.0, np.float32)
            for n, s in case.shapes.items()
        }
        bound = Preconditioned(multiplier=full, bound=Unbounded())
        found = case.made.bounded_sum(case.params, np.arange(NUM), bound)
        plain = case.made.bounded_sum(case.params, np.arange(NUM), Unbounded())
        close(found, {name: 2 * array for name, array in plain.items()}, 1e-12)


class TestWhatFails:
    @every_kind
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
    def test_bad_inputs_contribute_zero_alone(self, kind, value, caplog):
        case = Case(kind)
        case.x[5, :3] = value
        if value == 3e38:
            case.params = {n: np.full_like(a, 3e38) for n, a in case.params.items()}
            case.x[:5], case.x[6:] = 0.0, 0.0
        bad = case.make(sparse.csr_matrix(case.x))
        index, others = np.arange(NUM), np.delete(np.arange(NUM), 5)
        for mixed in (False, True):
            bound = preconditioned(case, Normalise(l2_clip_norm=0.7), "row", mixed)
            with caplog.at_level(logging.WARNING):
                found = bad.bounded_sum(case.params, index, bound)
            assert all(np.isfinite(a).all() for a in found.values())
            if value != 3e38:
                close(found, bad.bounded_sum(case.params, others, bound), 1e-12)
                groups = [np.array([1, 5]), np.array([0, 3])]
                assert "a user contributes zero: ValueError" in caplog.text
                close(
                    bad.grouped_sum(case.params, groups, bound),
                    bad.grouped_sum(case.params, groups[1:], bound),
                    1e-12,
                )
        assert "norm" not in caplog.text  # the kind of the error, never its text

    @every_kind
    def test_bad_params_give_zeros(self, kind):
        case = Case(kind)
        params = {name: np.full_like(array, np.nan) for name, array in case.params.items()}
        bound = preconditioned(case, Clip(l2_clip_norm=1.0), "row", True)
        found = case.made.bounded_sum(params, np.arange(NUM), bound)
        assert all(not a.any() for a in found.values())

    @every_kind
    def test_a_bad_offset_gives_zeros(self, kind):
        case = Case(kind)
        offset = case.random(-1, 1, full=True)
        next(iter(offset.values())).reshape(-1)[1] = np.nan
        bound = Preconditioned(
            multiplier={}, bound=Clip(l2_clip_norm=1.0), mixture=Mixture(own=0.5, offset=offset)
        )
        found = case.made.bounded_sum(case.params, np.arange(NUM), bound)
        assert all(not a.any() for a in found.values())

    @every_kind
    def test_refusals(self, kind):
        case, bound = Case(kind), Clip(l2_clip_norm=1.0)
        for index in ([NUM], [-1], [[0]], [0.5]):
            with pytest.raises(ValueError, match="positions"):
                case.made.bounded_sum(case.params, np.array(index), bound)
        with pytest.raises(ValueError, match="positions"):
            case.made.gradient(case.params, np.array([NUM]))
        with pytest.raises(ValueError, match="group 1 is empty"):
            case.made.grouped_sum(case.params, [np.array([0]), np.array([], np.int64)], bound)
        with pytest.raises(ValueError, match="exact-sum"):
            case.made.bounded_sum(case.params, np.array([0]), Rounded(bound=bound))
        short = {name: array[:-1] for name, array in case.params.items()}
        with pytest.raises(ValueError, match="fit"):
            case.made.bounded_sum(short, np.array([0]), bound)

    def test_refusals_of_data(self):
        x = sparse.csr_matrix(np.eye(3, dtype=np.float32))
        with pytest.raises(ValueError, match="labels"):
            LogisticGradients(x, np.array([0, 1, 2]))
        with pytest.raises(ValueError, match="labels"):
            LogisticGradients(x, np.array([0, 1]))
        with pytest.raises(ValueError, match="labels"):
            SoftmaxGradients(x, np.array([0.0, 1.0, 2.0]), 3)
        with pytest.raises(ValueError, match="num_classes"):
            SoftmaxGradients(x, np.array([0, 0, 0]), 1)
        with pytest.raises(ValueError, match="CSR"):
            LogisticGradients(x.tocsc(), np.array([0, 1, 1]))
        with pytest.raises(ValueError, match="targets"):
            LinearRegressionGradients(np.zeros((3, 2)), np.zeros(2))
        x.indices[0] = 7
        with pytest.raises(ValueError):
            LogisticGradients(x, np.array([0, 1, 1]))


class TestCancellation:
    """Where terms nearly cancel, what is measured must be what is added."""

    @pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-4, 1e-2])
    @pytest.mark.parametrize("kind", ["logistic", "softmax"])
    def test_an_offset_that_cancels_an_example(self, kind, gap):
        case, inner = Case(kind), Normalise(l2_clip_norm=1.0)
        update = list(case.updates())[6]
        offset = {n: (-0.5 * (1 + gap) * a).astype(np.float32) for n, a in update.items()}
        multiplier = case.random(0.5, 2.0, full=True)
        bound = Preconditioned(
            multiplier=multiplier, bound=inner, mixture=Mixture(own=0.5, offset=offset)
        )
        found = case.made.bounded_sum(case.params, np.array([6]), bound)
        norm = math.sqrt(sum((a**2).sum() for a in found.values()))
        assert norm == pytest.approx(1.0, rel=1e-6)
        if gap >= 1e-4:
            close(found, oracle([update], [[0]], bound), 1e-5)

    @pytest.mark.parametrize("left", [1e-9, 1.3e-8, 1e-6])
    @pytest.mark.parametrize("kind", ["logistic", "softmax"])
    def test_an_offset_of_which_almost_nothing_is_left(self, kind, left):
        """Its touched part cancels exactly; the rest drowns in a difference of squares."""
        row = np.array([[1.0, 0.5, 3.0, 0.0, 0.0]], np.float32)
        if kind == "logistic":
            made = LogisticGradients(sparse.csr_matrix(row), np.array([0]))
            params = {"weight": np.zeros(5, np.float32), "bias": np.zeros(1, np.float32)}
            offset = {"weight": 0.25 * row[0], "bias": np.array([0.25], np.float32)}
        else:
            made = SoftmaxGradients(sparse.csr_matrix(row), np.array([1]), 2)
            params = {"kernel": np.zeros((5, 2), np.float32), "bias": np.zeros(2, np.float32)}
            signs = np.array([0.25, -0.25], np.float32)
            offset = {"kernel": np.outer(row, signs), "bias": signs}
        matrix = next(iter(offset))
        offset[matrix][4] = left
        bound = Preconditioned(
            multiplier={},
            bound=Normalise(l2_clip_norm=1.0),
            mixture=Mixture(own=0.5, offset=offset),
        )
        found = made.bounded_sum(params, np.array([0]), bound)
        assert found[matrix][4] == pytest.approx(1.0 if kind == "logistic" else 0.5**0.5, rel=1e-6)
        assert math.sqrt(sum((a**2).sum() for a in found.values())) <= 1.0

    @pytest.mark.parametrize("kind", ["logistic", "softmax"])
    def test_a_group_that_cancels(self, kind):
        """Two members cancel and swallow a third's small part; scaled one by one they return it.

        In the mean it is lost in the rounding of ±1e16/8; of ±1e16/8 times ten it is not, and
        comes back rounded up to twice the bound.
        """
        rows = np.array([[1e16, 0], [0.96, 0.8], [1e16, 0], [0, 0]], np.float32)
        x, y = sparse.csr_matrix(rows), np.array([0, 0, 1, 1])
        if kind == "logistic":
            made = LogisticGradients(x, y)
            params = {"weight": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}
        else:
            made = SoftmaxGradients(x, y, 2)
            params = {"kernel": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)}
        found = made.grouped_sum(params, [np.arange(4)], Normalise(l2_clip_norm=1.0))
        norm = math.sqrt(sum((a**2).sum() for a in found.values()))
        assert 0.999 < norm <= 1.0

    def test_certain_examples_keep_their_residual(self):
        """p - 1 would be 0 here, and the normalised update nothing."""
        x = sparse.csr_matrix(np.array([[3.0, 4.0]], np.float32))
        params = {"weight": np.zeros(2, np.float32), "bias": np.array([60.0], np.float32)}
        total = LogisticGradients(x, np.array([1])).bounded_sum(
            params, np.array([0]), Normalise(l2_clip_norm=1.0)
        )
        np.testing.assert_allclose(
            [*total["weight"], *total["bias"]], np.array([3, 4, 1]) / math.sqrt(26), rtol=1e-6
        )


def written(gradients):
    """A regression whose examples have these gradients at w = 0."""
    gradients = np.array(gradients, np.float32)
    made = LinearRegressionGradients(gradients, -np.ones(len(gradients)))
    params = {"weight": np.zeros(gradients.shape[1], np.float32)}
    return lambda bound: -made.bounded_sum(params, np.arange(len(gradients)), bound)["weight"]


def inverted(a, bound, floor=0.0):
    multiplier = {"weight": (1 / (np.array(a) + floor)).astype(np.float32)}
    return Preconditioned(multiplier=multiplier, bound=bound)


class TestVectors:
    """algorithms.md 1.9 and 5.3 through an engine; algorithms.md is of the design notes."""

    g, a = ([[3, 0.4, -0.02, 0]], [3, 0.2, 0.01, 0.01])

    @pytest.mark.parametrize(
        ("bound", "expected"),
        [
            (inverted(a, Unbounded()), [1, 2, -2, 0]),
            (inverted(a, Clip(l2_clip_norm=1.0)), [1 / 3, 2 / 3, -2 / 3, 0]),
            (inverted(a, Unbounded(), 1e-3), [0.999667, 1.990050, -1.818182, 0]),
            (inverted(a, Clip(l2_clip_norm=1.0), 1e-3), [0.347715, 0.692200, -0.632419, 0]),
            (Clip(l2_clip_norm=1.0), [0.991206, 0.132161, -0.006608, 0]),
        ],
    )
    def test_precondition_then_clip(self, bound, expected):
        np.testing.assert_allclose(written(self.g)(bound), expected, rtol=2e-6, atol=6e-7)

    def test_one_step_of_two(self):
        bound = inverted([3, 0.2], Clip(l2_clip_norm=1.0))
        total = written([[3, 0.4], [0.3, -0.05]])(bound)
        np.testing.assert_allclose(total, [0.547214, 0.644427], rtol=2e-6)
        mean = (total + 0.5 * 1.0 * np.array([0.1, -0.2])) / 2
        np.testing.assert_allclose(mean, [0.298607, 0.272214], rtol=2e-6)
        np.testing.assert_allclose(-0.5 * mean, [-0.149303, -0.136107], rtol=5e-6)

    @pytest.mark.parametrize(
        ("bound", "expected"),
        [
            (Normalise(l2_clip_norm=1.0, regulariser=0.01), [1.098802, 1.465070]),
            (Normalise(l2_clip_norm=1.0, regulariser=0.1), [0.788235, 1.050980]),
            (Normalise(l2_clip_norm=1.0, regulariser=1.0), [0.528571, 0.704762]),
            (Clip(l2_clip_norm=1.0), [0.63, 0.84]),
        ],
    )
    def test_normalised_sums(self, bound, expected):
        total = written([[3, 4], [0.03, 0.04], [0, 0]])(bound)
        np.testing.assert_allclose(total, expected, rtol=2e-6)
        if bound.l2_bound == 1.0 and getattr(bound, "regulariser", 0) == 0.1:
            step = -0.5 * (total + np.array([0.1, -0.2])) / 3
            np.testing.assert_allclose(step, [-0.148039, -0.141830], rtol=5e-6)

    @pytest.mark.parametrize(
        ("bound", "expected"),
        [
            (Normalise(l2_clip_norm=1.0, regulariser=0.01), -0.322806),  # uphill
            (Clip(l2_clip_norm=1.3), 0.1),
            (Clip(l2_clip_norm=0.5), -0.166667),
        ],
    )
    def test_the_bias_of_bounds(self, bound, expected):
        total = written([[1.3], [-0.5], [-0.5]])(bound)
        np.testing.assert_allclose(total / 3, [expected], rtol=5e-6)


class TestMeasuring:
    @pytest.mark.parametrize("prepared", [False, True])
    @pytest.mark.parametrize("kind", ["logistic", "softmax"])
    def test_accuracy_and_loss(self, kind, prepared, monkeypatch):
        monkeypatch.setattr("fedpriv.training.per_example.linear._CHUNK", 4)
        case = Case(kind)
        x = case.x.astype(np.float64)
        if kind == "logistic":
            p = 1 / (1 + np.exp(-(x @ case.params["weight"] + case.params["bias"][0])))
            p = np.stack([1 - p, p], axis=1)
        else:
            p = np.exp(x @ case.params["kernel"] + case.params["bias"])
            p /= p.sum(axis=1, keepdims=True)
        accuracy, loss = accuracy_and_loss(
            case.params, SparseRows.of(case.csr) if prepared else case.csr, case.y
        )
        assert accuracy == (p.argmax(axis=1) == case.y).mean()
        assert loss == pytest.approx(-np.log(p[np.arange(NUM), case.y]).mean(), rel=1e-6)

    def test_ties_go_to_the_lowest_class(self):
        x = sparse.csr_matrix(np.eye(4, dtype=np.float32))
        binary = {"weight": np.zeros(4, np.float32), "bias": np.zeros(1, np.float32)}
        several = {"kernel": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}
        y = np.array([0, 0, 0, 1])
        assert accuracy_and_loss(binary, x, y) == (0.75, pytest.approx(math.log(2)))
        assert accuracy_and_loss(several, x, y) == (0.75, pytest.approx(math.log(3)))

    def test_large_logits_have_a_finite_loss(self):
        x = sparse.csr_matrix(np.array([[1e4], [-1e4]], np.float32))
        binary = {"weight": np.ones(1, np.float32), "bias": np.zeros(1, np.float32)}
        assert accuracy_and_loss(binary, x, np.array([0, 0])) == (0.5, 5000.0)
        several = {"kernel": np.array([[0, 1]], np.float32), "bias": np.zeros(2, np.float32)}
        assert accuracy_and_loss(several, x, np.array([0, 0])) == (0.5, 5000.0)

    def test_nothing_to_measure(self):
        params = {"weight": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}
        with pytest.raises(ValueError, match="no examples"):
            accuracy_and_loss(params, sparse.csr_matrix((0, 2), dtype=np.float32), np.zeros(0, int))

    def test_the_loss_of_the_toy(self):
        made = LinearRegressionGradients(np.eye(2, dtype=np.float32), np.array([1.0, 3.0]))
        assert made.loss({"weight": np.zeros(2, np.float32)}) == 2.5


def test_descent_learns():
    """A few hundred steps on separable words; a wrong sign would climb."""
    rng = np.random.default_rng(1)
    x = sparse.random(400, 50, density=0.2, format="csr", random_state=rng, dtype=np.float32)
    y = (x @ rng.normal(size=50) > 0).astype(np.int64)
    made = LogisticGradients(x, y)
    params = {"weight": np.zeros(50, np.float32), "bias": np.zeros(1, np.float32)}
    before = accuracy_and_loss(params, x, y)[1]
    for _ in range(300):
        batch = np.flatnonzero(rng.random(400) < 0.1)
        total = made.bounded_sum(params, batch, Clip(l2_clip_norm=1.0))
        params = {n: a + (total[n] / 40).astype(np.float32) for n, a in params.items()}
    accuracy, after = accuracy_and_loss(params, x, y)
    assert after < 0.6 * before and accuracy > 0.9
