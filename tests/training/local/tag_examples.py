"""Synthetic examples of tags, and dense training on them."""

import numpy as np

from fedpriv.datasets.stackexchange.tag_view import TagExamples
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.bounded_sum import RowStack
from fedpriv.training.work import UserTrainer
from tests.harness.toys_of_training import assert_near, drawn, zeros

WORDS, TAGS = 30, 5
PARAMS = drawn(zeros(kernel=(WORDS, TAGS), bias=TAGS))


def make_examples(number, seed=0, words_each=4, empty=0.2):
    """Random examples; a share of them has no word of the vocabulary."""
    rng = np.random.default_rng(seed)
    lengths = [0 if rng.random() < empty else rng.integers(1, words_each) for _ in range(number)]
    rows = [np.sort(rng.choice(WORDS // 2, length, replace=False)) for length in lengths]
    counts = [rng.integers(1, 4, len(row)) for row in rows]
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    labels = rng.integers(0, TAGS, number).astype(np.int32)
    return TagExamples(
        indptr=indptr,
        indices=np.concatenate([*rows, []]).astype(np.int32),
        counts=np.concatenate([*counts, []]).astype(np.uint16),
        num_tokens=np.array([c.sum() + rng.integers(1, 3) for c in counts], np.int32),
        labels=labels,
        tag_indptr=np.arange(number + 1, dtype=np.int64),
        tag_indices=labels,
        num_words=WORDS,
        num_tags=TAGS,
    )


def dense_inputs(examples, inputs):
    """The inputs by definition, without sparse arithmetic."""
    x = np.zeros((len(examples), WORDS))
    for row in range(len(examples)):
        for at in range(examples.indptr[row], examples.indptr[row + 1]):
            x[row, examples.indices[at]] = examples.counts[at]
        if inputs == "tff":
            x[row] /= max(x[row].sum(), 1)
        elif x[row].any():
            x[row] /= np.sqrt((x[row] ** 2).sum())
    return x


def trained(trainer, params, examples, key, context=NO_CONTEXT):
    """One user's update, whatever makes it."""
    if isinstance(trainer, UserTrainer):
        return trainer.train(params, context, examples, key)
    works = [trainer.prepare(params, examples, key)]
    [stack] = trainer.batches(trainer.alone.start(params), context, works)
    zeros = {name: np.zeros_like(array) for name, array in params.items()}
    dense = stack.mixed(Mixture(own=1.0, offset=zeros))
    found = dense.rows if isinstance(dense, RowStack) else dense.updates
    return {name: np.asarray(rows[0]) for name, rows in found.items()}


def assert_close(found, expected):
    assert_near(found, expected, rtol=1e-4, atol=2e-6)


MULTIPLIER = (10.0 ** np.random.default_rng(2).uniform(-1, 1.3, WORDS)).astype(np.float32)
