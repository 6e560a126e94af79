"""Learning from public examples alone, at ε = 0: the public start and the public-only model.

Two questions with one search. *Public-only* is the best model that no private example went into: no
private one is worth its ε that is not better. The *start* is a model that private training goes on
from; it has overfitted the public users, so it is drawn back towards where it began. Rate, number
of passes and the factor are chosen on public examples that were held out, and then the model is
trained again on all of them.

Guarantee: nothing here is given a private example, so nothing of this costs privacy.

`gradient_learner` trains anything that has gradients, by Adam; `tag_learner` softmax regression on
tags, by AdaGrad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np

from fedpriv.datasets.stackexchange.roster_view import BATCH_EXAMPLES
from fedpriv.datasets.stackexchange.tag_view import DenseFeatures, Features, TagExamples
from fedpriv.measures import LOSS, Measure
from fedpriv.optimizers import Adam
from fedpriv.rng import Key
from fedpriv.training.evaluate import Metrics
from fedpriv.tree import Params, interpolate

FACTORS = (0.25, 0.5, 0.75, 1.0)
MOST_PASSES = 12
_PATIENCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicLearner:
    """A model that is trained and measured on public examples.

    Attributes:
        num_examples: How many examples it learns from.
        begun: The params before, float32.
        passes: From a learning rate to the params after each pass over the examples. The next pass
            may change them.
        measure: From params to metrics, "loss" among them, on public examples that it does not
            learn from; None where there are none.
        rates: The learning rates to choose from.
    """

    num_examples: int
    begun: Params = field(repr=False)
    passes: Callable[[float], Iterator[Params]] = field(repr=False)
    measure: Callable[[Params], Metrics | None] = field(repr=False)
    rates: tuple[float, ...] = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Settings, and what they reached on public examples held out.

    Attributes:
        learning_rate: Of the learner's optimiser.
        passes: Over the public examples.
        factor: What is left of the way from the beginning.
        loss: On the examples held out, with the factor.
        figure: The headline measure on them; None without one.
    """

    learning_rate: float
    passes: int
    factor: float
    loss: float
    figure: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Result of a search.

    Attributes:
        by_loss: With the lowest loss: what private training starts from.
        by_figure: With the best headline figure and nothing taken back: the public-only row.
        tried: How many pairs of rate and passes were looked at.
    """

    by_loss: Choice
    by_figure: Choice
    tried: int


def choose(
    learner: PublicLearner,
    headline: Measure | None,
    *,
    rates: Sequence[float] | None = None,
    factors: Sequence[float] = FACTORS,
    most_passes: int = MOST_PASSES,
) -> Choices:
    """Return the best settings on public examples held out.

    Args:
        learner: Learns from some public examples, and measures on others.
        headline: What public-only is chosen by; None takes the loss.
        rates: Learning rates tried; None for the learner's own.
        factors: How much of the way from the beginning is kept; tried for every rate and pass.
        most_passes: Passes over the examples; a rate ends early where the loss has been rising.

    Raises:
        ValueError: If no rate gave a finite loss, or nothing is measured.
    """
    rates = learner.rates if rates is None else rates
    drawn_back: list[Choice] = []
    whole: list[Choice] = []
    tried = 0
    for rate in rates:
        lowest, since = math.inf, 0
        for number, params in enumerate(learner.passes(rate), start=1):
            tried += 1
            settings = {"learning_rate": rate, "passes": number}
            found = [
                _measured(learner, headline, params, factor=factor, **settings)
                for factor in factors
            ]
            sound = [choice for choice in found if math.isfinite(choice.loss)]
            if not sound:
                break
            best = min(sound, key=_loss)
            drawn_back.append(best)
            whole.append(next((choice for choice in sound if choice.factor == 1.0), best))
            since = 0 if best.loss < lowest else since + 1
            lowest = min(lowest, best.loss)
            if number >= most_passes or since >= _PATIENCE:
                break
    if not drawn_back:
        raise ValueError(
            f"no learning rate of {', '.join(map(str, rates))} gave a finite loss on the public "
            "examples held out; give start-learning-rate a smaller one"
        )
    by_figure = max(whole, key=partial(_worth, headline))
    return Choices(by_loss=min(drawn_back, key=_loss), by_figure=by_figure, tried=tried)


def learn(learner: PublicLearner, choice: Choice) -> Params:
    """Return the params that settings make of all of a learner's examples, float32.

    Raises:
        ValueError: If the learner has fewer passes in it.
    """
    for number, params in enumerate(learner.passes(choice.learning_rate), start=1):
        if number == choice.passes:
            return interpolate(learner.begun, params, choice.factor)
    raise ValueError(f"the learner ended before {choice.passes} passes; give start-passes fewer")


def _measured(
    learner: PublicLearner, headline: Measure | None, params: Params, **settings: Any
) -> Choice:
    """Return settings, and what the params that they made reach, drawn back by the factor."""
    found = learner.measure(interpolate(learner.begun, params, settings["factor"]))
    loss = None if found is None else found.get(LOSS.name)
    if found is None or loss is None:
        raise ValueError(
            "what is learnt from public examples cannot be judged: none are kept back, or no loss "
            "is measured on them; give more public examples, and let the task measure its loss"
        )
    figure = None if headline is None else found.get(headline.name)
    return Choice(**settings, loss=loss, figure=figure)


def _loss(choice: Choice) -> float:
    return choice.loss


def _worth(headline: Measure | None, choice: Choice) -> tuple[float, float]:
    """Return what choices are compared by: few examples have many equal figures, and one loss."""
    if headline is None or choice.figure is None:
        return -choice.loss, 0.0
    return headline.worth(choice.figure), -choice.loss


BATCH_SIZE = 32
# One of so many public examples is kept back to choose settings by.
_ONE_IN = 5


class Gradient(Protocol):
    """The mean gradient of examples at these positions."""

    def __call__(self, params: Params, index: np.ndarray, key: Key) -> Params:
        """Return it, float32."""
        ...


def gradient_learner(
    gradient: Gradient, key: Key, *, batch_size: int = BATCH_SIZE, **rest: Any
) -> PublicLearner:
    """Return a learner of anything that has gradients, by Adam.

    Args:
        gradient: Of the loss of examples.
        key: Orders the examples, and is folded for what a model draws.
        batch_size: Examples of a step.
        **rest: Every other field of a `PublicLearner` but its passes.
    """

    def passes(learning_rate: float) -> Iterator[Params]:
        optimizer = Adam(learning_rate=learning_rate)
        params = {name: array.copy() for name, array in rest["begun"].items()}
        state = optimizer.init(params)
        for number in count():
            order = key.fold(number).generator().permutation(rest["num_examples"])
            for first in range(0, len(order), batch_size):
                batch = np.sort(order[first : first + batch_size])
                found = gradient(params, batch, key.fold(number).fold(first))
                step, state = optimizer.next({n: -g for n, g in found.items()}, state)
                params = {name: params[name] + step[name] for name in params}
            yield params

    return PublicLearner(passes=passes, **rest)


def apart(num_examples: int, key: Key) -> tuple[np.ndarray, np.ndarray]:
    """Return positions to learn from, and those of a fifth that is kept back; sorted.

    Which they are depends on the key and on how many examples there are.
    """
    order = key.fold("kept back").generator().permutation(num_examples)
    cut = max(1, num_examples // _ONE_IN)
    return np.sort(order[cut:]), np.sort(order[:cut])


def learner_of(
    num_examples: int,
    *,
    choosing: bool,
    key: Key,
    begun: Params,
    gradient: Gradient,
    measure: Callable[[Params, np.ndarray], Metrics | None],
) -> PublicLearner | None:
    """Return what learns from public examples that have positions; None of fewer than two.

    Args:
        num_examples: How many there are.
        choosing: Whether a fifth is kept back and measured on; else nothing is measured.
        key: Keeps some back, orders the others, and is folded for what a model draws.
        begun: The params before.
        gradient: Of the loss of examples at some of these positions.
        measure: From params and positions to metrics.
    """
    if num_examples < 2:
        return None
    learnt, seen = np.arange(num_examples), np.arange(0)
    if choosing:
        learnt, seen = apart(num_examples, key)

    def of_learnt(params: Params, index: np.ndarray, key: Key) -> Params:
        return gradient(params, learnt[index], key)

    return gradient_learner(
        of_learnt,
        key.fold("in public"),
        num_examples=len(learnt),
        begun=begun,
        measure=lambda params: measure(params, seen) if len(seen) else None,
    )


# What sums of squares begin from, so that a first step is not a whole learning rate everywhere.
_FIRST_SQUARE = 0.1


class AdaGrad:
    """Softmax regression that takes a step by every example, in place.

    Args:
        params: `kernel` and `bias`, float32, which change.
        learning_rate: Of all steps.
    """

    def __init__(self, params: Params, learning_rate: float) -> None:
        self._params, self._learning_rate = params, learning_rate
        self._squares = {n: np.full_like(array, _FIRST_SQUARE) for n, array in params.items()}

    def step(self, examples: TagExamples, inputs: str) -> None:
        """Take a step by each example, in their order.

        Args:
            examples: Of the words and tags of the params.
            inputs: "tff" or "unit-norm".

        Raises:
            ValueError: If a logit is not finite.
        """
        from fedpriv.kernels.sparse_softmax import adagrad_pass

        params, squares = self._params, self._squares
        unsound = adagrad_pass(
            np.ascontiguousarray(examples.indptr, np.int64),
            np.ascontiguousarray(examples.indices, np.int32),
            np.ascontiguousarray(examples.values(inputs), np.float32),
            np.ascontiguousarray(examples.labels, np.int32),
            params["kernel"],
            params["bias"],
            squares["kernel"],
            squares["bias"],
            self._learning_rate,
        )
        if unsound != 0:
            raise ValueError(f"a logit is not finite at learning rate {self._learning_rate}")


def tag_learner(
    examples: TagExamples,
    inputs: str,
    key: Key,
    measure: Callable[[Params], Metrics | None],
    features: Features | None = None,
) -> PublicLearner:
    """Return a learner of softmax regression on tags.

    Args:
        examples: What it learns from. They are read a block at a time: with features, such as pairs
            of words, they are long.
        inputs: "tff" or "unit-norm".
        key: Orders the examples.
        measure: From params to metrics on examples held out.
        features: Of the examples; None for their counts. Dense ones are learnt by Adam, in
            batches and without a bias, others by AdaGrad. Its passes raise `ValueError` where a
            logit is not finite.
    """
    rows = examples.num_words if features is None else features.num_rows
    begun: dict[str, np.ndarray] = {"kernel": np.zeros((rows, examples.num_tags), np.float32)}

    if isinstance(features, DenseFeatures):
        from scipy.special import softmax

        def gradient(params: Params, index: np.ndarray, key: Key) -> Params:
            dense = features.dense(examples, index)
            residuals = softmax(dense @ params["kernel"], axis=1)
            residuals[np.arange(len(index)), examples.labels[index]] -= 1.0
            return {"kernel": dense.T @ residuals / np.float32(len(index))}

        return gradient_learner(
            gradient,
            key,
            batch_size=4 * BATCH_SIZE,
            num_examples=len(examples),
            begun=begun,
            measure=measure,
            rates=(1e-3, 3e-3, 1e-2, 3e-2),
        )
    begun["bias"] = np.zeros(examples.num_tags, np.float32)

    def passes(learning_rate: float) -> Iterator[Params]:
        params = {name: array.copy() for name, array in begun.items()}
        learning = AdaGrad(params, learning_rate)
        for number in count():
            order = key.fold(number).generator().permutation(len(examples))
            for first in range(0, len(order), BATCH_EXAMPLES):
                block = order[first : first + BATCH_EXAMPLES]
                learning.step(examples.with_features(features, block), inputs)
            yield params

    return PublicLearner(
        num_examples=len(examples),
        begun=begun,
        passes=passes,
        measure=measure,
        rates=(0.1, 0.3, 1.0),
    )
