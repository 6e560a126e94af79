from dataclasses import dataclass

import numpy as np
from torch import nn

from fedpriv.datasets.local_data import Table, local_users
from fedpriv.experiments import FederatedExperiment, GaussianNoise, LocalSgd
from fedpriv.mechanisms import Clip
from fedpriv.tasks.module_task import ModuleTask

VISITS = Table(
    user="patient",
    columns={"age": float, "pressure": float, "returned": int},
    allowed={"age": (0, 130), "returned": {0, 1}},
    name="visits",
)


def examples(columns):  # of one person: arrays by column, a row each
    x = np.stack([columns["age"] / 100, columns["pressure"] / 200], axis=1)
    return x, columns["returned"]


def public():  # of people on no roster; synthetic here
    rng = np.random.default_rng(0)
    x = rng.uniform(0.2, 1.0, (200, 2))
    return x, (x.sum(axis=1) > 1.2).astype(int)


@dataclass(frozen=True, kw_only=True)
class Visits:
    """Visits of local users.

    Attributes:
        roster_file: The file of all ids, on the server.
    """

    roster_file: str = ""

    def __call__(self, experiment, *, data=None):  # data: of a node; None on the server
        users = local_users(VISITS, examples, data=data, roster=self.roster_file)
        return ModuleTask(
            name="visits",
            module=lambda: nn.Linear(2, 2),
            public=public(),
            loss=nn.functional.cross_entropy,
            users=users,
        )


def experiment():
    return FederatedExperiment(
        name="visits",
        description="Who comes back?",
        task=Visits(),
        rounds=3,
        cohort=20.0,
        bound=Clip(l2_clip_norm=0.5),
        noise=GaussianNoise(multiplier=1.0),
        local=LocalSgd(learning_rate=0.5),
    )
