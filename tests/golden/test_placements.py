"""The four placements, against a plain float64 reference that knows nothing of fedpriv."""

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.datasets.stackexchange.tag_view import TagExamples
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.mechanisms import SideInformation
from fedpriv.mechanisms.gaussian import gaussian
from fedpriv.rng import Key
from fedpriv.tasks.task import Task, TaskDescription
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from fedpriv.training.work import as_work

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


class TinyTask(Task):
    """Six words, three tags, five users, and an A that is written down."""

    roster = tuple(str(i) for i in range(USERS))
    roster_sha256 = "0" * 64
    measures = ()

    def __init__(self, experiment=None, corpus=None):
        pass

    @property
    def data(self):
        return self

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
        return CompiledSoftmaxTrainer(
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
    side = {} if placement == "none" else {"side_information": "own"}
    made = FederatedExperiment(
        name="tiny", description="", task=TinyTask, rounds=3, delta=0.01
    ).with_options(
        {
            "precondition": placement,
            **side,
            "local-learning-rate": LEARNING_RATE,
            "local-epochs": epochs,
            "l2-clip-norm": CLIP,
            "noise-multiplier": SIGMA,
            "cohort": COHORT,
        }
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
    @pytest.mark.slow
    def test_equals_the_plain_reference(self, subtests):
        for epochs in [1, 2, 5]:
            for placement in PLACEMENTS:
                with subtests.test(epochs=epochs, placement=placement):
                    params, noise, released = one_round(placement, epochs)
                    expected = reference_params(placement, params, noise, epochs)
                    for name in expected:
                        np.testing.assert_allclose(
                            released[name], expected[name], rtol=2e-5, atol=2e-6
                        )

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
