"""Test vectors of the design notes."""

import importlib

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.mechanisms import Clip, Normalise, Preconditioned
from fedpriv.optimizers import adam, momentum, rmsprop, sgd
from fedpriv.privacy.plan import cohort_plan
from fedpriv.rng import Key
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.work import as_work
from fedpriv.transform import identity
from tests.privacy.plans.clipped import clipped

# The package has a function of the module's name.
noise_module = importlib.import_module("fedpriv.mechanisms.gaussian")


class Written:
    """Users whose update is written down."""

    def __init__(self, vectors):
        self.vectors = [np.array(v, np.float32) for v in vectors]

    def examples(self, user_id):
        return self.vectors[int(user_id)]

    def train(self, params, examples, key):
        return {"w": examples}


def summed(bound, vectors):
    users = Written(vectors)
    result = as_work(users).partial_sum(
        params={"w": np.zeros(len(vectors[0]), np.float32)},
        bound=bound,
        data=users,
        user_ids=[str(i) for i in range(len(vectors))],
        key=Key.simulation(0),
    )
    assert result.num_failed == 0
    return result


def stepped(server, plan, state, total):
    """The state after the release of a sum."""
    drawn = plan.live_mechanism.draw(state.params, Key.simulation(0))
    return server.next(state, plan.live_mechanism.release(total, drawn))


def close(found, expected, rtol=2e-6, atol=6e-7):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


