"""Setups of the figures on images: a classifier, its data, and the length of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
from torch import nn

from fedpriv.datasets.dataset import Dataset, hold_out_validation
from fedpriv.datasets.images import load_cifar10
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.models.images import ResNet20
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.dataset_tasks import module_task
from simulations.adadps.setups import mnist
from simulations.reproduction.items import Split

Rule = Literal["normalise", "clip"]

RULES: Mapping[Rule, str] = {
    "normalise": "DP-NSGD, g / (r + ‖g‖)",
    "clip": "DP-SGD, clipped to c",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """A classifier on images.

    Attributes:
        key: Ends the name of its figures.
        model: In words.
        data: What its experiments are called after.
        task: By split.
        batch_size: Expected.
        epochs: In full and reduced.
        epsilon: The noise is calibrated to.
        seconds: A run takes on one core, about, in full and reduced.
    """

    key: str
    model: str
    data: Callable[[], Dataset] = field(repr=False)
    task: Callable[[Split], CentralTask] = field(repr=False)
    batch_size: float
    epochs: tuple[float, float]
    epsilon: float
    seconds: tuple[float, float]

    def experiment(
        self, rule: Rule, rate: float, size: float, split: Split, reduced: bool
    ) -> Experiment:
        """Return one private run.

        Args:
            rule: How an example's gradient is bounded.
            rate: η. Of clipped gradients too it multiplies what is bounded by c, as in the paper.
            size: r, or c.
            split: What it is measured on.
            reduced: For a fraction of the epochs.
        """
        return CentralExperiment(
            name=f"{self.data().name}-dpnsgd",
            description=RULES[rule],
            task=lambda chosen, corpus: self.task(split),
            batch_size=self.batch_size,
            epochs=self.epochs[1 if reduced else 0],
            delta=1e-5,
            eval_every=10**9,
        ).with_options(
            {"target_epsilon": self.epsilon, "learning_rate": rate, **bounded(rule, size)}
        )


def bounded(rule: Rule, size: float) -> dict[str, Any]:
    """Return the options of a rule with r, or c."""
    if rule == "normalise":
        return {"bound": "normalise", "l2_clip_norm": 1.0, "normalise_regulariser": size}
    return {"bound": "clip", "l2_clip_norm": size}


@cache
def cifar() -> Dataset:
    """Return CIFAR-10, or the reduced set under its own name, or synthetic images."""
    try:
        return load_cifar10()
    except ValueError:
        return synthetic_images()


def synthetic_images(num_train: int = 500, num_test: int = 100) -> Dataset:
    """Return the synthetic digits in colour, 32 x 32: of CIFAR-10's shape and nothing else."""
    digits = mnist.synthetic_digits(num_train, num_test)

    def coloured(x: Any) -> np.ndarray:
        padded = np.pad(np.asarray(x), ((0, 0), (2, 2), (2, 2)))
        return np.stack([padded, 255 - padded, padded // 2], axis=1)

    return Dataset(
        name="synthetic-images",
        x_train=coloured(digits.x_train),
        y_train=digits.y_train,
        x_test=coloured(digits.x_test),
        y_test=digits.y_test,
        provenance=digits.provenance,
        synthetic=True,
    )


@cache
def cifar_task(split: Split) -> CentralTask:
    """Return ResNet-20's task, on test or on held-out examples."""
    data = hold_out_validation(cifar()) if split == "validation" else cifar()
    return module_task(data, ResNet20, nn.functional.cross_entropy, _centred)


def _centred(images: np.ndarray) -> np.ndarray:
    return np.asarray(images).astype(np.float32) / np.float32(127.5) - np.float32(1.0)


MNIST = Images(
    key="mnist",
    model="a CNN of 26,010 parameters on MNIST",
    data=lambda: mnist.dataset(),
    task=lambda split: mnist.task("classifier", "right", split),
    batch_size=250,
    epochs=(2.0, 0.2),
    epsilon=4.0,
    seconds=(25, 4),
)
CIFAR10 = Images(
    key="cifar10",
    model="ResNet-20 with group norm (269,722 parameters) on CIFAR-10",
    data=lambda: cifar(),
    task=lambda split: cifar_task(split),
    batch_size=1000,
    epochs=(100.0, 0.5),
    epsilon=8.0,
    seconds=(5_000, 30),
)
SETUPS: Mapping[str, Images] = {setup.key: setup for setup in (MNIST, CIFAR10)}
