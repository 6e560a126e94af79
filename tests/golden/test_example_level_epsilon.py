"""ε of centralised plans, to the digits that were computed when the papers were read."""

from __future__ import annotations

import pytest

from tests.privacy import costing


def plan(num_examples, batch, steps, sigma, delta, **changes):
    return costing.plan(
        num_users=num_examples, expected_cohort_size=batch, num_rounds=steps, delta=delta,
        noise_multiplier=sigma, bound="normalise", unit="example", **changes,
    )  # fmt: skip


# q = 0.02, 5,000 steps, δ = 1e-5: σ, ε by RDP, ε by PLD.
DP_NSGD = [
    (0.7, 23.503, 21.630),
    (0.8, 16.681, 15.310),
    (0.9, 12.684, 11.682),
    (1.0, 10.186, 9.403),
    (1.1, 8.515, 7.862),
    (1.2, 7.318, 6.758),
    (1.5, 5.165, 4.767),
    (2.0, 3.483, 3.211),
    (3.0, 2.115, 1.947),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "rdp", "pld"), DP_NSGD)
def test_dp_nsgd_in_poisson_batches(sigma, rdp, pld):
    spent = plan(50_000, 1_000, 5_000, sigma, 1e-5).epsilon(5_000)
    assert spent.rdp == pytest.approx(rdp, abs=6e-4)
    # Both are upper bounds; ours is taken on a finer grid, which can only be tighter.
    assert pld * (1 - 2.5e-3) <= spent.value <= pld + 6e-4
    assert (spent.relation.value, spent.unit, spent.accountant) == ("add-remove", "example", "PLD")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "epsilon"),
    [(1.5, 33.74), (2.0, 20.99), (3.0, 11.65)],
)
def test_dp_nsgd_as_the_paper_counts_in_fixed_batches_and_replace_one(sigma, epsilon):
    """Replacing an example moves the sum by 2, so its noise multiplier counts half."""
    planned = plan(50_000, 1_000, 5_000, sigma, 1e-5, sampling="fixed", relation="replace-one")
    spent = planned.epsilon(5_000)
    assert spent.value == pytest.approx(epsilon, abs=6e-3)
    assert (spent.relation.value, spent.accountant) == ("replace-one", "RDP")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_examples", "batch", "steps", "sigma", "delta", "rdp"),
    [
        pytest.param(25_000, 64, 12_500, 1.0, 4e-5, 1.512, id="AdaDPS, IMDB, 32 epochs"),
        pytest.param(25_000, 64, 39_063, 1.0, 4e-5, 2.806, id="AdaDPS, IMDB, 100 epochs"),
        pytest.param(60_000, 64, 75_000, 1.0, 1 / 60_000, 1.594, id="AdaDPS, MNIST"),
        pytest.param(60_000, 64, 75_000, 0.75, 1 / 60_000, 3.005, id="AdaDPS, MNIST, σ 0.75"),
        pytest.param(25_000, 64, 12_500, 0.5, 4e-5, 12.7, id="IMDB in micro-batches"),
        pytest.param(60_000, 64, 75_000, 0.5, 1 / 60_000, 13.2, id="MNIST in micro-batches"),
        pytest.param(1_000, 8, 2_250, 0.7, 1e-3, 4.127, id="AdaDPS, toy"),
        pytest.param(67_349, 1_000, 680, 0.6558, 1e-5, 8.0, id="SST-2, ε 8"),
        pytest.param(67_349, 1_000, 680, 0.8429, 1e-5, 4.0, id="SST-2, ε 4"),
        pytest.param(67_349, 1_000, 680, 1.1457, 1e-5, 2.0, id="SST-2, ε 2"),
    ],
)
def test_other_setups_by_rdp(num_examples, batch, steps, sigma, delta, rdp):
    spent = plan(num_examples, batch, steps, sigma, delta).epsilon(steps)
    assert spent.rdp == pytest.approx(rdp, rel=4e-3)
    assert spent.value < spent.rdp
