"""The law of the public start: no private example moves a bit of it, nor of the public-only model.

Whoever is protected may be anybody else, be many more or fewer, or hold garbage; the test set may
be another too. A public example that is another one must move it: else the law would hold of a
constant.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import sparse
from torch import nn

from fedpriv.datasets.dataset import Dataset
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.start import public_only
from fedpriv.rng import Key
from fedpriv.tasks.dataset_tasks import linear_task, module_task
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.combinations import each_once

DIM, KEY = 4, Key.simulation(3)


def examples(seed, number=40):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, DIM)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def garbage(seed, number):
    x, y = examples(seed, number)
    return np.full_like(x, np.nan), 1 - y


#: What is private, and what nobody learns from: by name, (private, test).
PRIVATE = {
    "as they are": (examples(0), examples(1)),
    "others": (examples(5), examples(1)),
    "many more": (examples(6, 400), examples(1)),
    "almost none": (examples(7, 2), examples(1)),
    "garbage": (garbage(8, 30), examples(1)),
    "another test set": (examples(0), examples(9, 10)),
}


def model():
    return nn.Sequential(nn.Linear(DIM, 3), nn.Dropout(0.2), nn.Tanh(), nn.Linear(3, 2))


def of_users(private, test, public):
    x, y = private
    users = {f"u{n}": (x[n::5], y[n::5]) for n in range(min(5, len(y)))}
    task = ModuleTask(
        name="own",
        module=model,
        loss=nn.functional.cross_entropy,
        users=users,
        test=test,
        public=examples(2),
        public_train=public,
        synthetic=True,
    )
    return FederatedExperiment(
        name="own", description="", task=lambda _: task, rounds=1, delta=1e-3
    ).with_options({"cohort": 2.0, "noise_multiplier": 1.0, "start": "public"})


def of_examples(make, convert):
    def made(private, test, public):
        data = Dataset(
            name="d",
            x_train=convert(private[0]),
            y_train=private[1],
            x_test=convert(test[0]),
            y_test=test[1],
            x_public=convert(public[0]),
            y_public=public[1],
            provenance={},
            synthetic=True,
        )
        return CentralExperiment(
            name="d", description="", task=lambda _: make(data), batch_size=2.0, steps=1, delta=1e-3
        ).with_options({"noise_multiplier": 1.0, "start": "public"})

    return made


def _linear(data):
    return linear_task(data, LogisticGradients, {"weight": (DIM,), "bias": (1,)})


def _module(data):
    return module_task(data, model, nn.functional.cross_entropy)


KINDS = {
    "users of one's own": of_users,
    "examples, linear": of_examples(_linear, sparse.csr_matrix),
    "examples, a module": of_examples(_module, np.asarray),
}


def started(kind, name="as they are", public=4):
    """Return the start, and the public-only model."""
    components = build(KINDS[kind](*PRIVATE[name], examples(public)))
    found = public_only(components.task, KEY)
    assert found is not None
    begun = components.begin(KEY)
    assert begun.facts["kind"] == "public" and begun.facts["num_public_examples"] == 40
    return {**begun.params, **{f"only {n}": a for n, a in found.model.items()}}, begun.facts


#: As they are: what the others are compared with is learnt once.
usual = cache(started)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    each_once(list(KINDS), list(PRIVATE), also=lambda kind, name: name == "garbage"),
)
def test_no_private_example_moves_a_bit_of_it(kind, name):
    params, facts = usual(kind)
    others, told = started(kind, name)
    assert told == facts
    assert all(np.array_equal(others[n], array) for n, array in params.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_public_example_does(kind):
    params, facts = usual(kind)
    others, told = started(kind, public=5)
    assert told["sha256"] != facts["sha256"]
    assert any(not np.array_equal(others[n], array) for n, array in params.items())


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_not_where_a_fresh_run_begins_and_it_has_learnt(kind):
    experiment = KINDS[kind](*PRIVATE["as they are"], examples(4))
    components = build(experiment)
    fresh = build(experiment.with_options({"start": "fresh"})).begin(KEY)
    public = "user" not in kind
    before = components.task.evaluate(fresh.params, public=public)
    after = components.task.evaluate(components.begin(KEY).params, public=public)
    assert after.get("loss") < before.get("loss")
    assert fresh.facts == {"kind": "fresh"}
