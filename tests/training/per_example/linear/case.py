"""Linear models, their data, and the same updates made dense by other means."""

import math

import numpy as np
import pytest
from scipy import sparse
from torch import nn

from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.per_example.linear import (
    HuberGradients,
    LinearRegressionGradients,
    LogisticGradients,
    SoftmaxGradients,
)
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.toys_of_training import bounded, cross_entropy, zeros

NUM, INPUTS, CLASSES = 14, 25, 4

NO_EXAMPLES = sparse.csr_matrix((0, 1)), np.zeros(0, np.int64)
logistic_residual = LogisticGradients(*NO_EXAMPLES).residual
one_vs_all_residual = LogisticGradients(*NO_EXAMPLES, 2).residual
softmax_residual = SoftmaxGradients(*NO_EXAMPLES, 2).residual


def huber_residual(width):
    return HuberGradients(*NO_EXAMPLES, width).residual


def at_zero(kind, x, y, classes=2):
    """A model of inputs and labels, and its params, which are zero."""
    width = x.shape[1]
    match kind:
        case "logistic":
            return LogisticGradients(sparse.csr_matrix(x), y), zeros(weight=width, bias=1)
        case "regression":
            return LinearRegressionGradients(to_dense(x), y), zeros(weight=width)
        case "module":
            params = zeros(weight=(classes, width), bias=classes)
            module = nn.Linear(width, classes)
            return ModuleGradients(module, cross_entropy, to_dense(x), y), params
    make = SoftmaxGradients if kind == "softmax" else LogisticGradients
    params = zeros(kernel=(width, classes), bias=classes)
    return make(sparse.csr_matrix(x), y, classes), params


def to_dense(x):
    return x.toarray() if sparse.issparse(x) else x


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
        start = at_zero(kind, self.csr, np.zeros(num, np.int64), CLASSES)[1]
        self.shapes = {name: array.shape for name, array in start.items()}
        self.params = {n: rng.normal(size=s).astype(np.float32) for n, s in self.shapes.items()}
        if kind == "logistic":
            self.y = rng.integers(0, 2, num)
        elif kind in ("softmax", "one-vs-all"):
            self.y = rng.integers(0, CLASSES, num)
        else:
            self.y = rng.normal(size=num)
        self.made = self.make(self.csr)

    def make(self, csr):
        return at_zero(self.kind, csr, self.y, CLASSES)[0]

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
                p = np.exp(z) / np.exp(z).sum() if self.kind == "softmax" else 1 / (1 + np.exp(-z))
                p[label] -= 1
                yield {"kernel": -np.outer(row, p), "bias": -p}

    def random(self, low, high, *, full):
        """float32 arrays by name: of all coordinates, or one a row."""
        out = {}
        for name, shape in self.shapes.items():
            shape = shape if full else (shape[0], *(1 for _ in shape[1:]))
            out[name] = self.rng.uniform(low, high, shape).astype(np.float32)
        return out


KINDS = ("logistic", "softmax", "one-vs-all", "regression")
every_kind = pytest.mark.parametrize("kind", KINDS)


def oracle(updates, groups, bound, context=NO_CONTEXT):
    updates = list(updates)
    total = {name: np.zeros(array.shape) for name, array in updates[0].items()}
    for group in groups:
        mean = {n: sum(updates[i][n] for i in group) / len(group) for n in total}
        for name, array in bounded(bound, mean, context).items():
            total[name] = total[name] + array
    return total


def close(found, expected, tolerance=1e-6):
    assert set(found) == set(expected)
    norm = math.sqrt(sum((a**2).sum() for a in expected.values()))
    for name, array in expected.items():
        assert found[name].shape == array.shape and found[name].dtype == np.float64
        np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance * max(norm, 1e-3))


def preconditioned(case, shape, mixed):
    multiplier = {} if shape is None else case.random(0.2, 5.0, full=shape == "full")
    if shape == "matrix alone":
        multiplier.pop("bias", None)
    mixture = Mixture(own=0.9, offset=case.random(-0.3, 0.3, full=True)) if mixed else None
    return Context(multiplier=multiplier, mixture=mixture)
