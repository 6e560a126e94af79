"""Test vectors of the design notes, and the four places a preconditioner can act, told apart."""

import importlib

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.data.corpus.examples import TagExamples
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Experiment
from fedpriv.mechanisms import Clip, Normalise, Preconditioned, SideInformation
from fedpriv.noise.gaussian import gaussian
from fedpriv.optimizers import adam, momentum, rmsprop, sgd
from fedpriv.privacy.plans.cohort_plan import cohort_plan
from fedpriv.rng import Key
from fedpriv.tasks.description import TaskDescription
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.local.trainer import SparseSoftmaxTrainer
from fedpriv.training.work import as_work
from fedpriv.transform import identity

# The package has a function of the module's name.
noise_module = importlib.import_module("fedpriv.noise.gaussian")


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
        plan = cohort_plan(
            num_users=4,
            expected_cohort_size=2,
            num_rounds=1,
            bound="clip",
            l2_bound=bound.l2_bound,
            noise="gaussian",
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
        plan = cohort_plan(
            num_users=4,
            expected_cohort_size=2,
            num_rounds=2,
            bound="clip",
            l2_bound=9.0,
            noise="gaussian",
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


# The four placements, against a plain float64 reference that knows nothing of fedpriv.

WORDS, TAGS, USERS = 6, 3, 5
A = np.array([4.0, 2.0, 1.0, 0.5, 0.1, 0.02])
LEARNING_RATE, CLIP, SIGMA, COHORT = 0.7, 0.9, 0.4, 4.0


def user_arrays(number):
    """Dense counts (n, WORDS), lengths and labels of one user."""
    rng = np.random.default_rng(number)
    counts = rng.integers(0, 4, (4 + number, WORDS))
    counts[:, number % WORDS] += 1
    return (
        counts,
        counts.sum(axis=1) + rng.integers(0, 3, len(counts)),
        rng.integers(0, TAGS, len(counts)),
    )


def tag_examples(number):
    counts, lengths, labels = user_arrays(number)
    rows, words = np.nonzero(counts)
    n = len(labels)
    return TagExamples(
        indptr=np.searchsorted(rows, np.arange(n + 1)).astype(np.int64),
        indices=words.astype(np.int32),
        counts=counts[rows, words].astype(np.uint16),
        num_tokens=lengths.astype(np.int32),
        labels=labels.astype(np.int32),
        tag_indptr=np.arange(n + 1, dtype=np.int64),
        tag_indices=labels.astype(np.int32),
        num_words=WORDS,
        num_tags=TAGS,
    )


class TinyTask:
    """Six words, three tags, five users, and an A that is written down."""

    roster = tuple(str(i) for i in range(USERS))
    roster_sha256 = "0" * 64
    measures = ()

    def __init__(self, experiment=None, corpus=None):
        self.data = self

    def examples(self, user_id):
        return tag_examples(int(user_id))

    def num_examples(self, user_id):
        return len(self.examples(user_id))

    def init_params(self, key):
        rng = np.random.default_rng(77)
        return {
            "kernel": rng.normal(size=(WORDS, TAGS)).astype(np.float32),
            "bias": rng.normal(size=TAGS).astype(np.float32),
        }

    def trainer(self, schedule, multiplier):
        rows = multiplier.get("kernel")
        return SparseSoftmaxTrainer(
            schedule=schedule, multiplier=None if rows is None else rows.reshape(-1)
        )

    def side_information(self):
        return SideInformation(
            multiplier={"kernel": (1 / A).astype(np.float32).reshape(-1, 1)},
            source="public",
            description="written down",
        )

    def evaluate(self, params, *, public, part=(0, 1)):
        return None

    def describe(self):
        return TaskDescription(name="tiny", synthetic=True, roster="all", num_users=USERS)


def reference_updates(params, divide_steps, epochs):
    """Full-batch local gradient descent, one dict for each user."""
    updates = []
    for number in range(USERS):
        counts, _, labels = user_arrays(number)
        x = counts / counts.sum(axis=1, keepdims=True)
        kernel = params["kernel"].astype(np.float64)
        bias = params["bias"].astype(np.float64)
        for _ in range(epochs):
            logits = x @ kernel + bias
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(labels)), labels] -= 1
            p /= len(labels)
            gradient = x.T @ p
            if divide_steps:
                gradient = gradient / A[:, None]
            kernel = kernel - LEARNING_RATE * gradient
            bias = bias - LEARNING_RATE * p.sum(axis=0)
        updates.append({"kernel": kernel - params["kernel"], "bias": bias - params["bias"]})
    return updates


