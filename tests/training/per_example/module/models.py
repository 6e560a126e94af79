"""Models of every kind of layer, small, with data for each."""

import numpy as np
import torch
from torch import nn

from fedpriv.mechanisms import Clip, Normalise, Unbounded
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.models import DigitClassifier, SoftmaxRegression
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from simulations.adadps.models import TextLSTM
from simulations.dpnsgd.resnet import ResNet20
from tests.harness.toys_of_training import Partly, convolutions, cross_entropy, mlp

CLASSES, NUM = 4, 11
EVERYBODY = np.arange(NUM)


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


def floats(*shape):
    return lambda rng: rng.normal(size=(NUM, *shape)).astype(np.float32)


def words(length, number):
    return lambda rng: rng.integers(0, number, (NUM, length))


MODELS = {
    "mlp": (mlp, floats(12)),
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


FACTORED = ("mlp", "linear", "softmax regression", "partly frozen")
"""Of which all trained parameters are those of linear layers, each called once on vectors."""


def built(name, *, chunk=None, **options):
    """Gradients of a model, in chunks of so many examples, and params."""
    make, draw = MODELS[name]
    torch.manual_seed(2)
    rng = np.random.default_rng(3)
    module, x = make(), draw(rng)
    module(torch.from_numpy(x[:2]))  # lazy layers
    y = rng.integers(0, CLASSES, NUM)
    if not options.pop("drops", True):
        for layer in module.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
    if options.get("way") == "factors" and name not in FACTORED:
        options["way"] = None
    gradients = ModuleGradients(module, cross_entropy, x, y, **options)
    if chunk is not None:
        gradients._chunk = lambda *, dense: chunk
    return gradients, {n: p + np.float32(0.01) for n, p in module_params(module).items()}


def preconditioned(params, *, multiplied=True, mixed=True):
    rng = np.random.default_rng(9)
    offset = {n: rng.normal(size=p.shape).astype(np.float32) * 0.1 for n, p in params.items()}
    factors = {n: rng.uniform(0.01, 30, p.shape).astype(np.float32) for n, p in params.items()}
    return Context(
        multiplier=factors if multiplied else {},
        mixture=Mixture(own=0.9, offset=offset) if mixed else None,
    )


def bounds_of(params):
    """Bounds, each with what a round says of it."""
    yield Clip(l2_clip_norm=0.7), NO_CONTEXT
    yield Clip(l2_clip_norm=50.0), NO_CONTEXT
    yield Normalise(l2_clip_norm=0.7, regulariser=0.01), NO_CONTEXT
    yield Unbounded(), NO_CONTEXT
    yield Clip(l2_clip_norm=0.7), preconditioned(params, mixed=False)
    yield Clip(l2_clip_norm=0.7), preconditioned(params, multiplied=False)
    yield Normalise(l2_clip_norm=0.7), preconditioned(params)
    yield Unbounded(), preconditioned(params)
