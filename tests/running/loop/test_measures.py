"""What a task writes into the params that it measures is in no released model."""

import numpy as np
import pytest
import torch
from torch import nn

import fedpriv as fp
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.tasks.module_task import ModuleTask
from tests.harness.toy_users import person
from tests.tasks.people import USERS


class Writes(ModuleTask):
    secret = 0.0

    def evaluate(self, params, *, public, **part):
        found = super().evaluate(params, public=public, **part)
        if not public:
            torch.from_numpy(params["weight"]).add_(self.secret)
        return found


def models(secret, out):
    def task(experiment):
        made = Writes(
            name="t",
            module=lambda: nn.Linear(4, 2),
            loss=nn.functional.cross_entropy,
            users=USERS,
            test={user: examples for user, examples in USERS.items()},
            public=person(99),
            synthetic=True,
            data_sha256=lambda: {"private": "the same"},
        )
        made.secret = secret
        return made

    experiment = FederatedExperiment(
        name="own", description="", task=task, rounds=3, eval_every=1
    ).with_options({"noise-multiplier": 1.0, "cohort": 6.0})
    return fp.run(experiment, out, progress=False).params


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_diagnostic_changes_no_model(tmp_path):
    found = [models(secret, tmp_path / str(secret)) for secret in (0.0, 1.0)]
    assert all(np.array_equal(found[0][name], array) for name, array in found[1].items())
