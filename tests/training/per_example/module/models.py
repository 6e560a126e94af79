"""Models of every kind of layer, small, with data for each."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedpriv import tree
from fedpriv.mechanisms.bounds import Clip, Mixture, Normalise, Preconditioned, Unbounded
from fedpriv.models import DigitClassifier, SoftmaxRegression
from fedpriv.rng import Key
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from simulations.adadps.models import Autoencoder, TextLSTM
from simulations.dpnsgd.resnet import ResNet20

KEY = Key.simulation(5)
CLASSES, NUM = 4, 11


class Sequences(nn.Module):
    """Embedding with a padding word, dense layers over time, layer norm, one layer twice."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(17, 6, padding_idx=0)
        self.norm = nn.LayerNorm(6)
        self.twice = nn.Linear(6, 6)
        self.wide = nn.Linear(6, 40)
        self.head = nn.Linear(40, CLASSES)

    def forward(self, ids):
        hidden = self.norm(self.words(ids))
        hidden = torch.tanh(self.twice(torch.tanh(self.twice(hidden))))
        return self.head(torch.tanh(self.wide(hidden)).mean(1))


class Partly(nn.Module):
    """A frozen layer below, dropout, and a parameter's layer that the loss never sees."""

    def __init__(self):
        super().__init__()
        self.below = nn.Linear(12, 6).requires_grad_(False)
        self.above = nn.Linear(6, CLASSES, bias=False)
        self.unused = nn.Linear(2, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.above(self.drop(torch.tanh(self.below(x))))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(3, 6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, (3, 2), groups=2, dilation=(1, 2), padding=(0, 2)),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )


def floats(*shape):
    return lambda rng: rng.normal(size=(NUM, *shape)).astype(np.float32)


def words(length, number):
    return lambda rng: rng.integers(0, number, (NUM, length))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, CLASSES)), floats(12)),
    "linear": (lambda: nn.Linear(12, CLASSES), floats(12)),
    "softmax regression": (lambda: SoftmaxRegression(12, CLASSES), floats(12)),
    "convolutions": (convolutions, floats(2, 8, 8)),
    "sequences": (Sequences, words(3, 17)),
    "long sequences": (Sequences, words(30, 17)),
    "partly frozen": (Partly, floats(12)),
    "lstm": (lambda: TextLSTM(20, CLASSES, width=5), words(4, 20)),
    "resnet": (lambda: ResNet20(CLASSES), floats(3, 8, 8)),
    "digits": (lambda: DigitClassifier(CLASSES), floats(784)),
}


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets)


def built(name, **options):
    make, draw = MODELS[name]
    torch.manual_seed(2)
    rng = np.random.default_rng(3)
    module, x = make(), draw(rng)
    module(torch.from_numpy(x[:2]))  # lazy layers
    y = rng.integers(0, CLASSES, NUM)
    gradients = ModuleGradients(module, cross_entropy, x, y, **options)
    return gradients, {n: p + np.float32(0.01) for n, p in module_params(module).items()}


def autoencoder(**options):
    torch.manual_seed(2)
    module = Autoencoder((20, 12, 7, 3))
    x = np.random.default_rng(3).random((NUM, 20), np.float32)
    return ModuleGradients(module, functional.mse_loss, x, x, **options), module_params(module)


def preconditioned(params, bound, *, multiplied=True, mixed=True):
    rng = np.random.default_rng(9)
    offset = {n: rng.normal(size=p.shape).astype(np.float32) * 0.1 for n, p in params.items()}
    return Preconditioned(
        multiplier={n: rng.uniform(0.01, 30, p.shape).astype(np.float32) for n, p in params.items()}
        if multiplied
        else {},
        bound=bound,
        mixture=Mixture(own=0.9, offset=offset) if mixed else None,
    )


def bounds_of(params):
    yield Clip(l2_clip_norm=0.7)
    yield Clip(l2_clip_norm=50.0)
    yield Normalise(l2_clip_norm=0.7, regulariser=0.01)
    yield Unbounded()
    yield preconditioned(params, Clip(l2_clip_norm=0.7), mixed=False)
    yield preconditioned(params, Clip(l2_clip_norm=0.7), multiplied=False)
    yield preconditioned(params, Normalise(l2_clip_norm=0.7))
    yield preconditioned(params, Unbounded())


def gap(left, right):
    """The distance of two trees, relative to the second's length."""
    difference = {n: left[n] - right[n] for n in right}
    return tree.l2_norm(difference) / max(tree.l2_norm(right), 1e-12)


EVERYBODY = np.arange(NUM)
