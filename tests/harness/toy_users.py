"""A small linear model on synthetic users, and an experiment of it that is found by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ArrayExamples

#: What commands and workers find the experiment by.
NAME = "tests.harness.toy_users:experiment"


class Tampered:
    """Users of others' data, whose examples a function gives, or fails to give, by a user's id."""

    def __init__(self, data: Any, examples: Any) -> None:
        self.num_examples, self.examples = data.num_examples, examples


def examples(seed: int, number: int) -> ArrayExamples:
    """Return rows of three normals, and whether the first of each is above zero."""
    x = np.random.default_rng(seed).normal(size=(number, 3)).astype(np.float32)
    return ArrayExamples(x=x, y=(x[:, 0] > 0).astype(np.int64))


def users(count: int, number: int, first: int = 0) -> dict[str, ArrayExamples]:
    """Return so many users with so many examples each, drawn by seeds from `first` on."""
    return {f"user-{place}": examples(first + place, number) for place in range(count)}


def task(**changes: Any) -> ModuleTask:
    """Return the task of six users of four examples, with some arguments changed."""
    given = {
        "name": "dense", "module": lambda: nn.Linear(3, 2), "loss": nn.functional.cross_entropy,
        "users": users(6, 4), "public": examples(99, 4), "synthetic": True,
    }  # fmt: skip
    return ModuleTask(**{**given, **changes})


def experiment(**changes: Any) -> FederatedExperiment:
    """Return an experiment of three rounds on the task."""
    return FederatedExperiment(
        name="dense", description="A small dense model.", delta=0.01, rounds=3, eval_every=1,
        task=lambda experiment: task(**changes),
    ).with_options({"noise_multiplier": 1.0, "cohort": 2.0})  # fmt: skip
