"""A centralised task of synthetic reviews, and an experiment on it."""

from __future__ import annotations

import numpy as np

from fedpriv.backends import SerialBackend
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.mechanisms import SideInformation
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.tasks.central import CentralTask, zeros
from tests.training.per_example.linear.case import at_zero

NUM, DIM, KEY = 200, 12, Key.simulation(4)
SHAPES = {"weight": (DIM,), "bias": (1,)}
SIDE = np.linspace(0.2, 5.0, DIM, dtype=np.float32)


def reviews(num, seed):
    rng = np.random.default_rng(seed)
    x = (rng.random((num, DIM)) < 0.4) * rng.uniform(0.5, 2.0, (num, DIM))
    y = (x[:, 0] + 0.3 * rng.normal(size=num) > x[:, 1]).astype(np.int64)
    return at_zero("logistic", x.astype(np.float32), y)[0]


def task(experiment=None, corpus=None):
    return CentralTask(
        name="made up",
        train=reviews(NUM, 0),
        num_train=NUM,
        init=zeros(SHAPES),
        measure=lambda params: None,
        data_sha256=lambda: {"private": "ab" * 32},
        public=reviews(20, 1),
        num_public=20,
        side={
            "frequency": lambda: SideInformation(
                multiplier={"weight": SIDE}, source="public", description="counts"
            ),
            "ones": lambda: SideInformation(
                multiplier={"weight": np.ones(DIM, np.float32)}, source="public", description="1"
            ),
        },
        synthetic=True,
    )


BASE = CentralExperiment(
    name="central", description="A test.", task=task, batch_size=20, steps=6, delta=1e-3
).with_options({"noise_multiplier": 0.5, "l2_clip_norm": 0.3, "learning_rate": 0.5})


def run(experiment):
    components = build(experiment)
    backend = SerialBackend(trainer=components.trainer, measure=components.task.evaluate)
    records, states = zip(*rounds(components, backend, KEY, noise=KEY), strict=True)
    return components, records, states


def flat(state):
    return np.concatenate([state.params[name].reshape(-1) for name in sorted(state.params)])
