"""IMDB sentiment with logistic regression on 10,000 words.

The text read literally: counts of padded ids over a vocabulary chosen by the private reviews. As
its code ran it: those counts divided by the padded length, and two logits, which are the 20,002
parameters of its text. Done right: binary TF-IDF in rows of unit norm, vocabulary and document
frequencies of 250 public reviews. One run of 32 epochs takes 7 to 15 s on one core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np

from fedpriv.datasets.dataset import Dataset, hold_out_validation, limit_public
from fedpriv.experiments.experiment import Experiment
from fedpriv.mechanisms.side_information import (
    SideInformation,
    frequency_multiplier,
    magnitude_multiplier,
    tf_idf_mass_multiplier,
)
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.dataset_tasks import linear_task
from fedpriv.training.per_example.linear import LogisticGradients, SoftmaxGradients
from simulations.adadps.setups.setup import Column, Setup, divided, experiment_of
from simulations.reproduction.items import Settings, Split
from simulations.reproduction.study import paragraphs
from simulations.reviews.bag_of_words import RESERVED, WordRows, column_sums, mean_magnitude
from simulations.reviews.features import (
    Reviews,
    load_amazon,
    load_imdb,
    review_features,
    synthetic_reviews,
)

#: Public reviews: 250 held out of IMDB, so many of these, or Amazon's.
Public = Literal["held out", "amazon"] | int

NUM_WORDS, EPOCHS, DELTA = 10_000, 32, 4e-5
LENGTH = 290  # ids of a padded review


@cache
def reviews() -> Reviews:
    """Return the reviews, or synthetic ones where the real ones are not to be had."""
    try:
        return load_imdb()
    except ValueError:
        return synthetic_reviews()


@cache
def amazon() -> WordRows:
    """Return 125 good and 125 bad reviews of products, 1 % of IMDB as in the paper.

    Raises:
        ValueError: If they are not here, with how to get them.
    """
    return load_amazon()


@cache
def dataset(column: Column, public: Public = "held out") -> Dataset:
    """Return features, private, public and test."""
    elsewhere = amazon() if public == "amazon" else None
    if column == "right":
        data = review_features(reviews(), public=elsewhere)
    else:
        data = review_features(
            reviews(),
            weights="padded-counts" if column == "paper" else "padded-shares",
            unit_rows=False,
            vocabulary="private",
            public=elsewhere,
        )
    return limit_public(data, public) if isinstance(public, int) else data


@cache
def task(column: Column, split: Split, public: Public = "held out") -> CentralTask:
    """Return the task: on the test set, or on a part of the training set held out for tuning."""
    whole = dataset(column, public)
    data = hold_out_validation(whole) if split == "validation" else whole
    side = _side(dataset("right" if column == "right" else "paper", public), column, public)
    if column == "coded":
        shapes = {"kernel": (NUM_WORDS, 2), "bias": (2,)}
        return linear_task(data, partial(SoftmaxGradients, num_classes=2), shapes, side)
    shapes = {"weight": (NUM_WORDS,), "bias": (1,)}
    return linear_task(data, LogisticGradients, shapes, side)


@cache
def public_counts(public: Public) -> Any:
    """Return how often each word is in each public review, by the features of "done right"."""
    elsewhere = amazon() if public == "amazon" else None
    data = review_features(reviews(), weights="counts", unit_rows=False, public=elsewhere)
    return (limit_public(data, public) if isinstance(public, int) else data).x_public


def _side(
    data: Dataset, column: Column, public: Public
) -> dict[str, Callable[[], SideInformation]]:
    """Return side information by kind: from private reviews as the paper, or from public ones.

    Args:
        data: Of the column; for that of the code the counts that are not divided.
        column: Which.
        public: Public reviews.
    """
    private = column != "right"
    x: Any = data.x_train if private else data.x_public
    source: Literal["private", "public"] = "private" if private else "public"

    def counted() -> Any:
        # Features done right are weighted by TF-IDF: frequencies are those of words all the same.
        return x if private else public_counts(public)

    def made(multiplier: np.ndarray, how: str) -> SideInformation:
        by_name = {"weight": multiplier}
        if column == "coded":
            by_name = {"kernel": multiplier[:, np.newaxis]}
        return SideInformation(multiplier=by_name, source=source, description=how)

    def frequency() -> SideInformation:
        found = frequency_multiplier(column_sums(counted()), x.shape[0], division=100.0)
        return made(found, "min(10000, max f / f_j) / 100, f_j the frequency of token j")

    def tf_idf() -> SideInformation:
        found = tf_idf_mass_multiplier(
            column_sums(counted()) / LENGTH,
            np.bincount(x.indices, minlength=NUM_WORDS),
            x.shape[0],
            times=25_000 / x.shape[0],
            reserved=RESERVED if private else 0,
        )
        return made(
            np.maximum(found, 1e-4),
            "10 (sum of TF-IDF + 1e-10), tf = count / length, idf = log10(documents / df)",
        )

    def magnitude() -> SideInformation:
        found = magnitude_multiplier(mean_magnitude(x), division=100.0)
        return made(found, "min(10000, max a / a_j) / 100, a_j the mean magnitude of feature j")

    return {"frequency": frequency, "tf-idf": tf_idf, "magnitude": magnitude}


def experiment(
    public: Public, column: Column, split: Split = "test", reduced: bool = False
) -> Experiment:
    """Return one run, before its method."""
    paper = column != "right"
    made = experiment_of(
        reviews().name,
        "Sentiment on IMDB",
        column,
        lambda: task(column, split, public),
        epochs=2 if reduced else EPOCHS,
        delta=DELTA,
        noise_multiplier=0.5 if paper else 1.0,
        l2_clip_norm=1.0,
        learning_rate=0.1,
    )
    variant = "" if public == "held out" else f"-public-{public}"
    return replace(made, name=made.name + variant)


def _bounded(l2_clip_norm: float, *rates: float, **more: float) -> tuple[Settings, ...]:
    return tuple({"l2-clip-norm": l2_clip_norm, "learning-rate": rate, **more} for rate in rates)


#: Where there is one rate it was the best on the validation part after four epochs. The code's ε_s
#: of 1e-10 leaves the ideal at 0.57 there, and 1e-6 at 0.76; DP-Adam-Pub at 0.52, and 1e-5 at 0.61.
_CODE_GRIDS: Mapping[str, tuple[Settings, ...]] = {
    "PDA-DPMD": _bounded(0.1, 1.0, 3.0, 10.0),
    "AdaDPS, token frequency": _bounded(0.1, 1.0, 3.0, 10.0),
    "AdaDPS, TF-IDF": _bounded(0.1, 10.0),
    "ideal (not private)": _bounded(2.0, 2.0, regulariser=1e-6),
    "DP-SGD, warm start": _bounded(0.1, 3.0),
    "DP-Adam-Pub": _bounded(0.1, 0.01, regulariser=1e-5),
}

SETUP = Setup(
    key="imdb",
    title="IMDB (convex)",
    columns={"paper": "the text read literally: raw counts", "right": "done right"},
    base=partial(experiment, "held out"),
    public={"public-batch": 20, "refresh": "epoch"},
    divided=divided(paper=1e-10, right=1e-3),
    own={"DP²": {"delay-plain": 195, "delay-preconditioned": 195}},
    table5={
        "DP-SGD": (0.1, 1.0),
        "DP-Adam": (0.02, 0.1),
        "DP-RMSProp": (0.05, 0.1),
        "AdaDPS, public RMSProp": (2.0, 0.5),
        "AdaDPS, public Adam": (2.0, 1.0),
    },
    # In the column as its code ran it: the code's own 1e-10.
    table5_regularisers={"paper": (1e-10, 1e-5, 1e-3)},
    # The ε_s of what the paper does not tabulate is not known; 1e-10 ruins whatever divides by it.
    regulariser=1e-3,
    rates={
        "right": {
            "plain": (1.0, 3.0, 10.0, 30.0),
            "adaptive": (0.003, 0.01, 0.03, 0.1),
            "adagrad": (0.03, 0.1, 0.3, 1.0),
            "preconditioned": (0.1, 0.3, 1.0, 3.0),
            "divided later": (0.003, 0.01, 0.03, 0.1),
        },
        "paper": {
            "plain": (0.02, 0.1, 0.5, 2.0),
            "adaptive": (0.01, 0.03, 0.1, 0.3),
            "adagrad": (0.03, 0.1, 0.3, 1.0),
            "preconditioned": (0.02, 0.1, 0.5, 2.0),
            "divided later": (0.001, 0.003, 0.01, 0.03),
        },
    },
    clips={"plain": (0.1, 0.5), "preconditioned": (0.5, 1.0, 2.0)},
    code_grids=_CODE_GRIDS,
    unbounded={"preconditioned": 0.1},
    unbounded_too={
        "right": {"adaptive": (3e-4, 1e-3), "preconditioned": (1e-3, 3e-3)},
        "paper": {
            "plain": (1e-3, 5e-3),
            "adaptive": (1e-3, 3e-3),
            "preconditioned": (2e-4, 6e-4),
        },
    },
    paper_epsilon=(
        "not stated in the text at hand; 1.5 is remembered (recomputed 1.51 by RDP with Poisson "
        "batches of examples, as if micro-batches were examples) at δ = 1/25,000 (stated)"
    ),
    seconds=(11, 2),
    notes=paragraphs("adadps/notes/imdb.md"),
)

#: With the features of the authors' code, which the paper's values are of.
CODED = replace(SETUP, columns={"coded": "as its code ran it", **SETUP.columns})


def with_public(public: Public) -> Setup:
    """Return the setup with other public reviews."""
    return replace(SETUP, base=partial(experiment, public))
