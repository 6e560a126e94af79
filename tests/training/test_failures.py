"""What is logged of a user that fails: never what its error says, which may be the user's data."""

import logging
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.failures import (
    contributes_zero,
    contributing_zero_on_failure,
    counted_failures,
    only_places_of_errors,
    raised_at,
    users_not_logged,
)
from fedpriv.training.local.module import ArrayExamples, module_params
from fedpriv.training.local.schedule import LocalSgd
from tests.harness.toys_of_training import KEY, contributed, mse, trainer_of
from tests.tasks.people import task

SECRET = "my diagnosis is private"


def raising():
    raise ValueError(SECRET)


def test_the_places_of_an_error_and_none_of_its_text():
    with pytest.raises(ValueError) as caught:
        raising()
    said = raised_at(caught.value)
    assert said.startswith("test_failures.py:") and "in raising" in said and SECRET not in said


class Convolving(nn.Module):
    def forward(self, x):
        return nn.Conv2d(1, 1, 1)(x)


def test_the_users_own_file_comes_before_a_librarys():
    with pytest.raises(RuntimeError) as caught:
        Convolving()(torch.zeros(1))
    own, library = raised_at(caught.value).split(", ")[0], raised_at(caught.value)
    assert own.startswith("test_failures.py:") and "conv.py:" in library


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_said_to_be_that(caplog, value):
    users = {"a": ArrayExamples(np.full((3, 4), value, np.float32), np.zeros(3, np.int64))}
    made = task(users=users)
    trainer = made.trainer(LocalSgd(learning_rate=0.1), {})
    with counted_failures() as failures:
        contributed(trainer, made.init_params(KEY), users)
    assert failures.text is not None
    for said in (caplog.text, failures.text.splitlines()[0]):
        assert "not finite" in said and "NaN" in said and "rate" in said


def test_of_a_node_kind_and_place_leave_and_no_text():
    with counted_failures() as failures, only_places_of_errors(), contributing_zero_on_failure():
        raising()
    assert failures.text is not None and SECRET not in failures.text
    assert failures.text.startswith("ValueError at test_failures.py:")


def test_nothing_of_the_text_at_any_level(caplog):
    caplog.set_level(logging.DEBUG, logger="fedpriv.training.failures")
    try:
        raising()
    except ValueError as error:
        contributes_zero(error)
    assert "ValueError" in caplog.text and "in raising" in caplog.text
    assert SECRET not in caplog.text and "Traceback" not in caplog.text


def test_a_simulation_is_told_where_it_was_raised_and_what_to_do(caplog):
    """The first of a kind: its kind, the innermost places, and what labels should be."""
    with counted_failures() as failures:
        for label in (777, 888):
            with contributing_zero_on_failure():
                nn.functional.cross_entropy(torch.zeros(1, 2), torch.tensor([label]))
    [line] = caplog.messages
    assert failures.count == 2 and failures.cause is not None
    assert failures.cause.startswith("IndexError at test_failures.py:") and failures.cause in line
    assert "functional.py" in line and "cross_entropy" in line and "numbered from 0" in line
    assert "777" not in line


@pytest.mark.parametrize("users_at_once", [1, 4])
def test_nor_from_a_trainer_whose_library_quotes_the_data(caplog, users_at_once):
    """torch names the label that is out of range."""
    caplog.set_level(logging.DEBUG)
    labels = {"a": 1, "b": 777, "c": 0}
    ones = np.ones((3, 4), np.float32)
    users = {name: ArrayExamples(ones, np.full(3, label)) for name, label in labels.items()}
    made = task(users=users, users_at_once=users_at_once)
    work = made.trainer(LocalSgd(learning_rate=0.1), {})
    total = contributed(work, made.init_params(KEY), users)
    assert total.num_failed == 1
    assert "IndexError" in caplog.text and "777" not in caplog.text


@pytest.mark.parametrize(("mode", "said"), [("simulation", 1), ("secure", 0)])
def test_numpy_warns_of_no_users_numbers_in_a_secure_run(mode, said):
    """Whoever reads the terminal would know of a user with such a number that it was drawn."""
    key = Key.from_bytes(bytes(32), mode)
    with warnings.catch_warnings(record=True) as found, users_not_logged(key):
        warnings.simplefilter("always")
        np.array([1e300]).astype(np.float32)
    assert len(found) == said


@pytest.mark.parametrize(("mode", "said"), [("simulation", 1), ("secure", 0)])
def test_libraries_warn_of_no_users_in_a_secure_run(mode, said):
    """PyTorch warns of targets of another shape: who has such was drawn, whoever reads knows."""
    key = Key.from_bytes(bytes(32), mode)
    trainer = trainer_of(nn.Linear(3, 1), loss=mse)
    examples = ArrayExamples(np.ones((4, 3), np.float32), np.ones(4, np.float32))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with users_not_logged(key):
            trainer.train(module_params(trainer.module), NO_CONTEXT, examples, key.fold("user"))
    assert len(found) == said


def test_warnings_stay_ignored_until_the_last_thread_has_left():
    """Filters of warnings are one set for all threads: the first to leave must not restore them."""
    key = Key.secure()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        first, second = users_not_logged(key), ExitStack()
        with ThreadPoolExecutor(1) as thread:
            first.__enter__()
            thread.submit(second.enter_context, users_not_logged(key)).result()
            first.__exit__(None, None, None)
            warnings.warn("of a user", stacklevel=1)
            assert not found
            thread.submit(second.close).result()
        warnings.warn("of nobody", stacklevel=1)
    assert len(found) == 1
