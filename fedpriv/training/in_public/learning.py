"""How far public examples alone bring a model, and where private training may start from.

Two questions with one search. *Public-only* is the best model that no private example went into: no
private one is worth its ε that is not better. The *start* is a model that private training goes on
from; it has overfitted the public users, so it is drawn back towards where it began. Rate, number
of passes and the factor are chosen on public examples that were held out, and then the model is
trained again on all of them.

Guarantee: nothing here is given a private example, so nothing of this costs privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from fedpriv.measures import LOSS, Measure
from fedpriv.training.evaluate import Metrics
from fedpriv.tree import Params, interpolate

FACTORS = (0.25, 0.5, 0.75, 1.0)
MOST_PASSES = 12
_PATIENCE = 4


class PublicLearner(Protocol):
    """A model on public examples: what it begins from, how it learns, how it is measured."""

    @property
    def num_examples(self) -> int:
        """How many examples it learns from."""
        ...

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates that are worth a try."""
        ...

    def init(self) -> Params:
        """Return the params before."""
        ...

    def passes(self, learning_rate: float) -> Iterator[Params]:
        """Yield the params after each pass over the examples; they may be changed by the next."""
        ...

    def measure(self, params: Params) -> Metrics | None:
        """Return metrics, "loss" among them, on public examples that it does not learn from."""
        ...


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

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a search found.

    Attributes:
        by_loss: With the lowest loss: what private training starts from.
        by_figure: With the best headline figure and nothing taken back: the public-only row.
        tried: How many pairs of rate and passes were looked at.
    """

    by_loss: Choice
    by_figure: Choice
    tried: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicModel:
    """A model that public examples alone made.

    Attributes:
        params: float32 tensors.
        choice: Its settings.
        num_examples: How many examples it was trained on.
    """

    params: Params = field(repr=False)
    choice: Choice
    num_examples: int


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
    begun, rates = learner.init(), learner.rates if rates is None else rates
    by_loss: Choice | None = None
    by_figure: Choice | None = None
    tried = 0
    for rate in rates:
        lowest, since = math.inf, 0
        for number, params in enumerate(learner.passes(rate), start=1):
            tried += 1
            found = [
                _measured(
                    learner, headline, interpolate(begun, params, factor), rate, number, factor
                )
                for factor in factors
            ]
            sound = [choice for choice in found if math.isfinite(choice.loss)]
            if not sound:
                break
            best = min(sound, key=lambda choice: choice.loss)
            if by_loss is None or best.loss < by_loss.loss:
                by_loss = best
            whole = next((choice for choice in sound if choice.factor == 1.0), best)
            if by_figure is None or _worth(headline, whole) > _worth(headline, by_figure):
                by_figure = whole
            since = 0 if best.loss < lowest else since + 1
            lowest = min(lowest, best.loss)
            if number >= most_passes or since >= _PATIENCE:
                break
    if by_loss is None or by_figure is None:
        raise ValueError(
            f"no learning rate of {', '.join(map(str, rates))} gave a finite loss on the public "
            "examples held out; give start-learning-rate a smaller one"
        )
    return Choices(by_loss=by_loss, by_figure=by_figure, tried=tried)


def learn(learner: PublicLearner, choice: Choice) -> PublicModel:
    """Return the model that settings make of all of a learner's examples.

    Raises:
        ValueError: If the learner has fewer passes in it.
    """
    begun = learner.init()
    for number, params in enumerate(learner.passes(choice.learning_rate), start=1):
        if number == choice.passes:
            return PublicModel(
                params=interpolate(begun, params, choice.factor),
                choice=choice,
                num_examples=learner.num_examples,
            )
    raise ValueError(f"the learner ended before {choice.passes} passes; give start-passes fewer")


def _measured(
    learner: PublicLearner,
    headline: Measure | None,
    params: Params,
    rate: float,
    passes: int,
    factor: float,
) -> Choice:
    found = learner.measure(params)
    loss = None if found is None else found.get(LOSS.name)
    if found is None or loss is None:
        raise ValueError(
            "what is learnt from public examples cannot be judged: none are kept back, or no loss "
            "is measured on them; give more public examples, and let the task measure its loss"
        )
    figure = None if headline is None else found.get(headline.name)
    return Choice(learning_rate=rate, passes=passes, factor=factor, loss=loss, figure=figure)


def _worth(headline: Measure | None, choice: Choice) -> tuple[float, float]:
    """Return what choices are compared by: few examples have many equal figures, and one loss."""
    if headline is None or choice.figure is None:
        return -choice.loss, 0.0
    return headline.worth(choice.figure), -choice.loss


def settings_of(found: Mapping[str, Any]) -> Choice:
    """Return a choice that was written down by `Choice.to_json`."""
    return Choice(**found)
