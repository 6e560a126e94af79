"""Degenerate settings are oracles: the federated round is FedAvg, is SGD, is centralised SGD."""

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


def final_params(made, corpus, number=3, key=0):
    components = build(made, corpus)
    backend = SerialBackend(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )
    run = rounds(components, backend, Key.simulation(key))
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


def dense_user(view, user, inputs="tff"):
    examples = view.examples(user)
    return examples.features(inputs).toarray().astype(np.float64), examples.labels


def fedavg(corpus, number, epochs=1, users=None, inputs="tff"):
    """Federated averaging by the book: every user, unweighted mean of local models."""
    view = corpus.view()
    roster = view.roster[:users]
    kernel, bias = np.zeros((len(view.words), len(view.tags))), np.zeros(len(view.tags))
    for _ in range(number):
        locals_ = []
        for user in roster:
            x, labels = dense_user(view, user, inputs)
            k, b = kernel, bias
            for _ in range(epochs if len(labels) else 0):
                k, b = gradient_step(k, b, x, labels, RATE)
            locals_.append((k, b))
        kernel = np.mean([k for k, _ in locals_], axis=0)
        bias = np.mean([b for _, b in locals_], axis=0)
    return {"kernel": kernel, "bias": bias}


def assert_close(found, expected, rtol=1e-4):
    for name in expected:
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, atol=1e-6 * scale)


class TestFedAvg:
    @pytest.mark.slow
    @pytest.mark.parametrize("epochs", [1, 3])
    @pytest.mark.parametrize("inputs", ["tff", "unit-norm"])
    def test_no_noise_no_bound_full_cohort_is_plain_fedavg(self, tiny_corpus, epochs, inputs):
        found = final_params(experiment(cohort=60, local_epochs=epochs, inputs=inputs), tiny_corpus)
        expected = fedavg(tiny_corpus, 3, epochs, inputs=inputs)
        assert np.abs(expected["kernel"]).max() > 0.05
        assert_close(found, expected)

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
        plain = fedavg(tiny_corpus, 1)
        sample = np.concatenate([(found[n] - plain[n]).reshape(-1) for n in found])
        # 730 coordinates: the variance is within 30 % with false alarm 1e-8.
        assert sample.std() == pytest.approx(0.02 * 50.0 / 60, rel=0.15)

    def test_unweighted_users_with_more_examples_do_not_count_more(self, tiny_corpus):
        """The mean is over users; the mean over examples would be something else."""
        view = tiny_corpus.view()
        xs, ys = zip(*(dense_user(view, user) for user in view.roster), strict=True)
        pooled = gradient_step(
            np.zeros((len(view.words), len(view.tags))),
            np.zeros(len(view.tags)),
            np.concatenate(xs),
            np.concatenate(ys),
            RATE,
        )
        found = final_params(experiment(cohort=60), tiny_corpus, number=1)
        assert_close(found, fedavg(tiny_corpus, 1))
        assert not np.allclose(found["bias"], pooled[1], rtol=1e-3)


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

    def test_server_momentum_is_centralised_momentum(self, tiny_corpus):
        found = final_params(
            experiment(users=1, cohort=1, server="ema-momentum", server_momentum=0.8),
            tiny_corpus,
        )
        view = tiny_corpus.view()
        kernel, bias = np.zeros((len(view.words), len(view.tags))), np.zeros(len(view.tags))
        vk, vb = kernel, bias
        x, labels = dense_user(view, view.roster[0])
        for _ in range(3):
            k, b = gradient_step(kernel, bias, x, labels, RATE)
            vk, vb = 0.8 * vk + 0.2 * (k - kernel), 0.8 * vb + 0.2 * (b - bias)
            kernel, bias = kernel + vk, bias + vb
        assert_close(found, {"kernel": kernel, "bias": bias})

    def test_preconditioned_steps_are_preconditioned_gradient_descent(self, tiny_corpus):
        options = dict(
            users=1,
            cohort=1,
            precondition="local",
            preconditioner_top=10,
            preconditioner_gain=20.0,
            local_epochs=2,
        )
        found = final_params(experiment(**options), tiny_corpus, number=1)
        view = tiny_corpus.view()
        kernel, bias = np.zeros((len(view.words), len(view.tags))), np.zeros(len(view.tags))
        a = np.where(np.arange(len(view.words)) < 10, 1.0, 1 / 20.0)[:, None]
        x, labels = dense_user(view, view.roster[0])
        for _ in range(2):
            k, b = gradient_step(kernel, bias, x, labels, RATE)
            kernel, bias = kernel + (k - kernel) / a, b
        assert_close(found, {"kernel": kernel, "bias": bias})


class TestSampledRounds:
    def test_a_sampled_round_is_its_cohorts_sum_over_the_expected_size(self, tiny_corpus):
        made = experiment(cohort=9)
        components = build(made, tiny_corpus)
        cohorts = []

        class Spy(SerialBackend):
            def partial_sum(self, **arguments):
                cohorts.append(arguments["cohort"])
                return super().partial_sum(**arguments)

        backend = Spy(
            trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
        )
        _, state = next(rounds(components, backend, Key.simulation(5)))
        view = tiny_corpus.view()
        zero = np.zeros((len(view.words), len(view.tags))), np.zeros(len(view.tags))
        kernel, bias = zero
        for user in cohorts[0]:
            x, labels = dense_user(view, user)
            if len(labels):
                k, b = gradient_step(*zero, x, labels, RATE)
                kernel, bias = kernel + k / 9, bias + b / 9
        assert len(cohorts[0]) != 9  # else this would not tell the two denominators apart
        assert_close(state.params, {"kernel": kernel, "bias": bias})


def test_what_neither_trains_nor_sums_is_refused():
    with pytest.raises(TypeError, match=r"object is no trainer of users.*Work"):
        as_work(object())
