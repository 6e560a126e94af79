"""What a transform of users' work may send beside an update: the tensor it says, or nothing."""

import numpy as np
import pytest

from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.work import UserTransform, as_work, transformed
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import KEY, contributed
from tests.tasks.people import task

USERS = {name: ArrayExamples(np.ones((3, 4), np.float32), np.zeros(3, np.int64)) for name in "abc"}


class Sending(UserTransform):
    brought, summed = "count", True

    def __init__(self, array):
        self.array = array

    def sent(self, tensor, norm):
        return 1.0, self.array


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
    made = task(users=USERS, users_at_once=users_at_once)
    work = transformed(made.trainer(Schedule(learning_rate=0.1), {}), Sending(sent))
    params = {**made.init_params(KEY), "count": np.zeros(3, np.float32)}
    found = contributed(work, params, USERS)
    assert found.num_failed == failed
    assert bool(np.any(found.total["count"])) == (failed == 0)


def test_what_neither_trains_nor_sums_is_refused():
    with refuses(TypeError, "object"):
        as_work(object())
