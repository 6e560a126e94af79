"""IMDB sentiment, logistic regression: AdaDPS Tables 1, 2, 4, 5 and 6 and every baseline.

Two columns, because the paper's set-up and a careful one differ in more than the method:

* *as the paper ran it*: counts of padded ids over a vocabulary chosen by the private reviews,
  micro-batches of 4, noise of σ C although one example moves the sum by 2 C, the paper's own clip
  norms and learning rates (Table 5) where it gives them;
* *done right*: every example bounded alone, Poisson batches, binary TF-IDF in rows of unit norm
  with vocabulary and document frequencies of 250 public reviews, and one grid for every method,
  searched on reviews that are held out from the private training set.

One run of 32 epochs takes 7 to 15 s on one core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from fedpriv.central_experiment import CentralExperiment
from fedpriv.data import feature_scales as scales
from fedpriv.data.dataset import Dataset
from fedpriv.data.imdb import load_imdb
from fedpriv.data.reviews import Reviews, bag_of_words
from fedpriv.data.synthetic_reviews import synthetic_reviews
from fedpriv.mechanisms import SideInformation
from fedpriv.options import Option
from fedpriv.rng import Key
from fedpriv.training.central_task import CentralTask, zeros
from fedpriv.training.evaluate import Metrics
from fedpriv.training.linear_gradients import LogisticGradients, accuracy_and_loss
from fedpriv.tree import Params

Column = Literal["paper", "right"]
Split = Literal["validation", "test"]

NUM_WORDS, BATCH, EPOCHS, DELTA = 10_000, 64, 32, 4e-5
#: Share of the private training set that tuning is measured on; final runs train on all of it.
VALIDATION = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row of the tables.

    Attributes:
        label: What it is called.
        options: Of the experiment, but for clip norm and learning rate.
        paper: Clip norm and learning rate of the paper's Table 5; None where it gives none.
        private: Whether it promises anything.
    """

    label: str
    options: Mapping[str, Option] = field(default_factory=dict)
    paper: tuple[float, float] | None = None
    private: bool = True


_PUBLIC = {"public-batch": 20, "refresh": "epoch"}
_PLAIN = {"noise": "none", "bound": "none"}
METHODS = (
    Method(label="DP-SGD", paper=(0.1, 1.0)),
    Method(label="DP-Adam", options={"optimizer": "adam"}, paper=(0.02, 0.1)),
    Method(label="DP-RMSProp", options={"optimizer": "rmsprop"}, paper=(0.05, 0.1)),
    Method(label="DP-AdaGrad", options={"optimizer": "adagrad"}),
    Method(
        label="AdaDPS, public RMSProp",
        options={"guide": "public-rmsprop", **_PUBLIC},
        paper=(2.0, 0.5),
    ),
    Method(
        label="AdaDPS, public Adam", options={"guide": "public-adam", **_PUBLIC}, paper=(2.0, 1.0)
    ),
    Method(label="AdaDPS, public AdaGrad", options={"guide": "public-adagrad", **_PUBLIC}),
    Method(
        label="AdaDPS, token frequency",
        options={"guide": "side-information", "side-information": "frequency"},
    ),
    Method(
        label="AdaDPS, TF-IDF", options={"guide": "side-information", "side-information": "tf-idf"}
    ),
    Method(
        label="AdaDPS, mean magnitude",
        options={"guide": "side-information", "side-information": "magnitude"},
    ),
    Method(label="DP-R-Pub", options={"guide": "r-pub", **_PUBLIC}),
    Method(
        label="DP-Adam-Pub", options={"guide": "adam-pub", "optimizer": "ema-momentum", **_PUBLIC}
    ),
    Method(label="PDA-DPMD", options={"guide": "mirror-descent"}),
    Method(label="DP-SGD, warm start", options={"warm-start-epochs": 20}),
    Method(
        label="DP²",
        options={"guide": "delayed", "delay-plain": 195, "delay-preconditioned": 195},
    ),
    Method(label="Scale, then privatise", options={"guide": "past-releases", "optimizer": "adam"}),
    Method(label="DP-NSGD", options={"bound": "normalise", "normalise-regulariser": 0.01}),
    Method(
        label="DP-NAdam",
        options={"bound": "normalise", "normalise-regulariser": 0.01, "optimizer": "adam"},
    ),
    Method(label="ideal (not private)", options={"guide": "ideal"}, private=False),
    Method(label="SGD (not private)", options=_PLAIN, private=False),
    Method(label="Adam (not private)", options={**_PLAIN, "optimizer": "adam"}, private=False),
    Method(
        label="AdaS, public (not private)",
        options={**_PLAIN, "guide": "public-rmsprop", **_PUBLIC},
        private=False,
    ),
    Method(
        label="AdaS, token frequency (not private)",
        options={**_PLAIN, "guide": "side-information", "side-information": "frequency"},
        private=False,
    ),
)


