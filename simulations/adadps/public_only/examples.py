"""Accuracy on the centralised data sets of public examples alone, at ε = 0, and of all.

    python -m simulations public-only-examples -s names=imdb,mnist,autoencoder

Public-only is a floor: no private training is worth its ε that does not beat it. Rate and passes
are chosen by five-fold cross-validation on the public examples (a fifth of 250 would choose by the
luck of 50), then the model is trained on all of them and measured once on the test set. A second
row is the same model by the same optimiser on the private training set, without privacy, its
settings chosen on a tenth of that set. A line says where the best setting lies on an edge of its
grid.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import mean
from typing import Any

import numpy as np

from fedpriv.datasets.dataset import Dataset, hold_out_public, hold_out_validation
from fedpriv.datasets.images import load_mnist
from fedpriv.measures import LOSS, Measure
from fedpriv.rng import Key
from fedpriv.runs.progress import Pace
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.dataset_tasks import linear_task
from fedpriv.training.evaluate import Metrics, combined
from fedpriv.training.per_example.linear import LogisticGradients
from fedpriv.training.public_learning import Choice, PublicLearner, gradient_learner, learn
from fedpriv.tree import Params
from simulations.adadps.setups import imdb, mnist
from simulations.reproduction import items
from simulations.reproduction.study import Row
from simulations.reviews.features import review_features

Grid = Mapping[str, Any]

FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A data set, drawn again and again, and what is tried on it.

    Attributes:
        data: From a draw's number to the data with their public part.
        task: Makes a task of such data.
        public: `rates` and `most_passes` of the public examples.
        private: The same of the private training set, without privacy.
        folds: How many of the five folds are looked at.
        scale: What figures are multiplied by.
    """

    data: Callable[[int], Dataset]
    task: Callable[[Dataset], CentralTask]
    public: Grid
    private: Grid
    folds: int = FOLDS
    scale: float = 1.0


def _reviews(column: str, draw: int) -> Dataset:
    if column == "right":
        return review_features(imdb.reviews(), public_seed=draw)
    return review_features(
        imdb.reviews(),
        weights="padded-counts",
        unit_rows=False,
        vocabulary="private",
        public_seed=draw,
    )


def _digits(draw: int) -> Dataset:
    try:
        found = load_mnist()
    except ValueError:
        found = mnist.synthetic_digits()
    return hold_out_public(found, seed=draw)


def _words(data: Dataset) -> CentralTask:
    shapes = {"weight": (imdb.NUM_WORDS,), "bias": (1,)}
    return linear_task(data, LogisticGradients, shapes)


STUDIES: Mapping[str, Study] = {
    "imdb": Study(
        data=partial(_reviews, "right"),
        task=_words,
        public={"rates": (0.01, 0.03, 0.1, 0.3, 1.0), "most_passes": 40},
        private={"rates": (0.003, 0.01, 0.03), "most_passes": 12},
    ),
    "imdb-paper": Study(
        data=partial(_reviews, "paper"),
        task=_words,
        public={"rates": (0.0001, 0.001, 0.01, 0.1, 0.3, 1.0), "most_passes": 40},
        private={"rates": (0.0001, 0.0003, 0.001, 0.003, 0.01), "most_passes": 12},
    ),
    "mnist": Study(
        data=_digits,
        task=partial(mnist.task_of, "classifier", "right"),
        public={"rates": (0.001, 0.003, 0.01), "most_passes": 40},
        private={"rates": (0.001, 0.003), "most_passes": 6},
    ),
    "autoencoder": Study(
        data=_digits,
        task=partial(mnist.task_of, "autoencoder", "right"),
        public={"rates": (0.001, 0.003), "most_passes": 100},
        private={"rates": (0.001,), "most_passes": 4},
        folds=1,
        scale=100.0,
    ),
}


def public_only(study: Study, draw: int) -> dict[str, Any]:
    """Return what the public examples of a draw alone reach on test.

    Args:
        study: Of which data.
        draw: Which examples are public; the key of everything that is drawn too.
    """
    task, key = study.task(study.data(draw)), Key.simulation(draw)
    order = key.fold("folds").generator().permutation(task.num_public)
    folds = [np.sort(order[place::FOLDS]) for place in range(study.folds)]
    trials = [_in_public(task, key, np.setdiff1d(order, fold), fold) for fold in folds]
    return _reached(task, trials, _in_public(task, key, np.sort(order), order[:0]), study.public)


def private_without_noise(study: Study, draw: int) -> dict[str, Any]:
    """Return what the private training set reaches on test, without privacy."""
    data, key = study.data(draw), Key.simulation(draw)
    tuned, whole = study.task(hold_out_validation(data)), study.task(data)
    return _reached(whole, [_of_all(tuned, key)], _of_all(whole, key), study.private)


