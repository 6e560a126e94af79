"""Examples in whatever form their owner has them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedpriv.tasks.module_task import ArrayUsers
from fedpriv.training.local.module import ArrayExamples
from tests.harness.refusals import refuses
from tests.tasks.people import Files

X, Y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 1, 0])
FORMS = {
    "examples": ArrayExamples(X, Y),
    "tuple": (X, Y),
    "list": [X, Y],
    "tensors": (torch.from_numpy(X), torch.from_numpy(Y)),
    "lists": (X.tolist(), Y.tolist()),
    "dataset": TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
}
NO_FORMS = {
    "one array": X,
    "three": (X, Y, Y),
    "dataset of one": TensorDataset(torch.from_numpy(X)),
    "mapping": {"x": X, "y": Y},
    "text": "xy",
}


@pytest.mark.parametrize("given", FORMS.values(), ids=FORMS)
def test_forms_that_are_taken(given):
    users = ArrayUsers({"a": given})
    assert users.num_examples("a") == 4
    np.testing.assert_array_equal(users.examples("a").x, X)
    np.testing.assert_array_equal(users.examples("a").y, Y)


@pytest.mark.parametrize("given", NO_FORMS.values(), ids=NO_FORMS)
def test_others_are_refused_when_the_task_is_made(given):
    with refuses(ValueError, "a"):
        ArrayUsers({"a": given})


@pytest.mark.parametrize("other", ["ann ", "ann\0", "\u200bann"])
def test_one_persons_name_is_no_two_users(other):
    with refuses(ValueError, "ann"):
        ArrayUsers({"ann": (X, Y), other: (X, Y)})


def test_a_mapping_that_reads_files_is_not_read_when_the_task_is_made():
    files = Files({"a": (X, Y), "b": (X, Y)})
    users = ArrayUsers(files)
    assert files.read == 0
    assert users.num_examples("b") == 4


class TestSynthetic:
    def test_it_has_the_format_of_most_and_the_values_of_none(self):
        users = {f"u{number}": (X + 7.5, Y.astype(np.int16)) for number in range(5)}
        users["u0"] = (np.zeros((2, 9)), Y[:2])
        users["u1"] = (np.zeros((0, 3)), Y[:0])
        made = ArrayUsers(users).synthetic(nn.Linear(3, 2), 2)
        assert made is not None
        assert made.x.shape == (2, 3) and made.x.dtype == np.float32
        assert made.y.shape == (2,) and made.y.dtype == np.int64
        assert np.abs(made.x).max() < 7

    def test_users_values_do_not_move_it(self):
        def made(seed):
            x = np.random.default_rng(seed).normal(size=(4, 3))
            return ArrayUsers({"a": (x, Y)}).synthetic(nn.Linear(3, 2), 2)

        np.testing.assert_array_equal(made(0).x, made(1).x)
