"""Small modules, users of them, and both ways of training these."""

import numpy as np
import torch
from torch import nn

from fedpriv.rng import Key
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.vectorised import VectorisedTrainer

KEY = Key.simulation(3)
CLASSES = 5
# Ragged on purpose: nobody's, one, fewer than a batch, a batch, more than max_examples.
SIZES = (7, 0, 1, 4, 23, 2, 40, 0, 12, 5)


def difference(left, right):
    return {name: left[name] - right[name] for name in left}


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def softmax_regression():
    return nn.Linear(12, CLASSES), (12,)


def mlp():
    return nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, CLASSES)), (12,)


def cnn():
    layers = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 2 * 2, CLASSES)), (2, 6, 6)


class PartlyFrozen(nn.Module):
    """A frozen layer below, and a parameter that the loss never sees."""

    def __init__(self):
        super().__init__()
        self.below = nn.Linear(12, 6).requires_grad_(False)
        self.above = nn.Linear(6, CLASSES)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.above(torch.tanh(self.below(x)))


def partly_frozen():
    return PartlyFrozen(), (12,)


MODELS = {f.__name__: f for f in (softmax_regression, mlp, cnn, partly_frozen)}


def built(name):
    torch.manual_seed(11)
    return MODELS[name]()


def examples_of(number, shape, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, *shape)).astype(np.float32)
    return ArrayExamples(x, rng.integers(0, CLASSES, number))


def cohort(shape, sizes=SIZES):
    return {f"u{i}": examples_of(size, shape, seed=i) for i, size in enumerate(sizes)}


def trainers(module, users_at_once=4, multiplier=None, loss=cross_entropy, **changes):
    options = {"learning_rate": 0.3, "batch_size": 4, "epochs": 2, "max_examples": 30, **changes}
    alone = ModuleTrainer(
        module=module, loss=loss, schedule=Schedule(**options), multiplier=multiplier or {}
    )
    return alone, VectorisedTrainer(alone=alone, users_at_once=users_at_once)


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
