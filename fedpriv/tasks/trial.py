"""A task is tried once before anything is charged, so that a mistake in it ends the run.

In a round a user that fails contributes zero, alone, and its error is not shown: it may hold the
user's data. A model of the wrong width fails for everybody, and a whole run would be spent on
nothing but noise. So the same code is run first on examples of nobody on the roster, and what it
raises there is raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpriv import tree
from fedpriv.rng import Key
from fedpriv.tasks.example_task import CentralTask
from fedpriv.training.evaluate import Metrics
from fedpriv.training.local.trainer import LocalTrainer
from fedpriv.tree import Params

_KEY = Key.simulation(0).fold("trial of a task")
_FEW = 2
# Of a task that divides by users, the first; of one that divides by blocks, the first block.
_SMALL_PART = (0, 1 << 20)


def try_task(task: Any, trainer: LocalTrainer, params: Params) -> Metrics | None:
    """Train on the task's `synthetic_batch()`, throw the update away, and measure the params.

    A task without that method, or whose batch is None, is not trained. It is measured on a small
    part of its public examples.

    Args:
        task: Of any kind; its rostered users are not looked at.
        trainer: What a user does.
        params: Before the first round; not changed.

    Raises:
        Exception: What the trainer or the measuring raises.
        ValueError: If its update has other tensors than the params.
    """
    make = getattr(task, "synthetic_batch", None)
    batch = None if make is None else make()
    if batch is not None:
        tree.check_like(params, trainer.train(params, batch, _KEY))
    found = task.evaluate(params, public=True, part=_SMALL_PART)
    if found is None and task.measures and task.describe().num_public_users > 0:
        found = task.evaluate(params, public=True)  # the first may have no example
    return found


def try_central_task(task: CentralTask, params: Params) -> Metrics | None:
    """Make a gradient of a few public examples; without any, measure the params on the test set.

    Args:
        task: Its private training set is not looked at.
        params: Before the first step; not changed.

    Raises:
        Exception: What the model or its loss raises.
    """
    if task.public is None:
        return task.measure(params)
    task.public.gradient(params, np.arange(min(task.num_public, _FEW)), _KEY)
    return None
