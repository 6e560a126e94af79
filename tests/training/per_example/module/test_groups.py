"""Groups of examples contribute their bounded means; empty and spoilt ones contribute zero."""

import logging

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.mechanisms.bounds import Clip, Unbounded
from tests.harness.combinations import each_once
from tests.harness.toys_of_training import KEY, bounded, distance, example_sum, gap
from tests.training.per_example.module.models import (
    EVERYBODY,
    MODELS,
    bounds_of,
    built,
    preconditioned,
)


@pytest.mark.parametrize("way", ["factors", "vmap", "loop"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_contributes_zero_alone(way, bad, caplog):
    gradients, params = built("mlp", way=way)
    bound, said = Clip(l2_clip_norm=0.7), preconditioned(params)
    gradients._x[3] = bad
    if overflows := bad == 3e38:  # finite inputs, saturated layers: only the products overflow
        params = {n: p * np.float32(1e20) for n, p in params.items()}
    with caplog.at_level(logging.WARNING):
        found = example_sum(gradients, params, EVERYBODY, bound, context=said)
    assert all(np.isfinite(a).all() for a in found.values())
    expected = example_sum(gradients, params, np.delete(EVERYBODY, 3), bound, context=said)
    if overflows and not caplog.records:
        # Some processors' products of several rows are infinite where others' are NaN: then the
        # saturated layers have a gradient, which is bounded as any other.
        assert distance(found, expected) <= 0.7 * (1 + 1e-6)
        return
    assert gap(found, expected) < 1e-6
    [message] = {r.getMessage() for r in caplog.records}
    assert message.startswith("a user contributes zero: NotFiniteError")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way", "chunk"),
    each_once(
        [pytest.param(n, marks=pytest.mark.slow if n == "resnet" else ()) for n in MODELS],
        ["factors", "vmap"],
        [None, 2],
        also=lambda name, way, chunk: (
            name == "softmax regression" or (name, way, chunk) == ("resnet", "factors", "None")
        ),
    ),
)
def test_groups_contribute_their_bounded_means(name, way, chunk):
    gradients, params = built(name, way=way, chunk=chunk, drops=False)
    groups = [np.array(g) for g in ([5, 1, 2], [0], [3, 4], [6, 7, 8, 9, 10])]
    totals = [example_sum(gradients, params, group, Unbounded(), KEY) for group in groups]
    for bound, said in bounds_of(params):
        expected = tree.zeros(params)
        for group, total in zip(groups, totals, strict=True):
            mean = {n: (a / len(group)).astype(np.float32) for n, a in total.items()}
            for n, a in bounded(bound, mean, said).items():
                expected[n] += a
        found = example_sum(gradients, params, groups, bound, KEY, context=said)
        assert gap(found, expected) < 1e-5, bound
