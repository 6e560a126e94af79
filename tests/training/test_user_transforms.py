"""What a transform of users' work may send beside an update: the tensor it says, or nothing."""

import numpy as np
import pytest
from torch import nn

from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.work import UserTransform, transformed

USERS = {name: ArrayExamples(np.ones((3, 4), np.float32), np.zeros(3, np.int64)) for name in "abc"}


class Sending(UserTransform):
    brought, summed = "count", True

    def __init__(self, array):
        self.array = array

    def sent(self, tensor, norm):
        return 1.0, self.array


def summed(users_at_once, sent):
    task = ModuleTask(
        name="synthetic",
        module=lambda: nn.Linear(4, 2),
        loss=nn.functional.cross_entropy,
        users=USERS,
        synthetic=True,
        users_at_once=users_at_once,
    )
    work = transformed(task.trainer(Schedule(learning_rate=0.1), {}), Sending(sent))
    params = {**task.init_params(Key.simulation(0)), "count": np.zeros(3, np.float32)}
    return work.partial_sum(
        params=params,
        bound=Clip(l2_clip_norm=1.0),
        data=task.data,
        user_ids=list(USERS),
        key=Key.simulation(0),
    )


@pytest.mark.slow
@pytest.mark.parametrize("users_at_once", [1, 4])
@pytest.mark.parametrize(
    ("sent", "failed"),
    [
        ({"count": np.ones(3, np.float32)}, 0),
        ({"count": np.ones(1, np.float32)}, 3),
        ({"other": np.ones(3, np.float32)}, 3),
        ({}, 3),
    ],
)
def test_users_whose_further_tensor_is_another_contribute_zero(users_at_once, sent, failed):
    """Red before on many users at once: one number was spread over three places of the sum."""
    found = summed(users_at_once, sent)
    assert found.num_failed == failed
    assert bool(np.any(found.total["count"])) == (failed == 0)
