"""Runs of methods with plans of their own: the same on every backend, paid for, replayed."""

import numpy as np
import pytest
from scipy import sparse

from fedpriv.api.result import load
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.page import write_report
from fedpriv.runs.backends import serial
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.training.per_example.linear import (
    HingeGradients,
    HuberGradients,
    LinearRegressionGradients,
    LogisticGradients,
    SoftmaxGradients,
    linear_metrics,
)
from tests.harness.refusals import refuses
from tests.harness.tag_runs import checkpoint, ledger_state, same
from tests.harness.threads import on_two_threads

AGD = {
    "target-epsilon": 8.0, "delta": 1e-3, "iterations": 3, "num-steps": 4, "loss-cap": 8.0,
    "start": "fresh", "eval-every": 1,
}  # fmt: skip
BOLT_ON = {
    "target-epsilon": 4.0, "users-per-update": 7, "passes": 2, "step-rate": 0.5, "start": "fresh",
}  # fmt: skip
OPTIONS = {"agd-tags": AGD, "bolt-on-tags": BOLT_ON}


def started(name, corpus, out, make_backend=serial, *, secure=False, **options):
    experiment = load_experiment(name).with_options(OPTIONS[name] | options)
    return start_run(experiment, name, corpus, out, make_backend=make_backend, secure=secure)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_is_paid_for_and_verifies(name, tiny_corpus, tmp_path):
    prepared = started(name, tiny_corpus, tmp_path / "run")
    prepared.run()
    assert verify_run(tmp_path / "run").ok
    state = ledger_state(tmp_path / "run")
    run = load(tmp_path / "run")
    if name == "agd-tags":
        assert {charge.event.kind for charge in state.charges} == {"gaussian", "zcdp"}
        assert state.plan.left(state.spent) < state.plan.rho
        steps = [row["decided_step_size"] for row in run.released]
        assert steps and all(step > 0 for step in steps)
        page = write_report(tmp_path / "run").read_text("utf-8")
        assert "step size of each released round" in page and "ρ gradient" in page
    else:
        [charge] = state.charges
        assert (charge.event.kind, charge.event.epsilon) == ("pure", 4.0)
        assert run.summary["delta"] == 0.0 and run.summary["epsilon"] == 4.0
        assert run.summary["accountant"] == "composition"


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_threads_give_the_same_model(name, tiny_corpus, tmp_path):
    """To the bit: sums are of whole numbers, or of floats that no order rounds."""
    started(name, tiny_corpus, tmp_path / "one").run()
    started(name, tiny_corpus, tmp_path / "two", on_two_threads).run()
    assert same(checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two"))


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("bolt-on-tags", {"l2-clip-norm": 1.0}, "l2-clip-norm"),
        ("bolt-on-tags", {"server-momentum": 0.9}, "server-momentum"),
        ("bolt-on-tags", {"server": "adam"}, "server"),
        ("bolt-on-tags", {"aggregate": "ema"}, "aggregate"),
        ("bolt-on-tags", {"step-rate": 5.0}, "2"),
        ("bolt-on-tags", {"delta": 1e-3}, "0.001"),
        ("bolt-on-tags", {"target-epsilon": None}, "target-epsilon"),
        ("bolt-on-tags", {"users-per-update": 5000}, "5000"),
        ("bolt-on-tags", {"server-rate": 2.0}, "1"),
        ("agd-tags", {"target-epsilon": None}, "target-epsilon"),
        ("agd-tags", {"num-steps": 65}, "65"),
        ("agd-tags", {"loss-cap": 1.0}, "loss-cap 1"),
    ],
)
def test_options_that_do_not_fit(name, options, named, tiny_corpus, tmp_path):
    with refuses(ValueError, named):
        started(name, tiny_corpus, tmp_path / "run", **options)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def central(kind, num=60, k=2):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(num, 5)).astype(np.float32)
    scores = x @ rng.normal(size=(5, k))
    y = scores.argmax(axis=1)
    inputs = sparse.csr_matrix(x)
    if kind is LinearRegressionGradients:
        train, shapes = kind(x, y.astype(float)), {"weight": (5,)}
    elif kind is SoftmaxGradients:
        train, shapes = kind(inputs, y, k), {"kernel": (5, k), "bias": (k,)}
    else:
        train, shapes = kind(inputs, y), {"weight": (5,), "bias": (1,)}
    return CentralTask(
        name="toy",
        train=train,
        num_train=num,
        init=zeros(shapes),
        measure=lambda params: linear_metrics(params, inputs, y) if "bias" in params else None,
        data_sha256=lambda: {"private": "ab" * 32},
        synthetic=True,
    )


def of(task, **options):
    made = CentralExperiment(name="toy", description="A toy.", task=lambda experiment: task)
    return made.with_options(options)


def of_examples(kind, **options):
    return of(central(kind), **options)


CENTRAL = {
    "agd": {"method": "agd", "target_epsilon": 30.0, "iterations": 6, "delta": 1e-5},
    "bolt-on": {"method": "bolt-on", "target_epsilon": 50.0, "passes": 3, "batch_size": 5},
    "gaussian": {
        **{"method": "bolt-on", "output_noise": "gaussian", "average": True},
        **{"target_epsilon": 50.0, "batch_size": 5},
    },
    "noiseless": {"method": "bolt-on", "output_noise": "none", "batch_size": 5, "passes": 20},
}


@pytest.mark.slow
@pytest.mark.parametrize("chosen", CENTRAL)
@pytest.mark.parametrize("kind", [LogisticGradients, HuberGradients, SoftmaxGradients])
def test_examples_are_trained_on_too(kind, chosen, tmp_path):
    prepared = start_run(of_examples(kind, **CENTRAL[chosen]), None, None, tmp_path / "run")
    prepared.run()
    assert verify_run(tmp_path / "run").ok
    found = load(tmp_path / "run").summary
    if chosen == "noiseless":
        assert found["epsilon"] is None and found["accuracy_public"] > 0.8
    else:
        assert found["epsilon"] <= CENTRAL[chosen]["target_epsilon"] and found["unit"] == "example"


@pytest.mark.parametrize(
    ("kind", "method", "named"),
    [
        (HingeGradients, "bolt-on", []),
        (LinearRegressionGradients, "bolt-on", ["squared_error"]),
    ],
)
def test_losses_of_which_too_little_is_known(kind, method, named):
    with refuses(ValueError, *named):
        build(of_examples(kind, method=method, target_epsilon=1.0))


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_target_is_kept_under_either_relation(relation):
    given = {"target_epsilon": 0.5, "relation": relation}
    made = build(of_examples(LogisticGradients, method="bolt-on", **given))
    assert made.plan.total().value == 0.5
    times = {"add-remove": 1.0, "replace-one": 2.0}[relation]
    mechanism = made.plan.live_mechanism
    assert mechanism.privatizer.epsilon == 0.5 / times
    # The literature's scale: Δ₂/ε of a replaced example, 2kLη/b.
    assert mechanism.sensitivity * times / 0.5 == pytest.approx(times * 0.1 / 50 / 0.5, rel=1e-3)
    descent = build(of_examples(LogisticGradients, method="agd", delta=1e-5, **given))
    assert descent.plan.total().value == pytest.approx(0.5, rel=1e-6)
