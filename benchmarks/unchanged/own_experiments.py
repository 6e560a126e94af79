"""Custom experiments for the recorder: synthetic users, synthetic examples, small models.

The only file of the recorder that calls fedpriv's Python API; where that moves, only this file is
adapted. What it makes must stay the same: every array comes from a seed.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from torch import nn

from fedpriv.datasets.dataset import Dataset
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.mechanisms import SideInformation
from fedpriv.mechanisms.preconditioners import Statistics
from fedpriv.tasks.dataset_tasks import linear_task, module_task
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.per_example.linear import LogisticGradients

NUM_FEATURES = 8


def _examples(seed: int, number: int) -> ArrayExamples:
    x = np.random.default_rng(seed).normal(size=(number, NUM_FEATURES)).astype(np.float32)
    return ArrayExamples(x, (x[:, 0] + x[:, 1] > 0).astype(np.int64))


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, 16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Linear(16, 2)
    )


def _users_task(users_at_once: int) -> ModuleTask:
    # Users of unequal size: from 3 to 14 examples.
    users = {f"user-{number:02d}": _examples(number, 3 + number % 12) for number in range(30)}
    return ModuleTask(
        name="halves",
        module=_model,
        loss=nn.functional.cross_entropy,
        users=users,
        test=_examples(100, 64),
        public=_examples(101, 64),
        synthetic=True,
        users_at_once=users_at_once,
    )


def _dense(name: str, users_at_once: int) -> Experiment:
    return FederatedExperiment(
        name=name,
        description="A small dense model on synthetic users.",
        task=lambda experiment, corpus: _users_task(users_at_once),
        rounds=4,
        delta=0.01,
        eval_every=2,
    ).with_options(
        {
            "cohort": 8.0,
            "l2_clip_norm": 0.5,
            "noise_multiplier": 0.8,
            "local_learning_rate": 0.5,
            "local_batch_size": 4,
            "local_epochs": 2,
        }
    )


def dense() -> Experiment:
    """A dense model, users one by one."""
    return _dense("dense", 1)


def dense_at_once() -> Experiment:
    """The same, four users at once."""
    return _dense("dense-at-once", 4)


def _pairs(seed: int, number: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(number, *shape)).astype(np.float32)
    return x, (x.reshape(number, -1)[:, :3].sum(axis=1) > 0).astype(np.int64)


def _data(name: str, shape: tuple[int, ...], *, rows: bool = False) -> Dataset:
    (x, y), (x_test, y_test), (x_public, y_public) = (
        _pairs(0, 120, shape),
        _pairs(1, 60, shape),
        _pairs(2, 16, shape),
    )
    pack = sparse.csr_matrix if rows else np.asarray
    return Dataset(
        name=name,
        x_train=pack(x),
        y_train=y,
        x_test=pack(x_test),
        y_test=y_test,
        x_public=pack(x_public),
        y_public=y_public,
        provenance={},
        synthetic=True,
    )


def _central(name: str, task, **options) -> Experiment:
    given = {
        "batch_size": 12,
        "steps": 12,
        "noise_multiplier": 1.0,
        "l2_clip_norm": 0.5,
        "learning_rate": 0.3,
        "delta": 1e-3,
        "eval_every": 3,
    }
    return CentralExperiment(
        name=name,
        description="Synthetic examples.",
        task=task,
        presets={"public-batch": 8, "side-information": "given"},
        **options,
    ).with_options(given)


def _side_information() -> SideInformation:
    rows = np.linspace(0.3, 3.0, NUM_FEATURES, dtype=np.float32)
    return SideInformation(multiplier={"weight": rows}, source="public", description="given")


def logistic() -> Experiment:
    """Logistic regression on sparse rows; every preconditioner runs on it."""

    def task(experiment, corpus):
        data = _data("rows", (NUM_FEATURES,), rows=True)
        shapes = {"weight": (NUM_FEATURES,), "bias": (1,)}
        return linear_task(data, LogisticGradients, shapes, {"given": _side_information})

    own = Statistics(second=lambda v, g: np.maximum(np.float32(0.9) * v, np.abs(g)))
    return _central("logistic", task, statistics=own)


def perceptron() -> Experiment:
    """A dense model, example by example."""

    def task(experiment, corpus):
        data = _data("vectors", (NUM_FEATURES,))
        return module_task(data, _model, nn.functional.cross_entropy)

    return _central("perceptron", task)


def convolution() -> Experiment:
    """A convolutional model, example by example."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2)
        )

    def task(experiment, corpus):
        return module_task(_data("images", (1, 6, 6)), make, nn.functional.cross_entropy)

    return _central("convolution", task)
