"""Centralised training is a federated round whose users hold one record: the laws of that."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from fedpriv.mechanisms import Clip
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import LinearRegressionGradients
from tests.harness.toys_of_training import assert_near, contributed, trainer_of
from tests.training.per_example.example_sum.reviews import BASE, DIM, KEY, flat, run

GUIDES = {
    "none": {},
    "side-information": {},
    "public-rmsprop": {},
    "public-rmsprop, epoch": {"refresh": "epoch", "public-batch": 5},
    "public-adam": {},
    "public-adagrad": {"regulariser-inside": True},
    "public-adagrad, epoch": {"refresh": "epoch", "public-batch": 5},
    "ideal": {},
    "r-pub": {"public-batch": 7},
    "adam-pub": {"optimizer": "ema-momentum"},
    "mirror-descent": {"public-batch": 5},
    "delayed": {"delay-plain": 2, "delay-preconditioned": 2, "clip-ratio": 3, "rate-ratio": 0.5},
    "past-releases": {"optimizer": "adam"},
}


def with_guide(name, **options):
    return BASE.with_options({"preconditioner": name.partition(",")[0], **GUIDES[name], **options})


@pytest.mark.slow
def test_every_guide_trains_under_either_bound(subtests):
    """One option exchanges clipping for normalisation in any of them."""
    for name in GUIDES:
        for bound in ["clip", "normalise"]:
            with subtests.test(name=name, bound=bound):
                options = {"bound": bound}
                if bound == "normalise":
                    options["normalise-regulariser"] = 0.01
                components, records, states = run(with_guide(name, **options))
                assert len(records) == 6 and np.isfinite(flat(states[-1])).all()
                assert not np.array_equal(flat(states[-1]), flat(states[-2]))
                spent = records[-1].released.epsilon
                if name == "ideal":  # clean gradients: no ε, though there is noise
                    assert not components.plan.is_private and spent is None
                else:
                    stated = components.plan.epsilon(6)
                    assert (spent, stated.unit) == (stated.value, "example")
                again = run(with_guide(name, **options))[2]
                np.testing.assert_array_equal(flat(again[-1]), flat(states[-1]))


def test_one_user_with_one_record_and_one_step_is_an_example():
    """The federated path, each of 200 users with one record, gives the centralised step."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(40, DIM)).astype(np.float32), rng.normal(size=40).astype(np.float32)
    trainer = trainer_of(
        nn.Linear(DIM, 1, bias=False),
        loss=lambda outputs, targets: 0.5 * (outputs - targets).square().mean(),
        learning_rate=1.0,
        batch_size=1,
    )
    weight, drawn = rng.normal(size=DIM).astype(np.float32), range(3, 23)
    users = {str(i): ArrayExamples(x[i : i + 1], y[i : i + 1, None]) for i in drawn}
    asked = {"bound": Clip(l2_clip_norm=0.7), "key": KEY}
    federated = contributed(trainer, {"weight": weight[None]}, users, **asked)
    central = CentralSum(gradients=LinearRegressionGradients(x, y), num_examples=40)
    found = contributed(central, {"weight": weight}, ids=drawn, **asked)
    assert_near(found.real(), {"weight": federated.real()["weight"].reshape(-1)})
