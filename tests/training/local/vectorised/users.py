"""Users of small modules, and both ways of training these."""

import torch
from torch import nn

from fedpriv.mechanisms.bounds import Clip, Rounded
from fedpriv.rng import Key
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
    options = {"learning_rate": 0.3, "batch_size": 4, "epochs": 2, "max_examples": 30, **changes}
    many = trainer_of(module, users_at_once, loss=loss, multiplier=multiplier, **options)
    return many.alone, many


def total_of(trainer, params, users, ids=None, bound=GRID):
    return contributed(trainer, params, users, ids, bound=bound, key=KEY)


def keys(users):
    return [KEY.fold(user) for user in users]


def together(trainer, params, users):
    """Every user's update in batches, as numpy trees; None of one that failed."""
    found = dict.fromkeys(range(len(users)))
    works = [
        trainer.prepare(params, user, examples, key)
        for user, (examples, key) in enumerate(zip(users.values(), keys(users), strict=True))
    ]
    for updates in trainer.batches(trainer.start(params), works, batch_invariant=False):
        for row, user in enumerate(updates.users):
            found[user] = {n: t[row].cpu().numpy() for n, t in updates.tensors.items()}
    return list(found.values())
