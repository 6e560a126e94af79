"""Centralised training is a federated round whose users hold one record: the laws of that."""

from __future__ import annotations

import numpy as np
from torch import nn

from fedpriv.mechanisms import Clip
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import LinearRegressionGradients
from tests.harness.toys_of_training import assert_near, contributed, trainer_of
from tests.training.per_example.example_sum.reviews import DIM, KEY


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
