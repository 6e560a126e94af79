"""Folds of public threads: each thread judges models that it did not train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpriv.checkpoints.vocabulary import WordFeatures
from fedpriv.datasets.stackexchange.splits import PublicText
from fedpriv.datasets.stackexchange.tags import TagExamples, TagView
from fedpriv.measures import Measure
from fedpriv.rng import Key
from fedpriv.tasks.tag_metrics import SCORED_EXAMPLES, evaluate_tags, tag_probabilities
from fedpriv.tasks.task import Task
from fedpriv.training.evaluate import Metrics
from fedpriv.training.public_learning import TagLearner
from fedpriv.tree import Params

NUM_FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFold:
    """Tag prediction without the public threads of one fold; a `PublicFold`.

    Attributes:
        task: The task.
        norm: What its rows are scaled to.
        word_features: What becomes of words; None for their counts.
        judging: Rows of the view's columns that judge, int64, in threads of this fold.
        tuning: Rows of the next fold, on which settings are chosen.
        learning: Rows of all others.
    """

    task: Task
    norm: str
    word_features: WordFeatures | None
    view: TagView = field(repr=False)
    judging: np.ndarray = field(repr=False)
    tuning: np.ndarray = field(repr=False)
    learning: np.ndarray = field(repr=False)

    @property
    def measures(self) -> Sequence[Measure]:
        """The task's."""
        return self.task.measures

    @property
    def groups(self) -> np.ndarray:
        """The threads of the examples held out."""
        return self.view.threads[self.judging]

    def init_params(self, key: Key) -> Params:
        """Return the params before training."""
        return self.task.init_params(key)

    def public_learner(self, key: Key, *, choosing: bool) -> TagLearner | None:
        """Return what learns from the other folds; choosing keeps the next one back to measure."""
        rows = self.learning if choosing else np.concatenate([self.learning, self.tuning])
        if not len(rows) or not len(self.tuning):
            return None
        return TagLearner(
            examples=self.view.columns.take(rows),
            inputs=self.norm,
            key=key,
            measured=self._tuned,
            word_features=self.word_features,
        )

    def values(self, params: Params) -> np.ndarray:
        """Return for each example held out whether its label is the likeliest tag, 0.0 or 1.0.

        Words that stand in this fold alone are left out, as words outside the vocabulary are: for
        a test thread they would be.
        """
        right = [
            tag_probabilities(params, block, self.norm).argmax(axis=1) == block.labels
            for block in self._judged()
        ]
        return np.concatenate(right).astype(np.float64)

    def _judged(self) -> Iterator[TagExamples]:
        others = self._examples(np.concatenate([self.learning, self.tuning]))
        known = np.zeros(others.num_words, bool)
        known[others.indices] = True
        for first in range(0, len(self.judging), SCORED_EXAMPLES):
            block = self._examples(self.judging[first : first + SCORED_EXAMPLES])
            kept = known[block.indices]
            indptr = np.concatenate([[0], np.cumsum(kept)])[block.indptr]
            yield replace(
                block, indptr=indptr, indices=block.indices[kept], counts=block.counts[kept]
            )

    def _examples(self, rows: np.ndarray) -> TagExamples:
        if self.word_features is None:
            return self.view.columns.take(rows)
        return self.view.columns.with_features(self.word_features, rows)

    def _tuned(self, params: Params) -> Metrics | None:
        return evaluate_tags(params, self._examples(self.tuning), self.norm)


def thread_folds(
    task: Task,
    view: TagView,
    text: PublicText,
    norm: str,
    word_features: WordFeatures | None,
) -> tuple[TagFold, ...]:
    """Return the folds of a view's public training threads, in turns.

    Labels that stand in one fold alone are not judged by: no model of the others could name them.

    Args:
        task: On the view.
        view: Whose rostered users train on none of these threads (`Split.selecting`).
        text: What public models learn from.
        norm: What rows are scaled to.
        word_features: What becomes of words; None for their counts.

    Returns:
        `NUM_FOLDS` of them; none where one would be empty.
    """
    learnt, judged = view.public_rows("train", of=text), view.public_rows("train")
    threads, first, place = np.unique(view.threads[learnt], return_index=True, return_inverse=True)
    # In the order of public users: a thread's number in the corpus may depend on rostered ones.
    fold_of_thread = np.argsort(np.argsort(first)) % NUM_FOLDS
    fold_of = fold_of_thread[place]
    fold_of_judged = fold_of_thread[np.searchsorted(threads, view.threads[judged])]
    labels = view.columns.labels
    folds = []
    for number in range(NUM_FOLDS):
        tuning, others = fold_of == (number + 1) % NUM_FOLDS, fold_of != number
        judging = judged[fold_of_judged == number]
        judging = judging[np.isin(labels[judging], labels[learnt[others]])]
        if not len(judging) or not tuning.any():
            return ()
        folds.append(
            TagFold(
                task=task,
                norm=norm,
                word_features=word_features,
                view=view,
                judging=judging,
                tuning=learnt[tuning],
                learning=learnt[others & ~tuning],
            )
        )
    return tuple(folds)


def user_folds(
    task: Task,
    view: TagView,
    text: PublicText,
    norm: str,
    word_features: WordFeatures | None,
) -> Iterator[tuple[TagLearner, list[TagExamples]]]:
    """Yield learners of public examples, and users whose threads they do not learn from.

    Public users are dealt out in turns; each is held out once, with the examples that are public.

    Args:
        task: On the view.
        view: Whose public users.
        text: What public models learn from.
        norm: What rows are scaled to.
        word_features: What becomes of words; None for their counts.
    """
    learnt = view.public_rows("train", of=text)
    own = [np.concatenate([learnt[:0], *view.rows([u], "train")]) for u in view.public_users]
    own = [rows[np.isin(rows, view.public_rows("train"))] for rows in own]
    own = [rows for rows in own if len(rows)]
    for number in range(NUM_FOLDS):
        held = own[number::NUM_FOLDS]
        if not held:
            continue
        theirs = np.unique(view.threads[np.concatenate(held)])
        others = learnt[~np.isin(view.threads[learnt], theirs)]
        if len(others):
            learner = TagLearner(
                examples=view.columns.take(others),
                inputs=norm,
                key=Key.simulation(0).fold("public users").fold(number),
                measured=lambda params: None,
                word_features=word_features,
            )
            yield learner, [view.columns.take(rows) for rows in held]
