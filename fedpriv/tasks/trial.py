"""A task is tried once before anything is charged, so that a mistake in it ends the run.

In a round a user that fails contributes zero, alone, and its error is not shown: it may hold the
user's data. A model of the wrong width fails for everybody, and a whole run would be spent on
nothing but noise. So the same code is run first on examples of no one on the roster, and what it
raises there is raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound, Clip
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tasks.example_task import CentralTask
from fedpriv.tasks.task import ComparesPublic, ComparesPublicTraining, MakesExamples
from fedpriv.tasks.users_apart import (
    FIRST,
    SECOND,
    FreshWorks,
    SyntheticUsers,
    refuse_dependence,
)
from fedpriv.training.dp_agd import ExampleLosses
from fedpriv.training.evaluate import Metrics
from fedpriv.training.failures import raised_failures
from fedpriv.training.work import TRAIN, LocalTrainer, Work, as_work
from fedpriv.tree import Params

_KEY = Key.simulation(0).fold("trial of a task")
_FEW = 2
# Longer than any update, and short enough to be squared.
_NO_BOUND = Clip(l2_clip_norm=1e100)
_SOME = 1024
# Of a task that divides by users, the first; of one that divides by blocks, the first block.
_SMALL_PART = (0, 1 << 20)


def synthetic_batch(task: Any) -> Any | None:
    """Return what a task can be tried on; None where it makes no examples."""
    return task.synthetic_batch() if isinstance(task, MakesExamples) else None


def not_tried(task: Any) -> str:
    """Return what is said of a task that makes no examples, in one line."""
    return (
        f"what a user does in the task ({type(task).__name__}) could not be tried beforehand: a "
        "mistake in its train would spend the whole ε on noise; give the task a method "
        "synthetic_batch() that returns synthetic examples like one user's"
    )


def cautions(task: Any, found: Metrics | None, *, simulated: bool) -> tuple[str, ...]:
    """Return what is to be said of a task's public examples, in a line each.

    Args:
        task: Of users.
        found: What was measured of public examples in the trial; None for nothing.
        simulated: Whether rostered users' examples may be looked at to say it.
    """
    said = []
    if found is None and task.measures:
        said.append(
            f"nothing is measured on public examples, so no {task.measures[0].label} is released; "
            "give the task public examples, of users outside the roster"
        )
    if simulated and isinstance(task, ComparesPublic):
        equal, number = task.public_of_rostered()
        if equal:
            said.append(
                f"{equal:,} of {number:,} public examples are equal to examples of rostered users: "
                "what is measured on them is not released but private, and covered by no ε; take "
                "public examples of users outside the roster, unless these are equal by chance"
            )
    if simulated and isinstance(task, ComparesPublicTraining):
        equal, number = task.public_train_of_rostered()
        if equal:
            said.append(
                f"{equal:,} of {number:,} examples of public_train are equal to examples of "
                "rostered users: what is learnt from them is not public but private, and a start "
                "from it is covered by no ε; take examples of users outside the roster, unless "
                "these are equal by chance"
            )
    return tuple(said)


def public_of_rostered(task: Any, *, learnt_from: bool) -> dict[str, int]:
    """Return what a simulation records of public examples that equal rostered users'.

    Args:
        task: Of any kind; its rostered users' examples are looked at.
        learnt_from: Whether the model starts from what public examples taught it.

    Returns:
        How many are equal, by name: of those that are measured on, and of those learnt from.
        Nothing where there are none.
    """
    found = {}
    if isinstance(task, ComparesPublic):
        found["public_of_rostered"] = task.public_of_rostered()[0]
    if learnt_from and isinstance(task, ComparesPublicTraining):
        found["public_train_of_rostered"] = task.public_train_of_rostered()[0]
    return {name: equal for name, equal in found.items() if equal}


def try_trainer(trainer: LocalTrainer, params: Params, batch: Any, fresh: FreshWorks) -> None:
    """Train on a batch, then as two users in turn, and throw the updates away.

    Args:
        trainer: What a user does.
        params: Before the first round; not changed.
        batch: Examples of no rostered user.
        fresh: Works like it that have seen nothing.

    Raises:
        Exception: What the trainer raises.
        ValueError: If its update has other tensors than the params, or is not finite.
        KeepsStateError: As of `try_work`.
    """
    users = SyntheticUsers(batch)
    for examples in (batch, users.examples(FIRST), users.examples(SECOND)):
        update = tree.check_like(params, trainer.train(params, examples, _KEY))
        if not math.isfinite(tree.l2_norm(update)):
            raise ValueError(
                "the update of a user with public or synthetic examples is not finite: every "
                "user's would be left out, and the whole ε be spent on noise; lower the local "
                "learning rate (local-learning-rate), or give the task a synthetic_batch of "
                "examples like its users'"
            )
    try_work(as_work(trainer), params=params, bound=_NO_BOUND, batch=batch, fresh=fresh)


def try_work(
    work: Work,
    *,
    params: Params,
    bound: Bound,
    batch: Any,
    name: str = TRAIN,
    fresh: FreshWorks | None,
) -> PartialSum:
    """Return the sum of one synthetic user, which no other one changes.

    Args:
        work: What users do, one by one or side by side.
        params: Before the first round; not changed.
        bound: What contributions are bounded by.
        batch: Examples of no rostered user; where it can be halved, each user has a half.
        name: Of the work, for a message.
        fresh: Works like it that have seen nothing, to look for what users do to each other; None
            asks one user alone.

    Raises:
        Exception: What the work raises of a user.
        ValueError: If a user fails, and the work keeps to itself why.
        KeepsStateError: If a user's contribution is another one where another user came before it,
            or is there too: no bound of a single contribution would hold then
            (`fedpriv.tasks.users_apart`).
    """
    with raised_failures():
        found = work.partial_sum(
            params=params, bound=bound, data=SyntheticUsers(batch), user_ids=(FIRST,), key=_KEY
        )
    if found.num_failed:
        raise ValueError(
            f"work {name!r} fails on what the task's synthetic_batch() makes, and does not say "
            "why; let it call fedpriv.training.failures.contributes_zero(error)"
        )
    if fresh is not None:
        refuse_dependence(
            lambda: fresh.work(name), params=params, bound=bound, batch=batch, key=_KEY
        )
    return found


def try_task(
    task: Any, params: Params, batch: Any | None, train: Callable[[Any], None]
) -> Metrics | None:
    """Train on a batch, and measure the params on a small part of the public examples.

    Args:
        task: Of any kind; its rostered users are not looked at.
        params: Before the first round; not changed.
        batch: From `synthetic_batch`; None trains nothing.
        train: What is done with the batch.

    Raises:
        Exception: What the training or the measuring raises.
    """
    if batch is not None:
        train(batch)
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


def public_loss(task: CentralTask, params: Params) -> float | None:
    """Return the mean loss of some public examples; None without any, or where it is not finite.

    Args:
        task: Its private training set and its test set are not looked at.
        params: Before the first step; not changed.
    """
    if not isinstance(task.public, ExampleLosses):
        return None
    nowhere = {name: np.zeros_like(array) for name, array in params.items()}
    index = np.arange(min(task.num_public, _SOME))
    found = float(np.mean(task.public.losses_along(params, nowhere, [0.0], index)))
    return found if math.isfinite(found) else None
