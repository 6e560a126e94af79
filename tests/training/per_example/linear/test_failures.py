"""Linear models: what is not finite contributes zero, and cancellation keeps its digits."""

import logging
import math

import numpy as np
import pytest
from scipy import sparse

from fedpriv.mechanisms import Clip, Normalise
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.training.algorithm import Context
from fedpriv.tree import l2_norm
from tests.harness.toys_of_training import example_sum
from tests.training.per_example.linear.case import (
    NUM,
    Case,
    at_zero,
    close,
    every_kind,
    oracle,
    preconditioned,
)


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
            bound, context = Normalise(l2_clip_norm=0.7), preconditioned(case, "row", mixed)
            with caplog.at_level(logging.WARNING):
                found = example_sum(bad, case.params, index, bound, context=context)
            assert all(np.isfinite(a).all() for a in found.values())
            if value != 3e38:
                rest = example_sum(bad, case.params, others, bound, context=context)
                close(found, rest, 1e-12)
                assert "NotFiniteError" in caplog.text
        assert "norm" not in caplog.text  # the kind of the error, never its text

    @every_kind
    def test_a_bad_offset_gives_zeros(self, kind):
        case = Case(kind)
        offset = case.random(-1, 1, full=True)
        next(iter(offset.values())).reshape(-1)[1] = np.nan
        found = example_sum(
            case.made,
            case.params,
            np.arange(NUM),
            Clip(l2_clip_norm=1.0),
            context=Context(mixture=Mixture(own=0.5, offset=offset)),
        )
        assert all(not a.any() for a in found.values())


class TestCancellation:
    """Where terms nearly cancel, what is measured must be what is added."""

    @pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-4, 1e-2])
    @pytest.mark.parametrize("kind", ["logistic", "softmax"])
    def test_an_offset_that_cancels_an_example(self, kind, gap):
        case, bound = Case(kind), Normalise(l2_clip_norm=1.0)
        update = list(case.updates())[6]
        offset = {n: (-0.5 * (1 + gap) * a).astype(np.float32) for n, a in update.items()}
        multiplier = case.random(0.5, 2.0, full=True)
        context = Context(multiplier=multiplier, mixture=Mixture(own=0.5, offset=offset))
        found = example_sum(case.made, case.params, np.array([6]), bound, context=context)
        assert l2_norm(found) == pytest.approx(1.0, rel=1e-6)
        if gap >= 1e-4:
            close(found, oracle([update], [[0]], bound, context), 1e-5)

    @pytest.mark.parametrize("left", [1e-9, 1.3e-8, 1e-6])
    @pytest.mark.parametrize("kind", ["logistic", "softmax"])
    def test_an_offset_of_which_almost_nothing_is_left(self, kind, left):
        """Its touched part cancels exactly; the rest drowns in a difference of squares."""
        row = np.array([[1.0, 0.5, 3.0, 0.0, 0.0]], np.float32)
        made, params = at_zero(kind, row, np.array([int(kind == "softmax")]))
        matrix, signs = next(iter(params)), np.array([0.25, -0.25], np.float32)
        offset = {matrix: np.outer(row, signs), "bias": signs}
        if kind == "logistic":
            offset = {matrix: 0.25 * row[0], "bias": signs[:1]}
        offset[matrix][4] = left
        found = example_sum(
            made,
            params,
            np.array([0]),
            Normalise(l2_clip_norm=1.0),
            context=Context(mixture=Mixture(own=0.5, offset=offset)),
        )
        assert found[matrix][4] == pytest.approx(1.0 if kind == "logistic" else 0.5**0.5, rel=1e-6)
        assert l2_norm(found) <= 1.0

    @pytest.mark.parametrize("kind", ["logistic", "softmax"])
    def test_a_group_that_cancels(self, kind):
        """Two members cancel and swallow a third's small part; scaled one by one they return it.

        In the mean it is lost in the rounding of ±1e16/8; of ±1e16/8 times ten it is not, and
        comes back rounded up to twice the bound.
        """
        rows = np.array([[1e16, 0], [0.96, 0.8], [1e16, 0], [0, 0]], np.float32)
        made, params = at_zero(kind, rows, np.array([0, 0, 1, 1]))
        found = example_sum(made, params, [np.arange(4)], Normalise(l2_clip_norm=1.0))
        assert 0.999 < l2_norm(found) <= 1.0

    def test_certain_examples_keep_their_residual(self):
        """p - 1 would be 0 here, and the normalised update nothing."""
        made, params = at_zero("logistic", np.array([[3.0, 4.0]], np.float32), np.array([1]))
        params["bias"][:] = 60.0
        total = example_sum(made, params, np.array([0]), Normalise(l2_clip_norm=1.0))
        expected = np.array([3, 4, 1]) / math.sqrt(26)
        np.testing.assert_allclose([*total["weight"], *total["bias"]], expected, rtol=1e-6)
