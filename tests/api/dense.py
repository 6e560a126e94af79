"""An experiment of its own: a small model on six synthetic users."""

import numpy as np
from torch import nn

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ArrayExamples


def task(experiment):
    rng = np.random.default_rng(1)
    users = {
        f"user-{number}": ArrayExamples(
            x=rng.normal(size=(4, 3)).astype(np.float32), y=rng.integers(0, 2, 4)
        )
        for number in range(6)
    }
    return ModuleTask(
        name="dense",
        module=lambda: nn.Linear(3, 2),
        loss=nn.functional.cross_entropy,
        users=users,
        public=users["user-0"],
        synthetic=True,
    )


def experiment():
    return FederatedExperiment(
        name="dense",
        description="A small dense model.",
        task=task,
        delta=0.01,
        rounds=3,
        eval_every=1,
    ).with_options({"noise_multiplier": 1.0, "cohort": 2.0})
