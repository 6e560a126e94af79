"""Synthetic users with a handful of points each, and an experiment that is found by its name."""

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


def person(number: int, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Return points of four coordinates, and whether the first of each is positive."""
    x = np.random.default_rng(number).normal(size=(size, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def toy_experiment(task: dict[str, Any] | None = None, **options: Any) -> FederatedExperiment:
    """Return four rounds of a linear model on twelve users.

    Args:
        task: What the `ModuleTask` is given besides.
        **options: Of the experiment; it has noise unless they say otherwise.
    """
    given = {
        "module": lambda: nn.Linear(4, 2),
        "loss": nn.functional.cross_entropy,
        "users": {f"u{n:02d}": person(n) for n in range(12)},
        "public": person(98, 60),
        "synthetic": True,
        **(task or {}),
    }
    made = FederatedExperiment(
        name="own",
        description="",
        task=lambda experiment: ModuleTask(name="own", **given),
        rounds=4,
        delta=0.01,
    )
    usual = {} if options.get("noise") == "none" else {"noise_multiplier": 1.0}
    return made.with_options({"cohort": 6.0, **usual, **options})
