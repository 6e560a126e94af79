"""Optimisers step for step as the design notes have them, and schedules by their numbers."""

import numpy as np
import pytest

from fedpriv.optimizers import (
    Adagrad,
    Adam,
    Ftrl,
    Momentum,
    Rmsprop,
    Scheduled,
    Yogi,
    cyclic,
    inverse_root,
    stepwise,
)
from fedpriv.transform import Chain
from tests.laws.transforms.stepping import SHAPES, run, trees


class QuickAdam(Adam):
    second_decay = 0.95


class QuickYogi(Yogi):
    second_decay = 0.95


class QuickRmsprop(Rmsprop):
    second_decay = 0.8


class MomentumAdagrad(Adagrad):
    first_decay = 0.8


class TestGolden:
    """Vectors of the design notes, recomputed by hand in float64 there."""

    def sequence(self, transform, values):
        updates = [{"w": np.array(v, np.float32)} for v in values]
        return [
            out["w"]
            for out in run(transform, {"w": np.zeros(len(values[0]), np.float32)}, updates)[0]
        ]

    def test_server_momentum_classic(self):
        steps = self.sequence(Momentum(learning_rate=0.5), [[1.0], [1.0], [-1.0], [2.0]])
        np.testing.assert_allclose(np.ravel(steps), [0.5, 0.95, 0.355, 1.3195], rtol=1e-6)

    def test_dp_rmsprop(self):
        # The same gradients as DP-Adam's, α = .01, ε_s = 1e-5: u = g/(√v + ε_s), w = -α Σ u.
        steps = self.sequence(
            Rmsprop(learning_rate=0.01, adaptivity=1e-5), [[-0.2, 0.4], [-0.1, -0.3]]
        )
        np.testing.assert_allclose(steps[0] / -0.01, [3.161778, -3.162028], rtol=2e-6)
        np.testing.assert_allclose(steps[1] / -0.01, [1.474202, 1.961033], rtol=2e-6)
        np.testing.assert_allclose(sum(steps), [-0.04636, 0.01201], rtol=1e-4)

    @pytest.mark.parametrize(
        ("transform", "reference"),
        [
            (QuickAdam(learning_rate=0.3, adaptivity=1e-4, momentum=0.8), "adam"),
            (Adagrad(learning_rate=0.3, adaptivity=1e-2), "adagrad"),
            (MomentumAdagrad(learning_rate=0.3, adaptivity=1e-2), "adagrad with momentum"),
            (Momentum(momentum=0.8), "momentum"),
            (QuickRmsprop(learning_rate=0.3, adaptivity=1e-2), "rmsprop"),
            (QuickYogi(learning_rate=0.3, adaptivity=1e-2, momentum=0.8), "yogi"),
        ],
    )
    def test_equals_a_plain_float64_loop(self, transform, reference):
        """Reddi et al. 2021, Algorithm 2, but v starts at 0 and not at τ² or more."""
        params, *updates = trees(11, 12)
        outputs, _ = run(transform, params, updates)
        for name in SHAPES:
            m, v = np.zeros(SHAPES[name]), np.zeros(SHAPES[name])
            for t, (out, update) in enumerate(zip(outputs, updates, strict=True), 1):
                g = update[name].astype(np.float64)
                if reference == "adam":
                    m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
                    step = 0.3 * m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-4)
                elif reference.startswith("adagrad"):
                    m, v = 0.8 * m + 0.2 * g, v + g**2
                    step = 0.3 * (m if "momentum" in reference else g) / (np.sqrt(v) + 1e-2)
                elif reference == "momentum":  # FedAvgM of Hsu et al. 2019
                    m = 0.8 * m + g
                    step = m
                elif reference == "rmsprop":
                    v = 0.8 * v + 0.2 * g**2
                    step = 0.3 * g / (np.sqrt(v) + 1e-2)
                else:
                    m = 0.8 * m + 0.2 * g
                    v = v - 0.05 * g**2 * np.sign(v - g**2)
                    step = 0.3 * m / (np.sqrt(v) + 1e-2)
                np.testing.assert_allclose(out[name], step, rtol=2e-4, atol=1e-6)


