"""A preconditioner taken through rounds, and public gradients for it."""

import numpy as np

from fedpriv.rng import Key

KEY = Key.simulation(0)
PUBLIC = [np.array(g, np.float32) for g in ([1, 0.1], [2, 0], [0, 0.2])]
PARAMS = {"w": np.zeros(2, np.float32)}


def close(found, expected, rtol=3e-6):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-7)


def gradients(vectors):
    """Public gradients as written, whatever the params and key; counts how often it is asked."""
    left = iter(vectors)
    return lambda params, key: {"w": next(left)}


def rounds(preconditioner, number, params=PARAMS, means=None):
    """The contexts of the first rounds, with released means of zero or as given."""
    state, out = preconditioner.init(params), []
    for round_num in range(1, number + 1):
        context, state = preconditioner.begin(params, state, round_num, KEY.fold(round_num))
        mean = means[round_num - 1] if means else {n: np.zeros_like(a) for n, a in params.items()}
        state = preconditioner.end(mean, state)
        out.append(context)
    return out
