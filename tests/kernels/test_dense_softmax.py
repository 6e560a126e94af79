"""The fused training of one user on dense rows: its loops, and what it refuses.

Its steps against a plain loop: `tests/tasks/test_encoded_tags.py`.
"""

import numpy as np
import pytest

from fedpriv.kernels.dense_softmax import train

NONE = np.empty(0, np.float32)


def trained(number, width, classes, examples, **changes):
    """Call the kernel on a drawn user who takes two steps; return its arguments and its update."""
    rng = np.random.default_rng(number + 10 * width)
    arguments = {
        "x": rng.normal(size=(number, width)).astype(np.float32),
        "place": rng.integers(0, number, examples),
        "labels": rng.integers(0, classes, examples),
        "order": rng.permutation(examples),
        "starts": np.array([0, examples // 2, examples]),
        "kernel": rng.normal(size=(width, classes)).astype(np.float32),
        "multiplier": NONE,
        "learning_rate": 0.7,
        "pull": 0.25,
    } | changes
    return arguments, *train(*arguments.values())


@pytest.mark.parametrize(("number", "width"), [(1, 1), (1, 8), (2, 5), (3, 4), (4, 7), (9, 30)])
def test_steps_are_those_of_products(number, width):
    """Also where a width is no multiple of four."""
    given, change, unsound = trained(number, width, 6, 10)
    x, kernel = given["x"].astype(np.float64), given["kernel"].astype(np.float64)
    for first, last in ((0, 5), (5, 10)):
        batch = given["order"][first:last]
        rows, labels = x[given["place"][batch]], given["labels"][batch]
        logits = rows @ kernel
        residual = np.exp(logits - logits.max(axis=1, keepdims=True))
        residual /= residual.sum(axis=1, keepdims=True)
        residual[np.arange(len(batch)), labels] -= 1.0
        pulled = kernel - 0.25 * (kernel - given["kernel"])
        kernel = pulled - 0.7 / len(batch) * rows.T @ residual
    assert unsound == 0
    np.testing.assert_allclose(change, kernel - given["kernel"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "changes",
    [{"kernel": np.zeros((6, 3), np.float32)}, {"starts": np.array([0, 2, 2])}],
    ids=["a row too many", "a step without examples"],
)
def test_other_arrays_are_refused(changes):
    with pytest.raises(ValueError):
        trained(2, 5, 3, 4, **changes)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_logit_that_is_not_finite_is_told(bad):
    x = np.full((1, 4), bad, np.float32)
    assert trained(1, 4, 3, 2, x=x)[-1] != 0