def _in_public(task: CentralTask, key: Key, learnt: np.ndarray, seen: np.ndarray) -> PublicLearner:
    public, measure = task.public_examples(), task.public_measure
    assert measure is not None

    def gradient(params: Params, index: np.ndarray, key: Key) -> Params:
        return public.gradient(params, learnt[index], key)

    return gradient_learner(
        gradient,
        key.fold("public"),
        num_examples=len(learnt),
        begun=task.init_params(key),
        measure=lambda params: measure(params, seen),
    )


def _of_all(task: CentralTask, key: Key) -> PublicLearner:
    return gradient_learner(
        task.train.gradient,
        key.fold("all"),
        num_examples=task.num_train,
        begun=task.init_params(key),
        measure=task.measure,
    )


def _reached(
    task: CentralTask, trials: Sequence[PublicLearner], whole: PublicLearner, grid: Grid
) -> dict[str, Any]:
    headline = task.measures[0]
    chosen = chosen_by(trials, headline, **grid)
    measured = task.measure(learn(whole, chosen))
    assert measured is not None
    return {
        headline.name: measured.get(headline.name),
        "num_examples": whole.num_examples,
        "learning_rate": chosen.learning_rate,
        "passes": chosen.passes,
        "on_an_edge": _edges(chosen, grid["rates"], grid["most_passes"]),
    }


def chosen_by(
    trials: Sequence[PublicLearner],
    headline: Measure,
    *,
    rates: Sequence[float],
    most_passes: int,
) -> Choice:
    """Return the settings with the best figure over all trials' held-out examples.

    Of equal figures the one with the lower loss is taken, and then the first.
    """
    tried: list[tuple[float, float, Choice]] = []
    for rate in rates:
        together = zip(*(trial.passes(rate) for trial in trials), strict=True)
        for number, params in enumerate(islice(together, most_passes), start=1):
            found = combined(map(_measured, trials, params))
            assert found is not None
            loss, value = found.get(LOSS.name), found.get(headline.name)
            choice = Choice(
                learning_rate=rate,
                passes=number,
                factor=1.0,
                loss=math.nan if loss is None else loss,
                figure=value,
            )
            tried.append((headline.worth(value), LOSS.worth(loss), choice))
    return max(tried, key=lambda one: one[:2])[2]


def _measured(trial: PublicLearner, params: Params) -> Metrics:
    found = trial.measure(params)
    assert found is not None
    return found


def _edges(choice: Choice, rates: Sequence[float], most: int) -> list[str]:
    """Return which of the settings are the least or the most that was tried."""
    edges = []
    if len(rates) > 1 and choice.learning_rate in (min(rates), max(rates)):
        edges.append("learning_rate")
    return [*edges, "passes"] if choice.passes == most else edges


def perform(name: str, row: str, draw: int) -> Row:
    """Return what a row reaches: public examples alone, or the private training set."""
    study, started = STUDIES[name], time.perf_counter()
    found = (public_only if row == "public-only" else private_without_noise)(study, draw)
    headline = next(iter(found))
    return {
        "data": name,
        "row": row,
        "draw": draw,
        "synthetic": study.data(draw).synthetic,
        **found,
        headline: round(study.scale * found[headline], 4),
        "seconds": round(time.perf_counter() - started, 1),
    }


def reproduce(
    *,
    names: tuple[str, ...] = tuple(STUDIES),
    draws: int = 5,
    private: bool = True,
) -> None:
    """Print a JSON line for each model, then one with mean and range of each data set.

    Args:
        names: Of `STUDIES`.
        draws: Choices of the public examples.
        private: Whether the private training set of the first is trained on, too.
    """
    pace = Pace(len(names) * (draws + private))
    for name in names:
        places = [("public-only", draw) for draw in range(draws)]
        places += [("all, not private", 0)] * private
        reached = []
        for label, draw in places:
            row = pace.work(f"{name}, {label}", partial(perform, name, label, draw))
            print(json.dumps(row), flush=True)
            if label == "public-only":
                reached.append(row["accuracy"] if "accuracy" in row else row["loss"])
        if reached:
            ends = [min(reached), max(reached)]
            print(json.dumps({"data": name, "mean": round(mean(reached), 4), "range": ends}))


REPRODUCTIONS = (
    items.Study(
        name="public-only-examples",
        title="Public examples alone at ε = 0, and all of them without privacy",
        run=reproduce,
        reduced={"names": ("mnist",), "draws": 1, "private": False},
        minutes=(10, 0.5),
    ),
)
