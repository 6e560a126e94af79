import numpy as np
from torch import nn

from fedpriv.experiments import FederatedExperiment, GaussianNoise, LocalSgd
from fedpriv.measures import Measure
from fedpriv.mechanisms import Clip
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module_measures import REGRESSION, ModuleMeasure

SLOPE = [1.0, -2.0, 0.5, 0.0]
NEAR = ModuleMeasure(
    measure=Measure(name="near", label="within 0.5", form="share"),
    compute=lambda outputs, targets: (outputs - targets).abs() < 0.5,
)


def person(number):
    rng = np.random.default_rng(number)
    x = rng.normal(size=(20, 4))
    return x, x @ SLOPE + rng.normal(0.0, 0.1, 20)


def task(experiment):
    return ModuleTask(
        name="synthetic lines",
        synthetic=True,
        loss=nn.functional.mse_loss,
        module=lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
        users={f"user-{n:03d}": person(n) for n in range(100)},
        public=person(100),
        measures=(*REGRESSION, NEAR),
    )


def experiment():
    return FederatedExperiment(
        name="line",
        description="Linear regression.",
        task=task,
        rounds=20,
        cohort=30.0,
        bound=Clip(l2_clip_norm=1.0),
        noise=GaussianNoise(multiplier=0.7),
        local=LocalSgd(learning_rate=0.05, batch_size=10),
    )
