"""What needs no model of others: the commonest label, a user's own, a model of its own text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedpriv.datasets.stackexchange.tag_view import TagExamples, TagView
from fedpriv.evaluation.examples import Outcomes, held_rows, joined, scored
from fedpriv.rng import Key
from fedpriv.training.public_learning import AdaGrad, columns_of
from fedpriv.tree import Params

_LEARNING_RATE = 0.1  # of each user's own AdaGrad


def majority(view: TagView) -> Outcomes:
    """Return what always ranking tags by how often they are a held-out label does.

    It looks at the labels that it is measured on: no constant answer is more often right.
    """
    counts = view.label_counts(view.roster, view.split.measured_on)
    return _ranked(counts.astype(np.float32), _without_words(view.columns.take(held_rows(view))))


def own_majority(view: TagView) -> Outcomes:
    """Return what ranking tags by how often they are a label in a user's training text does.

    Ties go to the label that is commoner in all rostered users' training text, and so do those
    that the user has no text for; whoever has none at all is given that order.
    """
    overall = view.label_counts(view.roster, "train")
    commoner = np.empty(len(overall), np.int64)  # 0 for the rarest
    commoner[np.lexsort((-np.arange(len(overall)), overall))] = np.arange(len(overall))
    found = []
    for user, held in _users(view):
        own = np.bincount(view.examples(user).labels, minlength=len(overall))
        # As ranks: whole numbers that single precision holds, whatever the counts are.
        ranks = np.empty(len(overall), np.float32)
        ranks[np.lexsort((commoner, own))] = np.arange(len(overall))
        found.append(_ranked(ranks, _without_words(held)))
    return joined(found)


def local_only(
    view: TagView,
    start: Params,
    inputs: str,
    *,
    key: Key,
    passes: int = 1,
) -> Outcomes:
    """Return what every user's own model does: AdaGrad on its training text alone from a start.

    Nothing leaves the user, so no ε is spent. From zeros it is each user's own text alone; from a
    public-only model it is what private training of others has to be better than. Whoever has no
    training text is measured by the start.

    Args:
        view: A corpus seen through one roster.
        start: `kernel` and `bias`.
        inputs: "tff" or "unit-norm".
        key: Orders each user's examples.
        passes: over the user's text.

    Raises:
        ValueError: If a logit is not finite, or the start is not of this view's words and tags.
    """
    found = []
    for user, held in _users(view):
        own = view.examples(user)
        params = start
        if len(own):
            words = np.unique(np.concatenate([own.indices, held.indices]))
            own, held = _among(own, words), _among(held, words)
            params = {"kernel": start["kernel"][words], "bias": start["bias"].copy()}
            learning, columns = AdaGrad(params, _LEARNING_RATE), columns_of(own, inputs)
            for number in range(passes):
                generator = key.fold("user").fold(user).fold(number).generator()
                learning.step(columns, generator.permutation(len(own)))
        found.append(scored(params, held, inputs, np.arange(len(held))))
    return joined(found)


def _users(view: TagView) -> Iterator[tuple[str, TagExamples]]:
    """Yield rostered users that have held-out examples, with those."""
    on = view.split.measured_on
    for user in view.roster:
        if view.num_examples(user, on):
            yield user, view.examples(user, on)


def _among(examples: TagExamples, words: np.ndarray) -> TagExamples:
    """Return examples whose words are numbered as a sorted list has them."""
    indices = np.searchsorted(words, examples.indices).astype(np.int32)
    return replace(examples, indices=indices, num_words=len(words))


def _without_words(examples: TagExamples) -> TagExamples:
    return replace(
        examples,
        indptr=np.zeros(len(examples) + 1, np.int64),
        indices=np.empty(0, np.int32),
        counts=np.empty(0, np.uint8),
        num_words=0,
    )


def _ranked(scores: np.ndarray, examples: TagExamples) -> Outcomes:
    """Return what ranking tags by scores does to examples without words."""
    params = {"kernel": np.zeros((0, len(scores)), np.float32), "bias": scores}
    return scored(params, examples, "tff", np.arange(len(examples)))
