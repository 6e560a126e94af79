"""Exact bounded sums of linear models, against one dense float64 example after another."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedpriv.mechanisms import Clip, Normalise, Unbounded
from fedpriv.training.algorithm import Context
from fedpriv.training.per_example.linear import linear_metrics
from fedpriv.tree import l2_norm
from tests.harness.toys_of_training import assert_same, distance, example_sum, zeros
from tests.training.per_example.linear.case import (
    KINDS,
    NUM,
    Case,
    close,
    every_kind,
    oracle,
    preconditioned,
)

BOUNDS = {
    "clip": Clip(l2_clip_norm=0.7),
    "normalise": Normalise(l2_clip_norm=0.7),
    "regularised": Normalise(l2_clip_norm=0.7, regulariser=0.1),
    "unbounded": Unbounded(),
}
every_bound = pytest.mark.parametrize("inner", BOUNDS.values(), ids=BOUNDS)


def singles(index):
    return [[i] for i in index]


class TestEqualsTheDenseLoop:
    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("shape", [None, "row", "matrix alone", "full"])
    @every_bound
    @every_kind
    def test_examples_and_groups(self, kind, inner, shape, mixed):
        case = Case(kind)
        context = preconditioned(case, shape, mixed)
        index = np.array([3, 0, 2, 7, 13, 5])
        updates = list(case.updates())
        found = example_sum(case.made, case.params, index, inner, context=context)
        close(found, oracle(updates, singles(index), inner, context))
        groups = [np.array([3, 0, 9]), np.array([2]), np.array([7, 13, 5, 1])]
        found = example_sum(case.made, case.params, groups, inner, context=context)
        close(found, oracle(updates, groups, inner, context))

    @pytest.mark.parametrize("kind", ["logistic", "softmax", "one-vs-all"])
    @pytest.mark.parametrize("mixed", [False, True])
    @every_bound
    def test_a_module_of_the_model_sums_the_same(self, kind, inner, mixed):
        """To the rounding of float32; the path of another device, here on the processor."""
        case = Case(kind)
        context, module = preconditioned(case, "full", mixed), case.made.on_device("cpu")
        groups = [np.array([3, 0, 9]), np.array([2]), np.array([7, 13, 5, 1])]
        for index in (np.arange(NUM), groups):
            found, expected = (
                example_sum(each, case.params, index, inner, context=context)
                for each in (module, case.made)
            )
            close(found, expected, 1e-5)

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
            example_sum(made, case.params, index, bound),
            oracle(case.updates(), singles(index), bound),
        )
        assert np.array_equal(half.data, stored)

    @every_kind
    def test_chunks_do_not_show(self, kind, monkeypatch):
        case, index = Case(kind), np.arange(NUM)
        whole = case.made.gradient(case.params, index)
        monkeypatch.setattr("fedpriv.training.per_example.linear.CHUNK", 3)
        for name, array in case.made.gradient(case.params, index).items():
            np.testing.assert_allclose(array, whole[name], rtol=1e-6, atol=1e-8)


class TestLaws:
    @pytest.mark.slow
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
        made = case.make(sparse.csr_matrix(case.x))
        context = preconditioned(case, shape, mixed)
        everyone = np.arange(NUM)
        groups = np.array_split(everyone, 5)
        for most, index, without in (
            (1, everyone, np.delete(everyone, out)),
            (2, groups, [group[group != out] for group in groups]),
        ):
            sums = [
                example_sum(made, case.params, of, inner, context=context)
                for of in (index, without)
            ]
            assert distance(*sums) <= most * inner.l2_bound * (1 + 1e-9)

    @every_kind
    def test_the_whole_group_moves_the_sum_by_the_bound_once(self, kind):
        """A bound of every member before the mean would be as small, but not this."""
        case = Case(kind)
        bound, members = Clip(l2_clip_norm=1e-3), np.array([0, 3, 4, 5])
        found = example_sum(case.made, case.params, [members], bound)
        assert l2_norm(found) == pytest.approx(1e-3, rel=1e-6)
        members_first = oracle(case.updates(), singles(members), bound)
        assert distance(found, {n: a / 4 for n, a in members_first.items()}) > 1e-4

    @every_kind
    @pytest.mark.parametrize("shape", ["row", "full"])
    def test_a_multiplier_of_ones_changes_no_bit(self, kind, shape):
        """AdaDPS with A = 1 is DP-SGD."""
        case, inner = Case(kind), Clip(l2_clip_norm=0.3)
        ones = {n: np.ones_like(a) for n, a in case.random(0, 1, full=shape == "full").items()}
        for index in (np.arange(NUM), [np.arange(5), np.arange(5, 9)]):
            plain, same = (
                example_sum(case.made, case.params, index, inner, context=context)
                for context in (Context(), Context(multiplier=ones))
            )
            assert_same(same, plain)


def accuracy_and_loss(params, x, y):
    found = linear_metrics(params, x, y).totals
    return found["accuracy"].value, found["loss"].value


class TestMeasuring:
    @pytest.mark.parametrize("kind", ["logistic", "softmax"])
    def test_accuracy_and_loss(self, kind, monkeypatch):
        monkeypatch.setattr("fedpriv.training.per_example.linear.CHUNK", 4)
        case = Case(kind)
        x = case.x.astype(np.float64)
        if kind == "logistic":
            p = 1 / (1 + np.exp(-(x @ case.params["weight"] + case.params["bias"][0])))
            p = np.stack([1 - p, p], axis=1)
        else:
            p = np.exp(x @ case.params["kernel"] + case.params["bias"])
            p /= p.sum(axis=1, keepdims=True)
        accuracy, loss = accuracy_and_loss(case.params, case.csr, case.y)
        assert accuracy == (p.argmax(axis=1) == case.y).mean()
        assert loss == pytest.approx(-np.log(p[np.arange(NUM), case.y]).mean(), rel=1e-6)

    def test_ties_go_to_the_lowest_class(self):
        x = sparse.csr_matrix(np.eye(4, dtype=np.float32))
        y = np.array([0, 0, 0, 1])
        for params, classes in ((zeros(weight=4, bias=1), 2), (zeros(kernel=(4, 3), bias=3), 3)):
            assert accuracy_and_loss(params, x, y) == (0.75, pytest.approx(math.log(classes)))