def reference_params(placement, params, noise, epochs):
    updates = reference_updates(params, placement in ("local", "both"), epochs)
    total = {"kernel": np.zeros((WORDS, TAGS)), "bias": np.zeros(TAGS)}
    for update in updates:
        if placement in ("update", "both", "scale-then-privatise"):
            update = {**update, "kernel": update["kernel"] / A[:, None]}
        norm = np.sqrt(sum((t**2).sum() for t in update.values()))
        for name in total:
            total[name] += update[name] * min(1.0, CLIP / norm)
    mean = {name: (total[name] + noise[name]) / COHORT for name in total}
    if placement == "scale-then-privatise":
        mean["kernel"] = mean["kernel"] * A[:, None]
    return {name: params[name] + mean[name] for name in mean}


PLACEMENTS = ("none", "local", "update", "both", "scale-then-privatise")


def experiment(placement, epochs, **options):
    made = Experiment(
        name="tiny",
        description="",
        task=TinyTask,
        precondition=placement,
        **({} if placement == "none" else {"side_information": "own"}),
        local_learning_rate=LEARNING_RATE,
        local_epochs=epochs,
        l2_clip_norm=CLIP,
        noise_multiplier=SIGMA,
        cohort=COHORT,
        rounds=3,
        delta=0.01,
    )
    return made.with_options(options)


def public_bound(components, params):
    """The bound of a round, with what is public about it inside."""
    algorithm, key = components.algorithm, Key.simulation(3)
    context, _ = algorithm.begin(algorithm.init(tree.to_dense(params)), key)
    return context.bound(components.plan.live_mechanism.bound)


def one_round(placement, epochs):
    components = build(experiment(placement, epochs), None)
    params = components.task.init_params(Key.simulation(0))
    key = Key.simulation(3).fold("noise")
    noise = gaussian(key, params, SIGMA * CLIP)
    algorithm, mechanism = components.algorithm, components.plan.live_mechanism
    context, state = algorithm.begin(algorithm.init(tree.to_dense(params)), key)
    total = as_work(components.trainer).partial_sum(
        params=params,
        bound=context.bound(mechanism.bound),
        data=components.task.data,
        user_ids=components.task.roster,
        key=Key.simulation(4),
    )
    assert total.num_failed == 0 and mechanism.l2_bound == CLIP
    answer = mechanism.release(total, mechanism.draw(params, key))
    released = algorithm.next(state, answer, context).params
    return params, noise, released


class TestPlacements:
    @pytest.mark.parametrize("epochs", [1, 2, 5])
    @pytest.mark.parametrize("placement", PLACEMENTS)
    def test_equals_the_plain_reference(self, placement, epochs):
        params, noise, released = one_round(placement, epochs)
        expected = reference_params(placement, params, noise, epochs)
        for name in expected:
            np.testing.assert_allclose(released[name], expected[name], rtol=2e-5, atol=2e-6)

    def test_all_are_different_methods(self):
        released = {}
        for placement in PLACEMENTS:
            released[placement] = one_round(placement, 3)[2]
        for a in PLACEMENTS:
            for b in PLACEMENTS:
                if a != b:
                    gap = np.abs(released[a]["kernel"] - released[b]["kernel"]).max()
                    assert gap > 0.01, (a, b)

    def test_one_step_local_is_update_before_clipping(self):
        """E = 1: preconditioning each step or the whole update is the same; E = 3 is not."""
        for epochs, equal in ((1, True), (3, False)):
            parts = {
                p: build(experiment(p, epochs, **{"l2-clip-norm": 1e6}), None)
                for p in ("local", "update", "both")
            }
            params = TinyTask().init_params(Key.simulation(0))
            totals = {
                p: tree.to_dense(
                    as_work(part.trainer)
                    .partial_sum(
                        params=params,
                        bound=public_bound(part, params),
                        data=part.task.data,
                        user_ids=part.task.roster,
                        key=Key.simulation(4),
                    )
                    .real()
                )
                for p, part in parts.items()
            }
            same = np.allclose(totals["local"]["kernel"], totals["update"]["kernel"], rtol=1e-5)
            assert same == equal
            assert not np.allclose(totals["both"]["kernel"], totals["local"]["kernel"], rtol=0.1)

    def test_the_bias_is_not_preconditioned(self):
        parts = {p: build(experiment(p, 1, **{"l2-clip-norm": 1e6}), None) for p in PLACEMENTS}
        params = TinyTask().init_params(Key.simulation(0))
        biases = [
            tree.to_dense(
                as_work(part.trainer)
                .partial_sum(
                    params=params,
                    bound=public_bound(part, params),
                    data=part.task.data,
                    user_ids=part.task.roster,
                    key=Key.simulation(4),
                )
                .real()
            )["bias"]
            for part in parts.values()
        ]
        for bias in biases[1:]:
            np.testing.assert_allclose(bias, biases[0], rtol=1e-5)

    def test_a_of_ones_is_the_plain_method(self, monkeypatch):
        monkeypatch.setitem(globals(), "A", np.ones(WORDS))
        plain = one_round("none", 3)[2]
        for placement in PLACEMENTS[1:]:
            other = one_round(placement, 3)[2]
            for name in plain:
                np.testing.assert_allclose(other[name], plain[name], rtol=1e-6, atol=1e-7)
