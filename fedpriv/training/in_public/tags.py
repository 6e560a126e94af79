"""Softmax regression on public tag examples, by AdaGrad: seconds for all there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from fedpriv.checkpoints.word_features import WordFeatures
from fedpriv.datasets.stackexchange.tags import BATCH_EXAMPLES, TagExamples
from fedpriv.rng import Key
from fedpriv.training.evaluate import Metrics
from fedpriv.tree import Params

# What sums of squares begin from, so that a first step is not a whole learning rate everywhere.
_FIRST_SQUARE = 0.1
_Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class AdaGrad:
    """Softmax regression that takes a step by every example, in place.

    Args:
        params: `kernel` and `bias`, float32, which change.
        learning_rate: Of all steps.
    """

    def __init__(self, params: Params, learning_rate: float) -> None:
        self._params, self._learning_rate = params, learning_rate
        self._squares = {n: np.full_like(array, _FIRST_SQUARE) for n, array in params.items()}

    def step(self, columns: _Columns, order: np.ndarray) -> None:
        """Take a step by each example.

        Args:
            columns: Of examples, as `columns_of` returns them.
            order: int64, which examples, and in which order.

        Raises:
            ValueError: If a logit is not finite.
        """
        from fedpriv.kernels.sparse_softmax import adagrad_pass

        params, squares = self._params, self._squares
        unsound = adagrad_pass(
            *columns,
            order,
            params["kernel"],
            params["bias"],
            squares["kernel"],
            squares["bias"],
            self._learning_rate,
        )
        if unsound != 0:
            raise ValueError(f"a logit is not finite at learning rate {self._learning_rate}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagLearner:
    """A `fedpriv.training.in_public.learning.PublicLearner` of tag prediction.

    Attributes:
        examples: What it learns from.
        inputs: "tff" or "unit-norm".
        key: Orders the examples.
        measured: From params to metrics on examples held out.
        word_features: What becomes of words before rows get unit norm; None for their counts.
    """

    examples: TagExamples = field(repr=False)
    inputs: str
    key: Key
    measured: Callable[[Params], Metrics | None]
    word_features: WordFeatures | None = None

    @property
    def num_examples(self) -> int:
        """How many examples it learns from."""
        return len(self.examples)

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates that are worth a try."""
        return 0.1, 0.3, 1.0

    def init(self) -> Params:
        """Return zeros."""
        made = self.word_features
        rows = self.examples.num_words if made is None else made.num_rows
        shape = rows, self.examples.num_tags
        return {"kernel": np.zeros(shape, np.float32), "bias": np.zeros(shape[1], np.float32)}

    def passes(self, learning_rate: float) -> Iterator[Params]:
        """Yield the params after each pass, changed by the next.

        Raises:
            ValueError: If a logit is not finite.
        """
        params = self.init()
        learning = AdaGrad(params, learning_rate)
        whole = columns_of(self.examples, self.inputs) if self.word_features is None else None
        number = 0
        while True:
            order = self.key.fold(number).generator().permutation(len(self.examples))
            steps = self._blocks(order) if whole is None else [(whole, order)]
            for columns, own in steps:
                learning.step(columns, own)
            number += 1
            yield params

    def _blocks(self, order: np.ndarray) -> Iterator[tuple[_Columns, np.ndarray]]:
        """Yield the examples in order with their features, a block at a time: pairs are many."""
        assert self.word_features is not None
        for first in range(0, len(order), BATCH_EXAMPLES):
            block = order[first : first + BATCH_EXAMPLES]
            examples = self.examples.with_features(self.word_features, block)
            yield columns_of(examples, self.inputs), np.arange(len(block))

    def measure(self, params: Params) -> Metrics | None:
        """Return metrics on examples held out."""
        return self.measured(params)


def columns_of(examples: TagExamples, inputs: str) -> _Columns:
    """Return starts, words, values and labels of examples, as compiled code takes them."""
    return (
        np.ascontiguousarray(examples.indptr, np.int64),
        np.ascontiguousarray(examples.indices, np.int32),
        np.ascontiguousarray(examples.values(inputs), np.float32),
        np.ascontiguousarray(examples.labels, np.int32),
    )
