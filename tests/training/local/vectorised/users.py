"""Users of small modules, and both ways of training these."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.mechanisms.bounds import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.vectorised import VectorisedTrainer
from tests.harness.toys_of_training import (
    Partly,
    contributed,
    convolutions,
    cross_entropy,
    labelled,
    mlp,
    trainer_of,
)

KEY = Key.simulation(3)
GRID = Rounded(bound=Clip(l2_clip_norm=0.2))
CLASSES = 5
# Ragged on purpose: nobody's, one, fewer than a batch, a batch, more than max_examples.
SIZES = (7, 0, 1, 4, 23, 2, 40, 0, 12, 5)
MODELS = {
    "softmax_regression": (lambda: nn.Linear(12, CLASSES), (12,)),
    "mlp": (lambda: mlp(classes=CLASSES), (12,)),
    "cnn": (lambda: convolutions(CLASSES, dropout=0.0), (2, 6, 6)),
    "partly_frozen": (lambda: Partly(CLASSES, dropout=0.0), (12,)),
}


def built(name):
    torch.manual_seed(11)
    make, shape = MODELS[name]
    module = make()
    module(torch.zeros(2, *shape))  # lazy layers
    return module, shape


def examples_of(number, shape, seed):
    return labelled(number, shape, CLASSES, seed)


def cohort(shape, sizes=SIZES):
    return {f"u{i}": examples_of(size, shape, seed=i) for i, size in enumerate(sizes)}


def trainers(module, users_at_once=4, multiplier=None, loss=cross_entropy, **changes):
    options = {
        "learning_rate": 0.3,
        "batch_size": 4,
        "epochs": 2,
        "max_examples_per_user": 30,
        **changes,
    }
    many = trainer_of(module, users_at_once, loss=loss, multiplier=multiplier, **options)
    return many.alone, many


def total_of(trainer, params, users, ids=None, bound=GRID, context=NO_CONTEXT):
    return contributed(trainer, params, users, ids, bound=bound, key=KEY, context=context)


def keys(users):
    return [KEY.fold(user) for user in users]


def together(trainer, params, users):
    """Every user's update in batches, as numpy trees; None of one that failed."""
    works = [
        trainer.prepare(params, examples, key)
        for examples, key in zip(users.values(), keys(users), strict=True)
    ]
    found: dict[int, Any] = {id(work): None for work in works}
    many, one = VectorisedTrainer.together, VectorisedTrainer._one

    def in_a_batch(self, start, context, few):
        local, well = many(self, start, context, few)
        for row, work in enumerate(few):
            if well[row]:
                found[id(work)] = {n: t[row].numpy().copy() for n, t in local.updates.items()}
        return local, well

    def by_itself(self, start, context, work):
        for stack in one(self, start, context, work):
            found[id(work)] = {n: t[0].numpy().copy() for n, t in stack.updates.items()}
            yield stack

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VectorisedTrainer, "together", in_a_batch)
        patch.setattr(VectorisedTrainer, "_one", by_itself)
        # Whether bits stay, which a machine decides, is of other tests.
        patch.setattr(VectorisedTrainer, "_is_batch_invariant", lambda *given: True)
        start = trainer.alone.start(params)
        stacks = [*trainer.batches(start, NO_CONTEXT, works)]
    for work in works:
        if not work.batches:
            found[id(work)] = {name: np.zeros_like(array) for name, array in params.items()}
    rows = [
        {name: tensor[row].numpy() for name, tensor in stack.updates.items()}
        for stack in stacks
        for row in range(len(next(iter(stack.updates.values()))))
    ]
    kept = [update for update in found.values() if update is not None]
    assert sorted(map(_bits, rows)) == sorted(map(_bits, kept))
    return list(found.values())


def _bits(update):
    return [update[name].tobytes() for name in sorted(update)]
