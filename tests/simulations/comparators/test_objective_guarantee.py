"""What a perturbed objective spends, by integrals of the densities of its exact minimum."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from fedpriv.training.permutation_sgd import loss_constants
from simulations.linear_models.comparators import objective_perturbation
from tests.harness.exact_gaussian import gaussian_delta

WIDTH = 0.1


def made(epsilon, delta):
    return objective_perturbation(
        num_examples=40,
        num_params=1,
        epsilon=epsilon,
        delta=delta,
        constants=loss_constants("huber-svm", width=WIDTH),
    )


def densities(noise, strength, beta, offsets, *, gradient, curvature):
    """Log-densities of the exact minimum on a line, of D and of D with one row more.

    Of D is Σ∇ℓ = offset, whatever w: rows whose loss is straight there. The row that is added has
    the given gradient and curvature. Returns (grid step, log p of D, log p of D and the row).
    """
    w = np.linspace(-6.0, 6.0, 400_001)
    for offset in offsets:
        terms = -(offset + strength * w), -(offset + gradient(w) + strength * w)
        if noise.form == "sphere":
            logs = [-noise.inside * np.abs(b) + math.log(noise.inside / 2) for b in terms]
        else:
            logs = [stats.norm.logpdf(b, scale=noise.inside) for b in terms]
        logs[0] += math.log(strength)
        logs[1] += np.log(strength + curvature(w))
        yield w[1] - w[0], logs[0], logs[1]


def huber(w):
    """Gradient of one row of the label 1 and of length 1."""
    return -np.clip((1.0 + WIDTH - w) / (2.0 * WIDTH), 0.0, 1.0)


def bend(w):
    return np.where(np.abs(1.0 - w) <= WIDTH, 1.0 / (2.0 * WIDTH), 0.0)


class TestGuarantee:
    """The divergence of neighbours by integrals on a line; a 1-D problem is part of every one."""

    def spent(self, noise, strength, epsilon):
        """Return the largest δ over data sets and both directions."""
        worst = 0.0
        centres = np.linspace(-1.5, 1.5, 25)
        for step, here, there in densities(
            noise, strength, 5.0, -strength * centres, gradient=huber, curvature=bend
        ):
            for p, q in ((here, there), (there, here)):
                over = np.exp(p) - np.exp(epsilon + q)
                worst = max(worst, float(np.maximum(over, 0.0).sum() * step))
        return worst

    @pytest.mark.slow
    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    def test_gaussian(self, epsilon):
        delta = 1e-2
        method = made(epsilon, delta)
        noise, strength = method.algorithm.noise, method.algorithm.strength
        assert self.spent(noise, strength, epsilon - noise.outside) <= delta
        # Each of three errors spends more: half of the noise, no shift, and Λ that is too small.
        assert self.spent(replace(noise, inside=noise.inside / 2), strength, epsilon) > delta
        bare = optimize.brentq(lambda sigma: gaussian_delta(sigma, epsilon) - delta, 0.1, 50.0)
        assert self.spent(replace(noise, inside=bare), strength, epsilon) > delta
        assert self.spent(noise, strength / 30, epsilon) > delta

    def test_gaussian_without_a_bend_is_a_gaussian_mechanism(self):
        """Rows whose loss is straight spend all that the term pays for: the bound is not loose."""
        method = made(1.0, 1e-2)
        noise, strength = method.algorithm.noise, method.algorithm.strength
        left = 1.0 - noise.shift - noise.outside
        worst = 0.0
        for step, here, there in densities(
            noise, strength, 5.0, [0.0], gradient=lambda w: -1.0 + 0 * w, curvature=lambda w: 0 * w
        ):
            worst = float(np.maximum(np.exp(here) - np.exp(left + there), 0.0).sum() * step)
        assert 0.99e-2 <= worst <= 1e-2

    @pytest.mark.slow
    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    def test_pure(self, epsilon):
        method = made(epsilon, None)
        noise, strength = method.algorithm.noise, method.algorithm.strength
        worst = 0.0
        for _, here, there in densities(
            noise, strength, 5.0, -strength * np.linspace(-3, 3, 13), gradient=huber, curvature=bend
        ):
            worst = max(worst, float(np.abs(here - there).max()))
        assert worst <= epsilon - noise.outside
        assert worst >= 0.97 * (epsilon - noise.outside)
        assert worst > noise.inside  # who forgets the change of volume guarantees too much
