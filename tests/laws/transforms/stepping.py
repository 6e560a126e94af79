"""Synthetic updates, and a transform stepped through them."""

import numpy as np

from fedpriv.transform import Transform

SHAPES = {"kernel": (4, 3), "bias": (3,), "layer.0/weight": (2, 1, 2)}


def trees(seed, number):
    rng = np.random.default_rng(seed)
    return [
        {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()} for _ in range(number)
    ]


def copied(value):
    if isinstance(value, dict):
        return {name: copied(inner) for name, inner in value.items()}
    return np.array(value)


def run(transform: Transform, params, updates, copies=True):
    """All outputs and the last state; arguments are given up, as in a real run, or copied."""
    state = transform.init(copied(params))
    outputs = []
    for update in updates:
        given = (copied(update), copied(state) if copies else state)
        out, state = transform.next(*given)
        outputs.append(copied(out))
    return outputs, state
