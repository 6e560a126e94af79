"""Outer products of sparse rows, against dense NumPy."""

import numpy as np
import pytest
from scipy import sparse

from fedpriv.kernels import sparse_rows as kernels

ROWS, INPUTS = 9, 17
_rng = np.random.default_rng(3)
X = (_rng.normal(size=(ROWS, INPUTS)) * (_rng.random((ROWS, INPUTS)) < 0.4)).astype(np.float32)
X[4] = 0.0
NONE = np.zeros((0, 0), np.float32)
CHOSEN = np.array([8, 1, 4, 1, 0])
STARTS = np.array([0, 2, 3, 5])


def arrays():
    csr = sparse.csr_matrix(X)
    out = csr.indptr.astype(np.int64), csr.indices.astype(np.int32), csr.data
    for array in out:
        array.flags.writeable = False  # a view of a file
    return out


def multipliers(classes):
    return {
        "none": NONE,
        "rows": _rng.uniform(0.1, 9, (INPUTS, 1)).astype(np.float32),
        "full": _rng.uniform(0.1, 9, (INPUTS, classes)).astype(np.float32),
    }


def dense(multiplier):
    return multiplier.astype(np.float64) if multiplier.size else np.ones((1, 1))


def outer(coefficients):
    return [np.outer(X[i].astype(np.float64), c) for i, c in zip(CHOSEN, coefficients, strict=True)]


every_shape = pytest.mark.parametrize("shape", ["none", "rows", "full"])
every_width = pytest.mark.parametrize("classes", [1, 2, 5])


@every_width
def test_logits(classes):
    kernel = _rng.normal(size=(INPUTS, classes)).astype(np.float32)
    bias = _rng.normal(size=classes).astype(np.float32)
    found = kernels.logits(*arrays(), CHOSEN, kernel, bias)
    expected = X[CHOSEN].astype(np.float64) @ kernel.astype(np.float64) + bias
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@every_shape
@every_width
def test_norms_and_sum_of_outer_products(classes, shape):
    multiplier = multipliers(classes)[shape]
    coefficients = _rng.normal(size=(len(CHOSEN), classes))
    products = [update * dense(multiplier) for update in outer(coefficients)]
    squared = kernels.squared_norms(*arrays(), CHOSEN, coefficients, multiplier)
    np.testing.assert_allclose(squared, [(p**2).sum() for p in products], rtol=1e-12)
    total = np.ones((INPUTS, classes))
    kernels.add_outer(*arrays(), CHOSEN, coefficients, multiplier, total)
    np.testing.assert_allclose(total, 1 + sum(products), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shifted", [False, True])
@every_shape
@every_width
def test_groups(classes, shape, shifted):
    multiplier = multipliers(classes)[shape]
    coefficients = _rng.normal(size=(len(CHOSEN), classes))
    offset = _rng.normal(size=(INPUTS, classes)).astype(np.float32) if shifted else NONE
    factors = np.array([0.5, 0.0, 3.0])
    updates, total = outer(coefficients), np.ones((INPUTS, classes))
    whole, public = kernels.group_squared_norms(
        *arrays(), CHOSEN, STARTS, coefficients, offset, multiplier
    )
    kernels.add_groups(*arrays(), CHOSEN, STARTS, coefficients, factors, multiplier, total)
    expected = np.ones((INPUTS, classes))
    shift = offset.astype(np.float64) if shifted else np.zeros((INPUTS, classes))
    for group in range(3):
        members = range(STARTS[group], STARTS[group + 1])
        merged = sum(updates[i] for i in members)
        touched = np.any([X[CHOSEN[i]] != 0 for i in members], axis=0)[:, None]
        expected += factors[group] * merged * dense(multiplier)
        norm = (((merged + shift) * dense(multiplier) * touched) ** 2).sum()
        np.testing.assert_allclose(whole[group], norm, rtol=1e-12)
        own = ((shift * dense(multiplier) * touched) ** 2).sum()
        np.testing.assert_allclose(public[group], own, rtol=1e-12)
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-12)


@every_shape
@every_width
def test_offsets(classes, shape):
    multiplier = multipliers(classes)[shape]
    offset = _rng.normal(size=(INPUTS, classes)).astype(np.float32)
    product = offset.astype(np.float64) * dense(multiplier)
    found = kernels.squared_product(offset, multiplier)
    np.testing.assert_allclose(found, (product**2).sum(), rtol=1e-12)
    total = np.ones((INPUTS, classes))
    kernels.add_product(offset, multiplier, 2.5, total)
    np.testing.assert_allclose(total, 1 + 2.5 * product, rtol=1e-12, atol=1e-12)
