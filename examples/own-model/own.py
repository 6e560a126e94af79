import numpy as np
from torch import nn

from fedpriv.experiments import FederatedExperiment, GaussianNoise, LocalSgd
from fedpriv.mechanisms import Clip
from fedpriv.tasks.module_task import ModuleTask


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Linear(16, 2))


def people(first, last):
    for number in range(first, last):
        x = np.random.default_rng(number).normal(size=(20, 8))
        yield f"user-{number:03d}", (x, (x[:, 0] > 0).astype(int))


def task(experiment):
    return ModuleTask(
        name="halves",
        module=model,
        loss=nn.functional.cross_entropy,
        users=dict(people(0, 100)),
        public=next(people(100, 101))[1],
        synthetic=True,
    )


def experiment():
    return FederatedExperiment(
        name="own",
        description="My model on my users.",
        task=task,
        rounds=20,
        cohort=20.0,
        bound=Clip(l2_clip_norm=0.5),
        noise=GaussianNoise(multiplier=1.0),
        local=LocalSgd(learning_rate=0.5),
    )