class TestVectors:
    g = np.array([3, 0.4, -0.02, 0], np.float32)
    a = np.array([3, 0.2, 0.01, 0.01])

    def precondition(self, floor, bound):
        multiplier = {"w": (1 / (self.a + floor)).astype(np.float32)}
        return Preconditioned(multiplier=multiplier, bound=bound).apply({"w": self.g})["w"]

    def test_precondition_then_clip(self):
        open_bound = Clip(l2_clip_norm=100.0)
        close(self.precondition(0.0, open_bound), [1, 2, -2, 0])
        close(self.precondition(0.0, Clip(l2_clip_norm=1.0)), [1 / 3, 2 / 3, -2 / 3, 0])
        close(self.precondition(1e-3, open_bound), [0.999667, 1.990050, -1.818182, 0])
        close(self.precondition(1e-3, Clip(l2_clip_norm=1.0)), [0.347715, 0.692200, -0.632419, 0])
        close(Clip(l2_clip_norm=1.0).apply({"w": self.g})["w"], [0.991206, 0.132161, -0.006608, 0])

    def test_one_step_of_two_users(self, monkeypatch):
        bound = Preconditioned(
            multiplier={"w": np.array([1 / 3, 5.0], np.float32)}, bound=Clip(l2_clip_norm=1.0)
        )
        total = summed(bound, [[-3, -0.4], [-0.3, 0.05]])  # updates are minus gradients
        close(total.real()["w"], [-0.547214, -0.644427])
        drawn = []

        def injected(key, template, stddev):
            drawn.append(stddev)
            return {"w": np.float32(stddev) * np.array([-0.1, 0.2], np.float32)}

        monkeypatch.setattr(noise_module, "gaussian", injected)
        plan = clipped(
            num_users=4,
            expected_cohort_size=2,
            num_rounds=1,
            l2_bound=bound.l2_bound,
            noise_multiplier=0.5,
            delta=0.1,
        )
        server = FederatedAveraging(optimizer=sgd(0.5), aggregate=identity())
        state = server.init({"w": np.zeros(2, np.float32)})
        state = stepped(server, plan, state, total)
        assert drawn == [0.5]
        close(state.params["w"], [-0.149303, -0.136107])
        close(state.update_norm, np.hypot(0.298607, 0.272214))

    def test_server_momentum_in_rounds(self):
        plan = cohort_plan(num_users=4, expected_cohort_size=1, num_rounds=4, delta=0.1)
        server = FederatedAveraging(optimizer=momentum(1.0, 0.9, ema=True), aggregate=identity())
        state = server.init({"w": np.zeros(1, np.float32)})
        for mean, expected in ((1, 0.1), (1, 0.29), (-1, 0.361), (2, 0.6249)):
            total = summed(Clip(l2_clip_norm=9.0), [[mean]])
            state = stepped(server, plan, state, total)
            close(state.params["w"], [expected])

    @pytest.mark.parametrize(
        ("optimizer", "first", "second"),
        [
            (adam(0.01, 1e-5), [-0.0099995, 0.00999975], [-0.019321, 0.010893]),
            (rmsprop(0.01, 1e-5), [-0.03161778, 0.03162028], [-0.04636, 0.01201]),
        ],
        ids=["DP-Adam", "DP-RMSProp"],
    )
    def test_adaptive_steps_on_the_noised_mean(self, monkeypatch, optimizer, first, second):
        """Noised gradients [.2, -.4] and [.1, .3]: updates are minus these, and are added."""
        plan = clipped(
            num_users=4,
            expected_cohort_size=2,
            num_rounds=2,
            l2_bound=9.0,
            noise_multiplier=0.5,
            delta=0.1,
        )
        server = FederatedAveraging(optimizer=optimizer, aggregate=identity())
        state = server.init({"w": np.zeros(2, np.float32)})
        noise = np.array([0.3, -0.1], np.float32)
        monkeypatch.setattr(noise_module, "gaussian", lambda key, like, stddev: {"w": noise.copy()})
        for gradient, expected in (([0.2, -0.4], first), ([0.1, 0.3], second)):
            # What two users send, so that with the noise the mean is minus the gradient.
            sent = [[0.5, 0.5], list(-2 * np.array(gradient) - noise - 0.5)]
            total = summed(Clip(l2_clip_norm=9.0), sent)
            state = stepped(server, plan, state, total)
            np.testing.assert_allclose(state.params["w"], expected, rtol=1e-3)

    @pytest.mark.parametrize(
        ("r", "lengths", "expected"),
        [
            (0.01, [0.998004, 0.833333, 0], [1.098802, 1.465070]),
            (0.1, [5 / 5.1, 0.05 / 0.15, 0], [0.788235, 1.050980]),
            (1.0, [5 / 6, 0.05 / 1.05, 0], [0.528571, 0.704762]),
        ],
    )
    def test_normalised_sums(self, r, lengths, expected):
        vectors = [[3, 4], [0.03, 0.04], [0, 0]]
        bound = Normalise(l2_clip_norm=1.0, regulariser=r)
        for vector, length in zip(vectors, lengths, strict=True):
            out = bound.apply({"w": np.array(vector, np.float32)})
            close(tree.l2_norm(out), length)
        close(summed(bound, vectors).real()["w"], expected)

    def test_clipped_sum(self):
        total = summed(Clip(l2_clip_norm=1.0), [[3, 4], [0.03, 0.04], [0, 0]])
        close(total.real()["w"], [0.63, 0.84])

    def test_normalised_step(self, monkeypatch):
        vectors = -np.array([[3, 4], [0.03, 0.04], [0, 0]])
        total = summed(Normalise(l2_clip_norm=1.0, regulariser=0.1), vectors)
        noise = {"w": np.array([-0.1, 0.2], np.float32)}
        monkeypatch.setattr(noise_module, "gaussian", lambda key, template, stddev: noise)
        plan = cohort_plan(
            num_users=9,
            expected_cohort_size=3,
            num_rounds=1,
            bound="normalise",
            l2_bound=1.0,
            noise="gaussian",
            noise_multiplier=1.0,
            delta=0.1,
        )
        server = FederatedAveraging(optimizer=sgd(0.5), aggregate=identity())
        state = server.init({"w": np.zeros(2, np.float32)})
        state = stepped(server, plan, state, total)
        close(state.params["w"], [-0.148039, -0.141830])

    @pytest.mark.parametrize(
        ("bound", "expected"),
        [
            (Normalise(l2_clip_norm=1.0, regulariser=0.01), -0.322806),  # uphill: the bias floor
            (Clip(l2_clip_norm=1.3), 0.1),
            (Clip(l2_clip_norm=0.5), -0.166667),
        ],
    )
    def test_bias_of_bounds(self, bound, expected):
        total = summed(bound, [[1.3], [-0.5], [-0.5]])
        close(total.real()["w"] / 3, [expected])
