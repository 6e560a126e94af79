"""Small modules, their per-example gradients, and how far one example moves a bounded sum."""

import numpy as np
import torch
from torch import nn

from fedpriv.mechanisms.bounds import Clip
from fedpriv.rng import Key
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.toys_of_training import cross_entropy, distance

KEY = Key.simulation(11)
WIDTH, CLASSES, NUM = 8, 3, 12
BOUND = Clip(l2_clip_norm=0.5)
EVERYBODY = np.arange(NUM)
X = np.random.default_rng(3).normal(size=(NUM, WIDTH)).astype(np.float32) + np.float32(0.3)
Y = np.random.default_rng(4).integers(0, CLASSES, NUM)


class Layer(nn.Module):
    """A dense layer above a hidden one, and what a test does in between."""

    def __init__(self, between=lambda module, h: h):
        super().__init__()
        self.below, self.above = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)
        self.between = between

    def forward(self, x):
        return self.above(self.between(self, torch.tanh(self.below(x))))


def made(module, x=X, loss=cross_entropy, **options):
    return ModuleGradients(module, loss, x, Y, **options), module_params(module)


def furthest(gradients, params, index):
    """How far the bounded sum moves at most when one of the examples leaves."""
    total = gradients.bounded_sum(params, index, BOUND, KEY)
    others = (np.delete(index, place) for place in range(len(index)))
    return max(distance(gradients.bounded_sum(params, o, BOUND, KEY), total) for o in others)
