"""Refusals name options, also where a plan or an optimiser refuses; `-` and `_` are alike."""

import re

import pytest

from fedpriv.cli import app
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.build import build
from tests.harness.command_line import CliRunner
from tests.harness.refusals import refuses
from tests.tasks.sixty import sixty

PLANS = re.compile(r"\b(num_users|num_rounds|num_examples|expected_cohort_size|l2_bound)\b")
"""What no one typed."""
# What is refused by a plan, a bound, a schedule or an optimiser, far from where it was typed: by
# what is named.
USERS = {
    "rounds 0": {"rounds": 0},
    "cohort 0.0": {"cohort": 0.0},
    "cohort-cap 7": {"cohort-cap": 7},
    "cohort-cap": {"cohort-cap": 30, "sampling": "fixed", "relation": "replace-one"},
    "users 0": {"users": 0},
    "1000": {"users": 1000},
    "noise-multiplier 1e-09": {"noise-multiplier": 1e-9},
    "target-epsilon 1e+09": {"target-epsilon": 1e9},
    "max-examples-per-user 0": {"max-examples-per-user": 0},
    "local-batch-size 0": {"local-batch-size": 0},
    "local-epochs 0": {"local-epochs": 0},
    "local-learning-rate 0.0": {"local-learning-rate": 0.0},
    "server-learning-rate 0.0": {"server-learning-rate": 0.0},
    "server-momentum 1.0": {"server-momentum": 1.0, "server": "adam"},
    "momentum 1.0": {"server-momentum": 1.0, "server": "momentum"},
}
EXAMPLES = {
    "steps 0": {"steps": 0},
    "1e+09": {"batch-size": 1e9},
    "micro-batch 30": {"micro-batch": 30, "batch-size": 20.0},
    "learning-rate 0.0": {"optimizer": "momentum", "momentum": 0.5, "learning-rate": 0.0},
}
TYPED = {
    "users 0": {"users": 0},
    "cohort 0.0": {"cohort": 0},
    "cap 0": {"cap": 0},
    "cap 3": {"cap": 3},
    "rounds 0": {"rounds": 0},
    "noise-multiplier 1e-09": {"noise-multiplier": 1e-9},
    "target-epsilon 0.0": {"target-epsilon": 0},
}


@pytest.mark.parametrize(("named", "options"), USERS.items(), ids=USERS)
def test_options_are_called_as_they_are_typed(tiny_corpus: Corpus, named, options):
    base = FederatedExperiment(name="t", description="").with_options(
        {"cohort": 6.0, "noise_multiplier": 1.0}
    )
    with refuses(ValueError, named) as caught:
        build(base.with_options(options), tiny_corpus)
    assert not PLANS.search(str(caught.value))


@pytest.mark.parametrize(("named", "options"), EXAMPLES.items(), ids=EXAMPLES)
def test_of_centralised_training_too(named, options):
    base = CentralExperiment(
        name="t", description="", task=lambda experiment: sixty(), steps=3, batch_size=8.0
    ).with_options({"noise_multiplier": 1.0})
    with refuses(ValueError, named) as caught:
        build(base.with_options(options))
    assert not PLANS.search(str(caught.value))


@pytest.mark.parametrize(("named", "options"), TYPED.items(), ids=TYPED)
def test_of_the_accounting_commands(named, options):
    command = "calibrate" if "target-epsilon" in options else "account"
    asked = {} if command == "calibrate" else {"noise-multiplier": 1.0}
    given = {"users": 10, "cohort": 2, "rounds": 5, **asked, **options}
    typed = [str(item) for name, value in given.items() for item in (f"--{name}", value)]
    with refuses(ValueError, named) as caught:
        raise CliRunner().invoke(app, [command, *typed]).exception
    assert not PLANS.search(str(caught.value))
