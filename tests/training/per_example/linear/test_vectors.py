"""Linear models: sums written out by hand, measures, and descent that learns."""

import math

import numpy as np
import pytest
from scipy import sparse

from fedpriv.mechanisms import Clip, Normalise, Preconditioned, Unbounded
from fedpriv.training.per_example.linear import (
    LinearRegressionGradients,
    linear_metrics,
)
from tests.training.per_example.linear.case import NUM, Case


def accuracy_and_loss(params, x, y):
    found = linear_metrics(params, x, y).totals
    return found["accuracy"].value, found["loss"].value


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
    """algorithms.md 1.9 and 5.3 through a backend; algorithms.md is of the design notes."""

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
        binary = {"weight": np.zeros(4, np.float32), "bias": np.zeros(1, np.float32)}
        several = {"kernel": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}
        y = np.array([0, 0, 0, 1])
        assert accuracy_and_loss(binary, x, y) == (0.75, pytest.approx(math.log(2)))
        assert accuracy_and_loss(several, x, y) == (0.75, pytest.approx(math.log(3)))
