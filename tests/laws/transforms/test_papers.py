"""Server optimisers against the papers' own lines, in float64.

Reddi et al. 2021, Algorithm 2: m_t = β₁m_{t-1} + (1-β₁)Δ_t, v_t as below, x_{t+1} = x_t +
η m_t/(√v_t + τ); the paper starts v at τ² or more, ours at 0. Hsu et al. 2019, FedAvgM:
v <- βv + Δ, x <- x + v. The others are in `test_vectors`.
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
from fedpriv.optimizers import adagrad
from tests.laws.transforms.stepping import run

TAU, ETA, BETA1 = 1e-2, 0.3, 0.9
UPDATES = [np.random.default_rng(n).normal(size=6) for n in range(8)]


def where(transform):
    given = [{"w": delta.astype(np.float32)} for delta in UPDATES]
    steps, _ = run(transform, {"w": np.zeros(6, np.float32)}, given)
    return np.cumsum([out["w"] for out in steps], axis=0)


def test_fedadagrad_with_momentum():
    m, v, x, path = 0.0, np.zeros(6), np.zeros(6), []
    for delta in UPDATES:
        m = BETA1 * m + (1 - BETA1) * delta
        v = v + delta**2
        x = x + ETA * m / (np.sqrt(v) + TAU)
        path.append(x)
    np.testing.assert_allclose(where(adagrad(ETA, TAU, beta1=BETA1)), path, rtol=2e-4)


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
