"""Targets of -100 are counted nowhere: not by measures, by classes, nor by what tries a task."""

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.tasks.dataset_tasks import module_task
from fedpriv.training.evaluate import measure_models
from tests.harness.toys_of_training import cross_entropy, data_set, zeros
from tests.tasks.people import accepted, person, task

IGNORED = -100
X = np.eye(4, dtype=np.float32)
PARAMS = {"weight": np.eye(2, 4, dtype=np.float32), "bias": np.zeros(2, np.float32)}


def ignoring(y, *places):
    y = np.array(y)
    y[list(places)] = IGNORED
    return y


def measured(x, y, params=PARAMS):
    made = task(users={"ann": person(0)}, public=(x, y))
    return made.evaluate(params, public=True)


def test_accuracy_and_loss_are_of_those_that_are_counted():
    """Of four answers 0, 1, 0, 0 the labels 0, 1, 1 are counted: two are right."""
    y = np.array([0, 1, 1, IGNORED])
    found = measured(X, y)
    assert found.get("accuracy") == 2 / 3
    assert found.totals["accuracy"].count == 3
    outputs = torch.from_numpy(X @ PARAMS["weight"].T)
    by_hand = float(cross_entropy(outputs, torch.from_numpy(y)))
    assert found.get("loss") == pytest.approx(by_hand)


def test_a_block_of_none_that_count_changes_no_mean():
    """Measured in blocks of 1,024: PyTorch's mean over none is NaN."""
    y = np.concatenate([np.full(1024, IGNORED), [0, 1, 0, 1]])
    found = measured(X[np.arange(len(y)) % 4], y)
    assert found.get("accuracy") == 0.75  # answers are 0, 1, 0, 0
    assert np.isfinite(found.get("loss"))


def test_nothing_is_measured_of_none():
    assert measured(X, np.full(4, IGNORED)).get("accuracy") is None


def test_each_users_share_is_of_what_is_counted():
    made = task(
        users={"ann": person(0), "bob": person(1)},
        test={"ann": (X, [0, IGNORED, IGNORED, 1]), "bob": (X, [0, 1, 0, 0])},
    )
    counts, sums = made.held_out_by_user(PARAMS)
    assert (counts.tolist(), sums.tolist()) == ([2, 4], [1.0, 4.0])


def test_classes_are_of_those_that_are_counted():
    made = task(public=(X, np.array([0, 1, 1, IGNORED])))
    labels = np.concatenate([labels for _, labels in made.class_scores(PARAMS, public=True)])
    assert labels.tolist() == [0, 1, 1]
    assert measure_models(made, PARAMS, public=True).get("accuracy") == 2 / 3


@pytest.mark.parametrize("ignored", [16, 40])
def test_a_task_whose_first_public_targets_are_ignored_is_tried(tmp_path, ignored):
    """The first sixteen, or all: others, or synthetic ones, are looked at."""
    x = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
    made = task(public=(x, ignoring((x[:, 0] > 0).astype(int), *range(ignored))))
    prepared = accepted(tmp_path / "run", made)
    assert not any("could not be tried" in caution for caution in prepared.cautions)


def test_a_centralised_task_likewise():
    x, y = person(0)
    data = data_set(x, y, test=(x, ignoring(y, 0, 1)))
    made = module_task(data, lambda: nn.Linear(4, 2), cross_entropy)
    assert made.measure(PARAMS).totals["accuracy"].count == 4


def test_float_targets_of_that_value_are_counted():
    made = task(
        module=lambda: nn.Linear(4, 1),
        loss=lambda outputs, y: (outputs[:, 0] - y).square().mean(),
        users={"ann": (X, np.ones(4, np.float32))},
        public=(X, np.full(4, -100.0, np.float32)),
    )
    zero = zeros(weight=(1, 4), bias=1)
    assert made.evaluate(zero, public=True).get("mean_squared_error") == 10_000.0
