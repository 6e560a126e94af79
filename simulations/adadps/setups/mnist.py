"""MNIST: the auto-encoder of 2,837,314 parameters, and a classifier.

The auto-encoder is trained on the mean squared error of pixels; the classifier's architecture and
epochs the paper does not say. A step of the one takes 30 to 50 ms on one core (175 ms for AdaDPS in
micro-batches), of the other 15 ms. Reduced runs take a fifth of an epoch, or two.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Literal

import numpy as np
from torch import nn

from fedpriv.datasets.dataset import Dataset, hold_out_public, hold_out_validation
from fedpriv.datasets.images import load_mnist
from fedpriv.experiments.experiment import Experiment
from fedpriv.measures import LOSS
from fedpriv.models.images import DigitClassifier
from fedpriv.rng import Key
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.dataset_tasks import module_task
from simulations.adadps.models import Autoencoder
from simulations.adadps.setups.setup import Column, Rates, Setup, divided, experiment_of
from simulations.reproduction.items import Split
from simulations.reproduction.study import paragraphs

Kind = Literal["autoencoder", "classifier"]

#: In full and reduced.
EPOCHS: dict[Kind, tuple[float, float]] = {"autoencoder": (80, 0.2), "classifier": (40, 0.4)}


@cache
def dataset() -> Dataset:
    """Return MNIST, or synthetic digits where it is missing; 1 % of the training set public."""
    try:
        found = load_mnist()
    except ValueError:
        found = synthetic_digits()
    return hold_out_public(found)


def synthetic_digits(num_train: int = 2_000, num_test: int = 500) -> Dataset:
    """Return blurred blobs, one place and size a class: of MNIST's shape and nothing else."""
    rng = Key.simulation(0).fold("digits").generator()
    rows, columns = np.mgrid[0:28, 0:28]
    labels = rng.integers(0, 10, num_train + num_test)
    x, y = 6 + 4 * (labels % 4), 6 + 5 * (labels // 4)
    x, y = (c + rng.normal(0, 1.5, len(labels)) for c in (x, y))
    far = (columns - x[:, None, None]) ** 2 + (rows - y[:, None, None]) ** 2
    images = (255 * np.exp(-far / (8 + 2 * labels[:, None, None]))).astype(np.uint8)
    return Dataset(
        name="synthetic-digits",
        x_train=images[:num_train],
        y_train=labels[:num_train],
        x_test=images[num_train:],
        y_test=labels[num_train:],
        provenance={"source": "made up", "private_side_information": [], "public": None},
        synthetic=True,
    )


@cache
def task(kind: Kind, column: Column, split: Split) -> CentralTask:
    """Return the auto-encoder's or the classifier's task, on test or on held-out examples."""
    data = hold_out_validation(dataset()) if split == "validation" else dataset()
    return task_of(kind, column, data)


def task_of(kind: Kind, column: Column, data: Dataset) -> CentralTask:
    """Return the auto-encoder's or the classifier's task on some digits."""
    if kind == "autoencoder":
        make = partial(Autoencoder, gain=1.0 if column == "paper" else 4.0)
        return module_task(data, make, nn.functional.mse_loss, pixels, reconstruct=True)
    return module_task(data, DigitClassifier, nn.functional.cross_entropy, pixels)


def pixels(images: np.ndarray) -> np.ndarray:
    """Return images as float32 rows between 0 and 1."""
    return np.asarray(images).reshape(len(images), -1).astype(np.float32) / np.float32(255)


def experiment(kind: Kind, sigma: float, column: Column, split: Split, reduced: bool) -> Experiment:
    """Return one run, before its method.

    Args:
        kind: The model.
        sigma: Deviation of the noise to the clip norm, in either column.
        column: Of the table.
        split: What it is measured on.
        reduced: For a fraction of the epochs.
    """
    paper = column == "paper"
    return experiment_of(
        f"{dataset().name}-{kind}",
        f"MNIST {kind}",
        column,
        lambda: task(kind, column, split),
        epochs=EPOCHS[kind][1 if reduced else 0],
        delta=1 / 60_000,
        noise_multiplier=sigma / 2 if paper else sigma,
    )


_NOTES = paragraphs("adadps/notes/mnist.md")
_PUBLIC = {"public-batch": 60, "refresh": "epoch"}
_AUTOENCODER_RATES: Rates = {
    "plain": (0.1, 0.5, 2.0),
    "adaptive": (0.0003, 0.001, 0.003),
    "preconditioned": (0.002, 0.005, 0.02),
    "divided later": (0.0003, 0.001, 0.003),
}
#: From weights as wide as those of the careful column, what counts is rate times clip norm.
_WIDER_RATES: Rates = {
    **_AUTOENCODER_RATES,
    "plain": (0.2, 0.6, 2.0),
    "preconditioned": (0.01, 0.03, 0.1),
}
_CLASSIFIER_RATES: Rates = {
    "plain": (0.05, 0.2, 1.0),
    "adaptive": (0.0003, 0.001, 0.003),
    "preconditioned": (0.002, 0.005, 0.02),
}

AUTOENCODER = Setup(
    key="autoencoder",
    title="MNIST auto-encoder, σ = 1",
    base=partial(experiment, "autoencoder", 1.0),
    measure=LOSS,
    scale=100.0,
    public=_PUBLIC,
    divided=divided(paper=1e-6, right=1e-8, inside=True, adaptivity=1e-8),
    table5={
        "DP-SGD": (0.05, 0.5),
        "DP-Adam": (0.01, 0.001),
        "DP-RMSProp": (0.01, 0.001),
        "AdaDPS, public RMSProp": (3.0, 0.005),
        "AdaDPS, public Adam": (3.0, 0.005),
    },
    rates={"paper": _AUTOENCODER_RATES, "right": _WIDER_RATES},
    clips={"plain": (0.05, 0.5), "adaptive": (0.01, 0.1), "preconditioned": (1.0,)},
    unbounded={"plain": 10.0},
    paper_epsilon="not stated in the text at hand; 1.6 is remembered (recomputed 1.594 by RDP) at "
    "δ = 1/60,000 (stated)",
    seconds=(4_000, 12),
    notes=(*_NOTES, *paragraphs("adadps/notes/autoencoder.md")),
)

CLASSIFIER = Setup(
    key="mnist",
    title="MNIST classification, σ = 1",
    base=partial(experiment, "classifier", 1.0),
    public=_PUBLIC,
    divided=divided(paper=1e-6, right=1e-8, inside=True, adaptivity=1e-8),
    table5={
        "DP-SGD": (0.5, 0.01),
        "DP-Adam": (0.5, 0.001),
        "DP-RMSProp": (0.5, 0.001),
        "AdaDPS, public RMSProp": (2.0, 0.005),
        "AdaDPS, public Adam": (2.0, 0.005),
    },
    rates={
        "paper": _CLASSIFIER_RATES,
        "right": {**_CLASSIFIER_RATES, "preconditioned": (0.005, 0.03, 0.2)},
    },
    clips={"plain": (0.1, 0.5), "preconditioned": (1.0, 5.0)},
    paper_epsilon="not stated for this table in what could be read",
    seconds=(600, 9),
    notes=(*_NOTES, *paragraphs("adadps/notes/classifier.md")),
)
