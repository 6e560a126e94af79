"""DP-FTRL as a server optimiser: where it is after every step, written out."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv import optimizers

STEPS = np.random.default_rng(2).normal(size=(11, 5)).astype(np.float32)


def followed(transform):
    """Return θ_t - θ_0 after each step, `(11, 5)`."""
    at = np.zeros(5, np.float32)
    state, found = transform.init({"w": at}), []
    for step in STEPS:
        moved, state = transform.next({"w": step.copy()}, state)
        at = at + moved["w"]
        found.append(at)
    return np.array(found)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_restarts_it_is_classic_momentum(momentum):
    classic = followed(optimizers.momentum(0.3, momentum, ema=False))
    np.testing.assert_allclose(followed(optimizers.ftrl(0.3, momentum)), classic, atol=5e-6)


def test_a_restart_begins_where_it_is_with_sums_of_zero():
    found = followed(optimizers.ftrl(0.3, 0.9, restart=4))
    velocity, summed, start = np.zeros(5), np.zeros(5), np.zeros(5)
    for number, step in enumerate(STEPS):
        if number and number % 4 == 0:
            start, velocity, summed = start + 0.3 * velocity, np.zeros(5), np.zeros(5)
        summed = summed + step
        velocity = 0.9 * velocity + summed
        np.testing.assert_allclose(found[number], start + 0.3 * velocity, atol=2e-6)
