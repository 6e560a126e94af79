"""Degenerate settings: what a bound and noise leave of a round, and a round of a single user."""

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.training.work import as_work

RATE = 2.0


def experiment(**options):
    made = FederatedExperiment(name="oracle", description="", rounds=3, delta=1e-3).with_options(
        {"bound": "none", "noise": "none", "local_learning_rate": RATE}
    )
    return made.with_options({name.replace("_", "-"): v for name, v in options.items()})


def final_params(made, corpus, number=3):
    components = build(made, corpus)
    backend = SerialBackend(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )
    run = rounds(components, backend, Key.simulation(0))
    for _ in range(number):
        record, state = next(run)
    assert record.diagnostics.num_failed == 0
    return state.params


def gradient_step(kernel, bias, x, labels, rate):
    """One full-batch step of softmax regression, dense float64."""
    logits = x @ kernel + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return kernel - rate * x.T @ p / len(labels), bias - rate * p.mean(axis=0)


def dense_user(view, user):
    examples = view.examples(user)
    return examples.features("tff").toarray().astype(np.float64), examples.labels


def fedavg_round(corpus):
    """A round by the book: every user of the corpus, unweighted mean of local models."""
    view = corpus.view()
    zero = np.zeros((len(view.words), len(view.tags))), np.zeros(len(view.tags))
    locals_ = []
    for user in view.roster:
        x, labels = dense_user(view, user)
        locals_.append(gradient_step(*zero, x, labels, RATE) if len(labels) else zero)
    kernel, bias = (np.mean(each, axis=0) for each in zip(*locals_, strict=True))
    return {"kernel": kernel, "bias": bias}


def assert_close(found, expected, rtol=1e-4):
    for name in expected:
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, atol=1e-6 * scale)


class TestFedAvg:
    def test_a_bound_that_never_binds_changes_nothing(self, tiny_corpus, one_root):
        plain = final_params(experiment(cohort=60), tiny_corpus)
        bounded = final_params(experiment(cohort=60, bound="clip", l2_clip_norm=1e6), tiny_corpus)
        for name in plain:
            np.testing.assert_array_equal(plain[name], bounded[name])

    @pytest.mark.slow
    def test_noise_only_adds_noise(self, tiny_corpus):
        """Full cohort, bound never binding: the difference to FedAvg is noise / cohort."""
        found = final_params(
            experiment(
                cohort=60, bound="clip", l2_clip_norm=50.0, noise="gaussian", noise_multiplier=0.02
            ),
            tiny_corpus,
            number=1,
        )
        plain = fedavg_round(tiny_corpus)
        sample = np.concatenate([(found[n] - plain[n]).reshape(-1) for n in found])
        # 730 coordinates: the variance is within 30 % with false alarm 1e-8.
        assert sample.std() == pytest.approx(0.02 * 50.0 / 60, rel=0.15)


class TestCentralised:
    @pytest.mark.parametrize("server_rate", [1.0, 0.25])
    def test_one_user_one_step_is_a_centralised_step(self, tiny_corpus, server_rate):
        found = final_params(
            experiment(users=1, cohort=1, server_learning_rate=server_rate), tiny_corpus
        )
        view = tiny_corpus.view()
        kernel, bias = np.zeros((len(view.words), len(view.tags))), np.zeros(len(view.tags))
        x, labels = dense_user(view, view.roster[0])
        for _ in range(3):
            kernel, bias = gradient_step(kernel, bias, x, labels, RATE * server_rate)
        assert_close(found, {"kernel": kernel, "bias": bias})


def test_what_neither_trains_nor_sums_is_refused():
    with pytest.raises(TypeError, match=r"object is no trainer of users.*Work"):
        as_work(object())