def experiment(
    method: Method,
    column: Column,
    *,
    clip_norm: float = 1.0,
    learning_rate: float = 0.1,
    split: Split = "test",
    epochs: float = EPOCHS,
    seed: int = 0,
) -> CentralExperiment:
    """Return one run of a method."""
    paper = column == "paper"
    made = CentralExperiment(
        name=f"{reviews().name}-{column}",
        description=f"{method.label} on IMDB, {'as the paper ran it' if paper else 'done right'}.",
        task=lambda chosen: task(column, split),
        batch_size=BATCH,
        epochs=epochs,
        micro_batch=4 if paper else 1,
        # σ = 1 to the clip norm. In micro-batches that is half the sensitivity.
        noise_multiplier=0.5 if paper else 1.0,
        delta=DELTA,
        l2_clip_norm=clip_norm,
        learning_rate=learning_rate,
        regulariser=1e-10 if paper else 1e-3,
        regulariser_inside=paper,
        adaptivity=1e-5,
        seed=seed,
        eval_every=10**9,
    )
    return made.with_options(method.options)


@cache
def reviews() -> Reviews:
    """Return the reviews, or made-up ones where the real ones are not to be had."""
    try:
        return load_imdb()
    except ValueError:
        return synthetic_reviews()


@cache
def dataset(column: Column) -> Dataset:
    """Return features, private, public and test."""
    if column == "right":
        return bag_of_words(reviews())
    return bag_of_words(reviews(), weights="padded-counts", unit_rows=False, vocabulary="private")


@cache
def task(column: Column, split: Split) -> CentralTask:
    """Return the task: on the test set, or on a part of the training set held out for tuning."""
    data = dataset(column)
    x: Any = data.x_train
    x_seen: Any = data.x_test
    y, y_seen = data.y_train, data.y_test
    if split == "validation":
        key = Key.simulation(0).fold("validation")
        order = key.generator().permutation(data.num_train)
        cut = int(VALIDATION * data.num_train)
        held, kept = np.sort(order[:cut]), np.sort(order[cut:])
        x, y, x_seen, y_seen = x[kept], y[kept], x[held], y[held]

    def measure(params: Params) -> Metrics:
        accuracy, loss = accuracy_and_loss(params, x_seen, y_seen)
        return Metrics(accuracy=accuracy, loss=loss, num_examples=len(y_seen))

    return CentralTask(
        name=data.name,
        train=LogisticGradients(x, y),
        num_train=len(y),
        init=zeros({"weight": (NUM_WORDS,), "bias": (1,)}),
        measure=measure,
        public=LogisticGradients(*_public(data)),
        num_public=data.num_public,
        side=_side(data, column),
        provenance=data.provenance,
        synthetic=data.synthetic,
    )


def _public(data: Dataset) -> tuple[Any, np.ndarray]:
    assert data.x_public is not None and data.y_public is not None
    return data.x_public, data.y_public


def _side(data: Dataset, column: Column) -> dict[str, Callable[[], SideInformation]]:
    """Return side information by kind: from private reviews as the paper, or from public ones."""
    x: Any = data.x_train if column == "paper" else _public(data)[0]
    source: Literal["private", "public"] = "private" if column == "paper" else "public"

    def made(found: scales.FeatureScales) -> SideInformation:
        return SideInformation(
            multiplier={"weight": found.multiplier}, source=found.source, description=found.how
        )

    def tf_idf() -> SideInformation:
        frequency = np.bincount(x.indices, minlength=NUM_WORDS)
        found = scales.tf_idf_mass(
            x,
            frequency,
            x.shape[0],
            source=source,
            reserved=3 if column == "paper" else 0,
            as_if_rows=25_000,
        )
        return made(replace(found, multiplier=np.maximum(found.multiplier, 1e-4)))

    return {
        "frequency": lambda: made(scales.token_frequency(x, source=source)),
        "tf-idf": tf_idf,
        "magnitude": lambda: made(scales.mean_magnitude(x, source=source)),
    }
