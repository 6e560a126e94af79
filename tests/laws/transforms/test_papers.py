"""Server optimisers against the papers' own lines, in float64.

Reddi et al. 2021, Algorithm 2: m_t = β₁m_{t-1} + (1-β₁)Δ_t, v_t as below, x_{t+1} = x_t +
η m_t/(√v_t + τ). The paper starts v at τ² or more, and corrects nothing; ours starts it at 0, and
`adam` divides m and v by 1-β^t. Hsu et al. 2019, FedAvgM: v <- βv + Δ, x <- x + v.
"""

import numpy as np
import pytest

from fedpriv.experiments.optimizers import (
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerSgd,
    ServerYogi,
)
from fedpriv.optimizers import adagrad, adam, yogi
from tests.laws.transforms.stepping import run

TAU, ETA, BETA1, BETA2 = 1e-2, 0.3, 0.9, 0.99
UPDATES = [np.random.default_rng(n).normal(size=6) for n in range(8)]


def algorithm_2(second, *, beta1=BETA1, before=0.0):
    m, v, x, path = 0.0, np.full(6, before), np.zeros(6), []
    for delta in UPDATES:
        m = beta1 * m + (1 - beta1) * delta
        v = second(v, delta)
        x = x + ETA * m / (np.sqrt(v) + TAU)
        path.append(x)
    return path


def where(transform, gains=lambda t: 1.0):
    given = [{"w": delta.astype(np.float32)} for delta in UPDATES]
    steps, _ = run(transform, {"w": np.zeros(6, np.float32)}, given)
    return np.cumsum([gains(t) * out["w"] for t, out in enumerate(steps, 1)], axis=0)


def fedyogi(v, delta):
    return v - (1 - BETA2) * delta**2 * np.sign(v - delta**2)


def test_fedyogi():
    found = where(yogi(ETA, TAU, beta1=BETA1, beta2=BETA2))
    np.testing.assert_allclose(found, algorithm_2(fedyogi), rtol=2e-4)


@pytest.mark.parametrize("beta1", [0.0, BETA1])
def test_fedadagrad(beta1):
    found = where(adagrad(ETA, TAU, beta1=beta1))
    expected = algorithm_2(lambda v, delta: v + delta**2, beta1=beta1)
    np.testing.assert_allclose(found, expected, rtol=2e-4)


def test_fedadam_but_for_the_correction_of_its_start():
    """With adaptivity τ √(1-β₂^t) its step is the paper's times √(1-β₂^t)/(1-β₁^t)."""

    def corrected(t):
        return np.sqrt(1 - BETA2**t) / (1 - BETA1**t)

    m, v, x, path = 0.0, np.zeros(6), np.zeros(6), []
    for t, delta in enumerate(UPDATES, 1):
        m = BETA1 * m + (1 - BETA1) * delta
        v = BETA2 * v + (1 - BETA2) * delta**2
        x = x + ETA * corrected(t) * m / (np.sqrt(v) + TAU * np.sqrt(1 - BETA2**t))
        path.append(x)
    np.testing.assert_allclose(where(adam(ETA, TAU, beta1=BETA1, beta2=BETA2)), path, rtol=2e-4)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_fedavgm(beta):
    v, x, path = 0.0, np.zeros(6), []
    for delta in UPDATES:
        v = beta * v + delta
        x = x + v
        path.append(x)
    found = where(ServerMomentum(momentum=beta).make())
    np.testing.assert_allclose(found, path, rtol=1e-5)
    if beta == 0.0:
        np.testing.assert_array_equal(found, where(ServerSgd().make()))


@pytest.mark.parametrize("part", [ServerAdam, ServerYogi, ServerAdagrad])
def test_the_options_have_the_papers_settings(part):
    """τ = 1e-3 and β₁ = 0.9; FedAdagrad without momentum."""
    made = part()
    assert made.adaptivity == 1e-3 and getattr(made, "momentum", 0.9) == 0.9
    assert hasattr(made, "momentum") == (part is not ServerAdagrad)
