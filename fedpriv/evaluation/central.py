"""The best model without privacy: central training on all training examples, by the same search.

It is what public-only is with rostered examples added: the same learner, rates, passes and rule for
choosing them, on validation threads. So a gap between the two is the data's and not the tuning's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpriv.checkpoints.vocabulary import WordFeatures
from fedpriv.datasets.stackexchange.splits import PublicText
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.evaluation.examples import held_rows
from fedpriv.measures import ACCURACY
from fedpriv.rng import Key
from fedpriv.tasks.tag_prediction import evaluate_tags
from fedpriv.training.public_learning import MOST_PASSES, Choices, TagLearner, choose, learn
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Central:
    """Models of central training without privacy.

    Attributes:
        choices: Settings chosen on validation threads.
        params: float32 tensors, one model a seed.
        num_examples: How many examples each was trained on.
    """

    choices: Choices
    params: tuple[Params, ...] = field(repr=False)
    num_examples: int


def central(
    view: TagView,
    choosing: TagView,
    inputs: str,
    *,
    keys: Sequence[Key],
    public_text: PublicText | None = "public-threads",
    rates: Sequence[float] | None = None,
    most_passes: int = MOST_PASSES,
    features: Callable[[TagView], WordFeatures | None] = lambda view: None,
) -> Central:
    """Return models of all training examples of a view.

    Args:
        view: What is trained on.
        choosing: The same with validation threads left out, which settings are chosen by; its
            split is `view.split.choosing()`.
        inputs: "tff" or "unit-norm".
        keys: Order the examples, one a model; settings are chosen with the first.
        public_text: What of public users' posts is trained on too; None for nothing.
        rates: Learning rates tried; None for those of public-only.
        most_passes: Passes over the examples.
        features: What becomes of a view's words, by its own counts.

    Raises:
        ValueError: If `choosing` is another split's, there is no key or nothing to measure.
    """
    if choosing.split != view.split.choosing() or choosing.roster_sha256 != view.roster_sha256:
        raise ValueError(
            f"settings for split {view.split.name} are chosen by {view.split.choosing().name} of "
            f"the same roster, not by {choosing.split.name}"
        )
    if not keys:
        raise ValueError("no key; give one for each model")
    trial = _learner(choosing, inputs, keys[0], public_text, features(choosing))
    found = choose(trial, ACCURACY, rates=rates, most_passes=most_passes)
    whole = _learner(view, inputs, keys[0], public_text, features(view))
    models = [learn(replace(whole, key=key), found.by_figure) for key in keys]
    return Central(
        choices=found,
        params=tuple(model.params for model in models),
        num_examples=whole.num_examples,
    )


def _learner(
    view: TagView,
    inputs: str,
    key: Key,
    public_text: PublicText | None,
    features: WordFeatures | None,
) -> TagLearner:
    rows = np.concatenate([np.arange(0), *view.rows(view.roster, "train")])
    if public_text is not None:
        rows = np.concatenate([rows, view.public_rows("train", of=public_text)])
    seen, held = view.columns, held_rows(view)
    if features is not None:
        seen, held = seen.with_features(features, held), None
    return TagLearner(
        examples=view.columns.take(rows),
        inputs=inputs,
        key=key,
        measured=lambda params: evaluate_tags(params, seen, inputs, held),
        word_features=features,
    )
