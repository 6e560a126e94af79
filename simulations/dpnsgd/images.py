"""Setups of the figures on images: a classifier, its data, and the length of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from torch import nn

from fedpriv.datasets.dataset import Dataset, hold_out_validation
from fedpriv.datasets.images import load_cifar10
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.measures import LOSS, Measure
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.dataset_tasks import module_task
from fedpriv.training.evaluate import Metrics
from fedpriv.tree import Params
from simulations.adadps.setups import mnist
from simulations.dpnsgd.resnet import ResNet20
from simulations.reproduction.items import Split, Study

Rule = Literal["normalise", "clip"]
Schedule = Literal["constant", "step", "cyclic"]

RULES: Mapping[Rule, str] = {
    "normalise": "DP-NSGD, g / (r + ‖g‖)",
    "clip": "DP-SGD, clipped to c",
}


TRAINING_LOSS = Measure(name="training_loss", label="training loss", higher_is_better=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """A classifier on images.

    Attributes:
        key: Ends the name of its figures.
        model: In words.
        data: What its experiments are called after.
        task_of: The task of some data.
        batch_size: Expected.
        epochs: In full and reduced.
        epsilon: The noise is calibrated to.
        rate: Learning rate of Figure 2's curves.
    """

    key: str
    model: str
    data: Callable[[], Dataset] = field(repr=False)
    task_of: Callable[[Dataset], CentralTask] = field(repr=False)
    batch_size: float
    epochs: tuple[float, float]
    epsilon: float
    rate: float

    def task(self, split: Split) -> CentralTask:
        """Return the task, on test or on held-out examples."""
        return _task(self.key, split)

    def experiment(
        self,
        rule: Rule,
        rate: float,
        size: float,
        split: Split,
        reduced: bool,
        *,
        schedule: Schedule = "constant",
        private: bool = True,
        curves: bool = False,
    ) -> Experiment:
        """Return one run.

        Args:
            rule: How an example's gradient is bounded.
            rate: η. Of clipped gradients too it multiplies what is bounded by c, as in the paper.
            size: r, or c.
            split: What it is measured on.
            reduced: For a fraction of the epochs.
            schedule: Of the learning rate.
            private: Whether noise is added.
            curves: Whether `TRAINING_LOSS` is measured too, on test.
        """
        noise: dict[str, Any] = {"target_epsilon": self.epsilon} if private else {"noise": "none"}
        return CentralExperiment(
            name=f"{self.data().name}-dpnsgd" + "-curves" * curves,
            description=RULES[rule],
            task=lambda chosen, corpus: _curves_task(self.key) if curves else self.task(split),
            batch_size=self.batch_size,
            epochs=self.epochs[1 if reduced else 0],
            delta=1e-5,
            eval_every=10**9,
        ).with_options(
            {**noise, "learning_rate": rate, "schedule": schedule, **bounded(rule, size)}
        )


def bounded(rule: Rule, size: float) -> dict[str, Any]:
    """Return the options of a rule with r, or c."""
    if rule == "normalise":
        return {"bound": "normalise", "l2_clip_norm": 1.0, "bound.regulariser": size}
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
def _task(key: str, split: Split) -> CentralTask:
    setup = SETUPS[key]
    data = setup.data()
    return setup.task_of(hold_out_validation(data) if split == "validation" else data)


@cache
def _curves_task(key: str) -> CentralTask:
    return with_training_loss(SETUPS[key].task_of, SETUPS[key].data())


def with_training_loss(
    make: Callable[[Dataset], CentralTask], data: Dataset, number: int = 2_000
) -> CentralTask:
    """Return a task that also measures the loss on training examples, evenly spread.

    Args:
        make: The task of some data.
        data: Of the task.
        number: Training examples that are measured, at most.
    """
    rows = np.linspace(0, data.num_train - 1, min(number, data.num_train)).astype(int)
    x, y = np.asarray(data.x_train)[rows], data.y_train[rows]
    own, seen = make(data), make(replace(data, x_train=x, y_train=y, x_test=x, y_test=y))

    def measure(params: Params) -> Metrics | None:
        found, trained = own.measure(params), seen.measure(params)
        assert found is not None and trained is not None
        totals = {**found.totals, TRAINING_LOSS.name: trained.totals[LOSS.name]}
        return Metrics(totals=totals, num_examples=found.num_examples)

    return replace(own, measures=(*own.measures, TRAINING_LOSS), measure=measure)


def _centred(images: np.ndarray) -> np.ndarray:
    return np.asarray(images).astype(np.float32) / np.float32(127.5) - np.float32(1.0)


MNIST = Images(
    key="mnist",
    model="a CNN of 26,010 parameters on MNIST",
    data=lambda: mnist.dataset(),
    task_of=partial(mnist.task_of, "classifier", "right"),
    batch_size=250,
    epochs=(1.0, 0.2),
    epsilon=4.0,
    rate=1.6,
)
CIFAR10 = Images(
    key="cifar10",
    model="ResNet-20 with group norm (269,722 parameters) on CIFAR-10",
    data=lambda: cifar(),
    task_of=lambda data: module_task(data, ResNet20, nn.functional.cross_entropy, _centred),
    batch_size=1000,
    epochs=(100.0, 0.5),
    epsilon=8.0,
    rate=0.8,
)
SETUPS: Mapping[str, Images] = {setup.key: setup for setup in (MNIST, CIFAR10)}


def studies(
    figure: int,
    title: str,
    run: Callable[..., None],
    mnist: tuple[float, float],
    cifar10: tuple[float, float],
) -> tuple[Study, ...]:
    """Return a figure's study of each data set.

    Args:
        figure: Its number in the paper.
        title: What it shows.
        run: Runs it; its option `data` is the data set's name.
        mnist: Minutes on MNIST, and of the reduced study.
        cifar10: The same on CIFAR-10.
    """
    return tuple(
        Study(
            name=f"dpnsgd-figure{figure}-{key}",
            title=f"DP-NSGD, Figure {figure}, {title}: {model}",
            run=run,
            options={"data": key},
            reduced={"small": True},
            minutes=minutes,
        )
        for key, model, minutes in (
            ("mnist", "a CNN on MNIST", mnist),
            ("cifar10", "ResNet-20 on CIFAR-10", cifar10),
        )
    )