class TestSchedules:
    """Factors are of the step's number, from 1, whatever the step is."""

    def factors(self, factor, number):
        params, *_ = trees(0, 1)
        ones = [{n: np.ones_like(t) for n, t in params.items()} for _ in range(number)]
        return [float(out["bias"][0]) for out in run(Scheduled(factor=factor), params, ones)[0]]

    def test_the_first_step_is_number_one(self):
        asked = []
        self.factors(lambda step: asked.append(step) or 1.0, 3)
        assert asked == [1, 2, 3]

    def test_all_tensors_of_a_step_get_its_factor(self):
        params, *updates = trees(1, 3)
        for t, out in enumerate(run(Scheduled(factor=inverse_root()), params, updates)[0], 1):
            for name, update in updates[t - 1].items():
                np.testing.assert_allclose(out[name], update / np.sqrt(t), rtol=1e-6)

    def test_a_factor_scales_the_step_of_the_optimiser_before_it(self):
        params, *updates = trees(2, 5)
        adam, schedule = Adam(learning_rate=0.1), Scheduled(factor=stepwise(4))
        plain = run(adam, params, updates)[0]
        found = run(Chain(transforms=(adam, schedule)), params, updates)[0]
        for t, (one, other) in enumerate(zip(plain, found, strict=True), 1):
            by = stepwise(4)(t)
            np.testing.assert_allclose(other["bias"], one["bias"] * by, rtol=1e-6)

    def test_stepwise(self):
        found = self.factors(stepwise(8), 10)
        np.testing.assert_allclose(found, [1] * 4 + [0.1] * 2 + [0.01] * 4, rtol=1e-6)
        found = self.factors(stepwise(3, share=0.5, at=(1 / 3,)), 3)
        np.testing.assert_allclose(found, [1, 0.5, 0.5])

    def test_cyclic_is_one_triangle(self):
        found = self.factors(cyclic(9, lowest=0.2), 9)
        np.testing.assert_allclose(found, [0.2, 0.4, 0.6, 0.8, 1, 0.8, 0.6, 0.4, 0.2], rtol=1e-6)
        assert self.factors(cyclic(1, lowest=0.2), 1) == [pytest.approx(0.2)]
        assert max(self.factors(cyclic(10), 10)) <= 1 and min(self.factors(cyclic(10), 10)) > 0

    def test_inverse_root(self):
        np.testing.assert_allclose(
            self.factors(inverse_root(), 4), [1, 1 / np.sqrt(2), 1 / np.sqrt(3), 0.5], rtol=1e-6
        )


@pytest.mark.parametrize("part", [Adam, Yogi, Adagrad])
def test_the_options_have_the_papers_settings(part):
    """β₁ = 0.9; FedAdagrad without momentum."""
    made = part()
    assert getattr(made, "momentum", 0.9) == 0.9
    assert hasattr(made, "momentum") == (part is not Adagrad)


STEPS = np.random.default_rng(2).normal(size=(11, 5)).astype(np.float32)


def followed(transform):
    """Return θ_t - θ_0 after each step, `(11, 5)`."""
    steps, _ = run(transform, {"w": np.zeros(5, np.float32)}, [{"w": step} for step in STEPS])
    return np.cumsum([step["w"] for step in steps], axis=0)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_ftrl_without_restarts_is_classic_momentum(beta):
    classic = followed(Momentum(learning_rate=0.3, momentum=beta))
    np.testing.assert_allclose(followed(Ftrl(learning_rate=0.3, momentum=beta)), classic, atol=5e-6)


def test_a_restart_of_ftrl_begins_where_it_is_with_sums_of_zero():
    found = followed(Ftrl(learning_rate=0.3, restart=4))
    velocity, summed, start = np.zeros(5), np.zeros(5), np.zeros(5)
    for number, step in enumerate(STEPS):
        if number and number % 4 == 0:
            start, velocity, summed = start + 0.3 * velocity, np.zeros(5), np.zeros(5)
        summed = summed + step
        velocity = 0.9 * velocity + summed
        np.testing.assert_allclose(found[number], start + 0.3 * velocity, atol=2e-6)
