"""Guarantees of methods whose plans are their own, to whom, and what they refuse to guarantee."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.statement.statement import privacy_statement
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.central import OwnedExamples
from fedpriv.training.per_example.linear import LogisticGradients, linear_metrics
from tests.harness.refusals import refuses
from tests.running.methods.test_runs import AGD, BOLT_ON, central, of

METHODS = {
    "agd": {"method": "agd", "target_epsilon": 8.0, "delta": 1e-3},
    "bolt-on": {"method": "bolt-on", "target_epsilon": 1.0, "batch_size": 10},
}


@pytest.mark.parametrize("method", METHODS)
def test_examples_of_owners_are_refused_and_not_taken_for_units(method):
    owned = OwnedExamples(blank=np.arange(60) < 30, most=4)
    task = replace(central(LogisticGradients), measure=lambda params: None, owned=owned)
    with refuses(ValueError, method, 4):
        build(of(task, **METHODS[method]))
    averaging = build(of(task, steps=5, batch_size=10, noise_multiplier=1.0, l2_clip_norm=1.0))
    assert averaging.plan.unit == "owner"


def said(plan):
    statement = privacy_statement(plan, {}, num_charges=1)
    return " ".join(statement.paragraphs("How ε was counted"))


EMPTY = "leaves its place in the order empty: how many examples there are is public"


def test_an_example_is_replaced_unless_it_is_said_otherwise():
    task = central(LogisticGradients)
    made = build(of(task, **METHODS["bolt-on"]))
    assert made.plan.relation is Relation.REPLACE_ONE
    assert made.plan.total().value == 1.0
    assert made.plan.live_mechanism.privatizer.epsilon == 0.5
    assert EMPTY not in said(made.plan)
    asked = build(of(task, relation="add-remove", **METHODS["bolt-on"]))
    assert asked.plan.relation is Relation.ADD_REMOVE
    assert EMPTY in said(asked.plan)


def test_of_users_the_statement_says_what_add_remove_is(tiny_corpus):
    experiment = load_experiment("bolt-on-tags").with_options(BOLT_ON)
    plan = build(experiment, tiny_corpus).plan
    assert plan.relation is Relation.ADD_REMOVE
    assert EMPTY.replace("examples", "users") in said(plan)
    descent = build(load_experiment("agd-tags").with_options(AGD), tiny_corpus).plan
    assert "leaves its place" not in said(descent)


def with_public(loss_of=LogisticGradients, far=0.0):
    rng = np.random.default_rng(0)
    x = sparse.csr_matrix(rng.normal(size=(30, 5)).astype(np.float32))
    y = (x[:, [0]].toarray()[:, 0] > 0).astype(int)
    start = {"weight": np.full(5, far, np.float32), "bias": np.zeros(1, np.float32)}
    return replace(
        central(LogisticGradients), public=loss_of(x, y), num_public=30, init=lambda key: start,
        public_measure=lambda params, index: linear_metrics(params, x[index], y[index]),
    )  # fmt: skip


@pytest.mark.parametrize("task", [with_public(), central(LogisticGradients)])
def test_one_below_the_loss_at_the_start_is_refused_with_public_examples_and_without(
    task, tmp_path
):
    with refuses(ValueError, "loss-cap 0.01", 0.693):
        start_run(of(task, loss_cap=0.01, **METHODS["agd"]), None, None, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    start_run(of(task, loss_cap=0.7, **METHODS["agd"]), None, None, tmp_path / "run")


def test_it_is_of_public_examples_where_there_are_any(tmp_path):
    task = replace(with_public(far=9.0), measure=lambda params: None)
    with refuses(ValueError, "loss-cap 3"):
        start_run(of(task, **METHODS["agd"]), None, None, tmp_path / "run")
