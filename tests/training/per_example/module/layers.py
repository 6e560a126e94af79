"""Small modules, their per-example gradients, and how far one example moves a bounded sum."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedpriv import tree
from fedpriv.mechanisms.bounds import Clip
from fedpriv.rng import Key
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.toys_of_training import example_sum

KEY = Key.simulation(11)
WIDTH, CLASSES, NUM = 8, 3, 12
BOUND = Clip(l2_clip_norm=0.5)
EVERYBODY = np.arange(NUM)


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets)


class Layer(nn.Module):
    """A dense layer above a hidden one, and what a test does in between."""

    def __init__(self, between=lambda module, h: h):
        super().__init__()
        self.below, self.above = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)
        self.between = between

    def forward(self, x):
        return self.above(self.between(self, torch.tanh(self.below(x))))


def floats(*shape):
    return np.random.default_rng(3).normal(size=(NUM, *shape)).astype(np.float32) + np.float32(0.3)


def labels():
    return np.random.default_rng(4).integers(0, CLASSES, NUM)


def made(module, x=None, loss=cross_entropy, **options):
    x = floats(WIDTH) if x is None else x
    return ModuleGradients(module, loss, x, labels(), **options), module_params(module)


def furthest(gradients, params, index):
    """How far the bounded sum moves at most when one of the examples leaves."""
    total = example_sum(gradients, params, index, BOUND, KEY)
    moves = []
    for place in range(len(index)):
        others = example_sum(gradients, params, np.delete(index, place), BOUND, KEY)
        moves.append(tree.l2_norm({n: total[n] - others[n] for n in total}))
    return max(moves)


def gap(left, right):
    """The distance of two trees, relative to the second's length."""
    difference = {n: left[n] - right[n] for n in right}
    return tree.l2_norm(difference) / max(tree.l2_norm(right), 1e-12)
