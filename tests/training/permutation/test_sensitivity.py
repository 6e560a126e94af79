"""How far permutation SGD moves: the reference's numbers, measured distances, extremal examples."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedpriv.mechanisms.event import Relation
from fedpriv.rng import Key
from fedpriv.training.bolt_on import BoltOnUsers, output_noise, plan_of_release
from fedpriv.training.convex_losses import Constants
from fedpriv.training.permutation_sgd import Passes, loss_constants
from fedpriv.training.step_schedules import (
    ConstantStep,
    DecreasingStep,
    PowerStep,
    SquareRootStep,
    StronglyConvexStep,
)
from tests.harness.combinations import each_once
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import distance, linear_sgd, zeros
from tests.training.per_example.linear.case import (
    huber_residual,
    logistic_residual,
    one_vs_all_residual,
    softmax_residual,
)
from tests.training.permutation.test_starts import Longest

KEY = Key.simulation(5)
QUARTER = Constants(name="toy", lipschitz=1.0, smoothness=0.25)


def replaced(schedule, *, m, k, b=1, constants=QUARTER):
    """Δ₂ as the literature has it: of an example that is replaced, so twice ours."""
    passes = Passes(passes=k, batch_size=b, schedule=schedule)
    return 2 * passes.displacement(constants, m)


def test_an_example_of_a_batch_that_is_not_full_counts_as_any_other():
    """Of five examples in batches of four the last is alone: its gradient is divided by four.

    At params of zero a logistic loss has the derivative 1/2, of an input 1 and a bias, shortened
    to length 1 together; its own number of examples would move the result four times as far.
    """
    passes = Passes(batch_size=4, schedule=ConstantStep(rate=1.0), last_batch="divided")
    x = np.zeros((5, 1), np.float32)
    last = passes.orders(5, KEY.fold("order"))[0][-1]
    present = np.arange(5) == last
    x[last] = 1.0
    made = linear_sgd(x, np.ones(5), there=present, name="w", residual=logistic_residual,
                      constants=loss_constants("logistic"), passes=passes)  # fmt: skip
    found = made.trained(zeros(w=(1, 1), bias=1), KEY.fold("order"))
    moved = float(np.hypot(found["w"], found["bias"]).item())
    assert moved == pytest.approx(0.5 / 4, rel=1e-6)
    assert moved <= passes.displacement(made.constants, 5)


class TestNumbers:
    def test_a_constant_step(self):
        constant = ConstantStep(rate=0.01)
        assert replaced(constant, m=100, k=10) == pytest.approx(0.2)
        assert replaced(constant, m=100, k=10, b=50) == pytest.approx(0.004)

    def test_strong_convexity(self):
        """L = 2, γ = .01, m = 1000: 2L/γm = .4, and a constant .1 comes to .632607 in the limit."""
        made = Constants(name="toy", lipschitz=2.0, smoothness=1.0, convexity=0.01)
        shrinking = StronglyConvexStep()
        for k, b, least in ((1, 1, 0.399), (10, 1, 0.399), (10, 10, 0.399), (5, 50, 0.25)):
            found = replaced(shrinking, m=1000, k=k, b=b, constants=made)
            # No closed form knows of steps that are still held at 1/β: five passes of 20 are.
            assert least <= found <= 0.4 * (1 + 1e-12)
        constant = ConstantStep(rate=0.1)
        found = [replaced(constant, m=1000, k=k, constants=made) for k in (1, 5, 40)]
        assert found == sorted(found) and found[-1] == pytest.approx(0.632607, abs=1e-6)
        assert found[-1] <= 0.632607 + 5e-7

    def test_users(self):
        """K = 3, b = 10, m = 100, k = 5, η = .05 on linear losses: .15."""
        passes = Passes(passes=5, batch_size=10, schedule=ConstantStep(rate=0.05))
        algorithm = BoltOnUsers(passes=passes, constants=QUARTER, local_steps=3)
        assert 2 * algorithm.sensitivity(100) == pytest.approx(0.15, rel=2e-3)
        halved = replace(algorithm, server_rate=0.5)
        assert 2 * halved.sensitivity(100) == pytest.approx(0.075, rel=2e-3)
        raw = Longest(100)
        algorithm._trained(zeros(w=1), raw)
        assert raw.first == pytest.approx(0.15)  # K η L₀, the longest update that is let through


def sgd_of(x, y, passes, *, model="logistic", constants=None, **more):
    make, residual, _ = MODELS[model]
    made = make() if constants is None else constants
    return linear_sgd(x, y, name="weight", residual=residual, constants=made, passes=passes, **more)


def at_zero(d, k=None):
    return zeros(weight=d if k is None else (d, k), bias=k or 1)


def far_apart(number, width=2):
    """Inputs of which the first is at right angles to the others, all to be shortened."""
    x = np.zeros((number, width))
    x[0, 0] = 1e6
    x[1:, 1] = 1e6
    return x


def test_examples_of_the_models_come_near():
    """A pass of logistic steps along one input: 90 % of the bound where no loss saturates."""
    m = 40
    passes = Passes(passes=2, batch_size=4, schedule=ConstantStep(rate=0.02))
    x, bound = far_apart(m, 3), passes.displacement(loss_constants("logistic"), m)
    y = np.tile([0, 1], m // 2)
    ends = []
    for label in (0, 1):
        y[0] = label
        ends.append(sgd_of(x, y, passes).trained(at_zero(3), KEY))
    # A logistic gradient at 0 is half of its limit, which only a far start comes near.
    assert 0.48 * 2 * bound <= distance(*ends) <= 2 * bound
    far = at_zero(3) | {"weight": np.array([-40.0, 0, 0], np.float32)}
    there, gone = (sgd_of(x, y, passes, there=np.arange(m) >= first) for first in (0, 1))
    assert 0.9 * bound <= distance(there.trained(far, KEY), gone.trained(far, KEY)) <= bound


MODELS = {
    "logistic": (partial(loss_constants, "logistic"), logistic_residual, None),
    "huber": (partial(loss_constants, "huber-svm"), huber_residual(0.1), None),
    "softmax": (partial(loss_constants, "softmax"), softmax_residual, 3),
    "one-vs-all": (partial(loss_constants, "one-vs-all", num_classes=4), one_vs_all_residual, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "regulariser", "kind"),
    each_once(
        [
            *itertools.product(
                [ConstantStep, PowerStep, DecreasingStep, SquareRootStep], [0.0, 0.05]
            ),
            (StronglyConvexStep, 0.05),
        ],
        MODELS.keys(),
    ),
)
def test_measured_distances_never_pass_the_bound(kind, schedule, regulariser):
    """Random data, adversarial data, projections, averages, batches: one example there or not,
    or another in its place."""
    make, _, k = MODELS[kind]
    made = make(regulariser=regulariser)
    rng = np.random.default_rng(7)
    for case in range(12):
        m, d = int(rng.integers(12, 40)), int(rng.integers(1, 6))
        rate = {}
        if issubclass(schedule, ConstantStep):
            rate = {"rate": float(rng.uniform(0.1, 1.0)) / made.smoothness}
        passes = Passes(
            passes=int(rng.integers(1, 5)),
            batch_size=int(rng.integers(1, 7)),
            schedule=schedule(**rate),
            radius=float(rng.uniform(0.5, 5)) if case % 3 == 0 else None,
            average=case % 4 == 0,
            reshuffled=case % 2 == 0,
        )
        x = rng.normal(size=(m, d)) * 10.0 ** rng.uniform(-1, 3)
        y = rng.integers(0, k or 2, m)
        sgd = partial(sgd_of, passes=passes, model=kind, constants=made)
        key, start = KEY.fold(case), at_zero(d, k)
        here = sgd(x, y).trained(start, key)
        bound = passes.sensitivity(made, m)
        for who in range(0, m, 3):
            gone = sgd(x, y, there=np.arange(m) != who)
            assert distance(here, gone.trained(start, key)) <= bound
            others = y.copy()
            others[who] = (others[who] + 1) % (k or 2)
            elsewhere = x.copy()
            elsewhere[who] *= -1
            moved = sgd(elsewhere, others)
            assert distance(here, moved.trained(start, key)) <= 2 * bound


def test_one_vs_all_moves_as_far_as_it_says():
    """A row that is wrong for all ten classes: 90 % of √10 L₀, which no single class explains."""
    passes = Passes(passes=1, batch_size=1, schedule=ConstantStep(rate=0.02))
    made, m, k = loss_constants("one-vs-all", num_classes=10), 12, 10
    start = at_zero(2, k)
    start["weight"][0] = 40.0  # every logit of the row is high
    start["weight"][0, 0] = -40.0  # but for that of its own class
    y = np.zeros(m, int)
    ends = (
        sgd_of(far_apart(m), y, passes, model="one-vs-all", constants=made,
               there=np.arange(m) >= first).trained(start, KEY)
        for first in (0, 1)
    )  # fmt: skip
    moved = distance(*ends)
    bound = passes.displacement(made, m)
    assert 0.9 * bound <= moved <= bound
    assert moved > 3 * passes.displacement(loss_constants("logistic"), m)


class TestRefusals:
    def test_steps_that_are_too_long(self):
        for rate, made, limit in (
            (8.1, QUARTER, "2/β"),
            (1.1, loss_constants("logistic", regulariser=0.75), "1/β"),
        ):
            with refuses(ValueError, limit):
                ConstantStep(rate=rate).rates(10, constants=made, num_examples=10)
        ConstantStep(rate=8.0).rates(10, constants=QUARTER, num_examples=10)


@pytest.mark.parametrize("delta", [None, 1e-5])
@pytest.mark.parametrize("relation", Relation)
def test_the_noise_of_a_release_costs_the_target(relation, delta):
    """Under "zero-out" a user moves the result as one who is there or not; replaced, twice as far.

    The loss of sphere noise, of density exp(-‖z‖ / scale), between results that are `moved` Δ apart
    is at most `moved` Δ / scale.
    """
    sensitivity, target = 0.25, 1.5
    noise = output_noise(target, delta, relation)
    plan = plan_of_release(400, sensitivity, noise, relation=relation, delta=delta)
    assert plan.total().value == pytest.approx(target, rel=1e-3) and plan.total().value <= target
    if delta is None:
        moved = 2.0 if relation is Relation.REPLACE_ONE else 1.0
        assert moved * noise.epsilon == pytest.approx(target)
