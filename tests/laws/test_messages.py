"""What people read names options as they are typed; its words are tests/repository's."""

import re

import numpy as np
import pytest
from scipy import sparse

from fedpriv.cli import app
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.command_line import CliRunner

# What is refused by a plan, a bound, a schedule or an optimiser, far from where it was typed.
REFUSED = {
    "rounds": ({"rounds": 0}, "rounds 0"),
    "cohort": ({"cohort": 0.0}, "cohort 0.0"),
    "cap": ({"cohort-cap": 7}, "cohort-cap 7 is below 12"),
    "cap of fixed cohorts": (
        {"cohort-cap": 30, "sampling": "fixed", "relation": "replace-one"},
        "cohort-cap belongs to sampling 'poisson'",
    ),
    "users": ({"users": 0}, "users 0"),
    "more users": ({"users": 1000}, "users 1000: roster"),
    "noise": ({"noise-multiplier": 1e-9}, "noise-multiplier 1e-09"),
    "target": ({"target-epsilon": 1e9}, "target-epsilon 1e+09"),
    "examples": ({"max-examples-per-user": 0}, "max-examples-per-user 0"),
    "batch": ({"local-batch-size": 0}, "local-batch-size 0"),
    "epochs": ({"local-epochs": 0}, "local-epochs 0"),
    "rate": ({"local-learning-rate": 0.0}, "local-learning-rate 0.0"),
    "server rate": ({"server-learning-rate": 0.0}, "server-learning-rate 0.0"),
    "momentum": ({"server-momentum": 1.0, "server": "adam"}, "server-momentum 1.0"),
    "momentum, plain": (
        {"server-momentum": 1.0, "server": "momentum"},
        "server-momentum 1.0",
    ),
}
FIELDS = re.compile(r"\b[a-z]+(_[a-z0-9]+)+\b")


@pytest.mark.parametrize(("options", "said"), REFUSED.values(), ids=REFUSED)
def test_options_are_called_as_they_are_typed(tiny_corpus: Corpus, options, said):
    """Red before: "num_rounds 0", "expected_cohort_size 0.0", "cohort_cap 7", "beta1 1.0"."""
    base = FederatedExperiment(name="t", description="").with_options(
        {"cohort": 6.0, "noise_multiplier": 1.0}
    )
    with pytest.raises(ValueError) as caught:
        build(base.with_options(options), tiny_corpus)
    assert said in str(caught.value)
    assert not FIELDS.search(str(caught.value))


CENTRAL = {
    "steps": ({"steps": 0}, "steps 0"),
    "batch": ({"batch-size": 1e9}, "a batch of 1e+09 is above the"),
    "micro-batch": ({"micro-batch": 30, "batch-size": 20.0}, "micro-batch 30 is above"),
    "momentum": (
        {"optimizer": "momentum", "momentum": 0.5, "learning-rate": 0.0},
        "learning-rate 0.0",
    ),
}


def tiny_task(experiment):
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    return CentralTask(
        name="twenty",
        train=LogisticGradients(sparse.csr_matrix(x), (x[:, 0] > 0).astype(np.int64)),
        num_train=20,
        init=zeros({"weight": (3,), "bias": (1,)}),
        measure=lambda params: None,
    )


@pytest.mark.parametrize(("options", "said"), CENTRAL.values(), ids=CENTRAL)
def test_of_centralised_training_too(options, said):
    base = CentralExperiment(
        name="t", description="", task=tiny_task, steps=3, batch_size=8.0
    ).with_options({"noise_multiplier": 1.0})
    with pytest.raises(ValueError) as caught:
        build(base.with_options(options))
    assert said in str(caught.value)
    assert not FIELDS.search(str(caught.value)) and "user" not in str(caught.value)


ACCOUNTING = {
    "users": ({"users": 0}, "users 0"),
    "cohort": ({"cohort": 0}, "cohort 0.0"),
    "cap": ({"cap": 0}, "cap 0"),
    "small cap": ({"cap": 3}, "cap 3 is below 4"),
    "rounds": ({"rounds": 0}, "rounds 0"),
    "noise": ({"noise-multiplier": 1e-9}, "noise-multiplier 1e-09"),
    "target": ({"target-epsilon": 0}, "target-epsilon 0.0"),
}


@pytest.mark.parametrize(("options", "said"), ACCOUNTING.values(), ids=ACCOUNTING)
def test_of_the_accounting_commands(options, said):
    command, asked = "account", {"noise-multiplier": 1.0}
    if "target-epsilon" in options:
        command, asked = "calibrate", {}
    given = {"users": 10, "cohort": 2, "rounds": 5, **asked, **options}
    typed = [str(item) for name, value in given.items() for item in (f"--{name}", value)]
    refused = CliRunner().invoke(app, [command, *typed]).exception
    assert isinstance(refused, ValueError)
    assert said in str(refused) and not FIELDS.search(str(refused))
