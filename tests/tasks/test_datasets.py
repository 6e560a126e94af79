"""Tasks made of data sets: what they are called, what they hold, and digests of their examples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from torch import nn

from fedpriv.datasets.dataset import Dataset, hold_out_public, limit_public
from fedpriv.rng import Key
from fedpriv.tasks.dataset_tasks import linear_task, module_task
from fedpriv.tasks.task import check_data_digests, data_digests
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.refusals import refuses

DIM = 4
SECRET = b"s" * 32


def dataset(convert=sparse.csr_matrix, **given):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, DIM)).astype(np.float32) * (rng.random((60, DIM)) < 0.7)
    y = rng.integers(0, 2, 60)
    given = {"name": "made up", "provenance": {"source": "made"}, **given}
    x, x_test = convert(x[:40]), convert(x[40:])
    return Dataset(x_train=x, y_train=y[:40], x_test=x_test, y_test=y[40:], **given)


def linear(data):
    return linear_task(data, LogisticGradients, {"weight": (DIM,), "bias": (1,)})


def module(data):
    return module_task(data, lambda: nn.Linear(DIM, 2), nn.functional.cross_entropy)


MAKERS = {"linear": (linear, sparse.csr_matrix), "module": (module, np.asarray)}


@pytest.fixture(params=MAKERS)
def made(request):
    """A data set with a public part, and what makes a task of it."""
    make, convert = MAKERS[request.param]
    return hold_out_public(dataset(convert), 0.25), make


def test_a_task_is_of_its_data_set(made):
    data, make = made
    task = make(data)
    assert (task.name, task.num_train, task.num_public) == ("made up", 30, 10)
    assert task.provenance["public"]["size"] == 10 and not task.synthetic
    params = task.init_params(Key.simulation(0))
    assert task.evaluate(params, public=True).num_examples == 20
    for gradients, y in ((task.train, data.y_train), (task.public_examples(), data.y_public)):
        found = gradients.gradient(params, np.arange(len(y)))
        assert found.keys() == params.keys() and np.abs(found["weight"]).sum() > 0
        with pytest.raises((ValueError, IndexError)):  # of the part's size, and not of another's
            gradients.gradient(params, np.arange(len(y) + 1))
    bare = make(dataset(type(data.x_train) if sparse.issparse(data.x_train) else np.asarray))
    assert bare.public is None and bare.num_public == 0


class TestDigests:
    def test_the_same_data_made_again_have_the_same(self, made):
        data, make = made
        again = hold_out_public(dataset(MAKERS["linear" if make is linear else "module"][1]), 0.25)
        assert data_digests(make(data)) == data_digests(make(again)) == data.sha256()
        check_data_digests(make(again), data.sha256(), None, "run")

    def test_any_other_private_example_is_another(self, made):
        data, make = made
        for change in (
            {"x_train": data.x_train * np.float32(2)},
            {"y_train": 1 - data.y_train},
            {"x_train": data.x_train[::-1], "y_train": data.y_train[::-1]},
            {"x_train": data.x_train.astype(np.float64)},
        ):
            task = make(replace(data, **change))
            found = data_digests(task)
            assert found["private"] != data.sha256()["private"]
            assert found["public"] == data.sha256()["public"]
            with refuses(ValueError, "private", "run"):
                check_data_digests(task, data.sha256(), None, "run")

    def test_other_public_examples_are_another(self, made):
        data, make = made
        bare = replace(data, x_public=None, y_public=None)
        for made_of, digests, named in (
            (limit_public(data, 9), data.sha256(), data.sha256()["public"][:12]),
            (bare, data.sha256(), data.sha256()["public"][:12]),
            (data, bare.sha256(), "none"),
        ):
            with refuses(ValueError, "public", "run", named):
                check_data_digests(make(made_of), digests, None, "run")

    def test_keyed_they_are_compared_and_tell_nothing(self, made):
        data, make = made
        sealed = data_digests(make(data), SECRET)
        assert sealed != data_digests(make(data), b"t" * 32)
        assert not set(sealed.values()) & set(data.sha256().values())
        check_data_digests(make(data), sealed, SECRET, "run")
        with refuses(ValueError, "private"):
            check_data_digests(make(replace(data, y_train=1 - data.y_train)), sealed, SECRET, "run")

    def test_a_task_that_says_nothing_is_not_checked_and_may_not_fall_silent(self, made):
        data, make = made
        silent = replace(make(data), data_sha256=None)
        assert data_digests(silent) is None
        check_data_digests(make(data), None, None, "run")
        check_data_digests(silent, None, None, "run")
        with refuses(ValueError, "run"):
            check_data_digests(silent, data.sha256(), None, "run")
