"""A tiny classifier on synthetic users, for the study beside it."""

import numpy as np
from torch import nn

from fedpriv.experiments import FederatedExperiment, GaussianNoise, LocalSgd
from fedpriv.mechanisms import Clip
from fedpriv.tasks.module_task import ModuleTask


def person(number):
    x = np.random.default_rng(number).normal(size=(20, 4))
    return x, (x[:, 0] > 0).astype(int)


def task(experiment):
    return ModuleTask(
        name="halves",
        synthetic=True,
        module=lambda: nn.Linear(4, 2),
        loss=nn.functional.cross_entropy,
        users={f"user-{number:02d}": person(number) for number in range(60)},
        public=person(60),
    )


def experiment():
    return FederatedExperiment(
        name="halves",
        description="A linear classifier on synthetic users.",
        task=task,
        rounds=4,
        cohort=20.0,
        bound=Clip(l2_clip_norm=0.5),
        noise=GaussianNoise(multiplier=1.0),
        local=LocalSgd(learning_rate=0.5),
    )
