"""What one user does: local SGD, exactly for as much work as the plan allows.

A `LocalTrainer` maps (params, one user's examples, a key) to an update, `local - global`. Its work
is capped (`max_examples`, `batch_size`, `epochs` are public), so neither time nor memory follows
the size of a user beyond the cap. It never clips and never adds noise: bounding is the
mechanism's, once, on the whole update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedpriv.checkpoints.vocabulary import WordFeatures
from fedpriv.datasets.stackexchange.tag_view import INPUTS, TagExamples
from fedpriv.ranges import positive_float, positive_int
from fedpriv.rng import Key
from fedpriv.tree import Params, RowSparse, Tree

_NOTHING = np.empty(0, np.float32)
# Counts that the compiled loop reads in place; others are converted, those of the chosen examples
# only, so that work never follows the size of a user.
_COUNTS = (np.uint8, np.uint16, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How much a user works: public, the same for every user.

    Attributes:
        learning_rate: Local step size.
        batch_size: Examples a step.
        epochs: Passes over the user's chosen examples.
        max_examples: A user with more contributes a random subset of this many, chosen anew at
            every participation.
        make_optimizer: From the learning rate and 1/A by parameter name to the client optimiser
            (`fedpriv.training.local.sgd.ClientOptimizer`) of trainers on torch tensors; None for
            `SGD`, which alone the compiled and the vectorised trainers take steps of.
    """

    learning_rate: float
    batch_size: int = 100
    epochs: int = 1
    max_examples: int = 256
    make_optimizer: Callable[[float, Mapping[str, Any]], Any] | None = None

    def __post_init__(self) -> None:
        positive_float("local learning rate", self.learning_rate)
        positive_int("local_batch_size", self.batch_size)
        positive_int("local_epochs", self.epochs)
        positive_int("max_examples_per_user", self.max_examples)

    def choose(self, num_examples: int, rng: np.random.Generator) -> np.ndarray:
        """Return positions of at most `max_examples` examples in random order."""
        return rng.permutation(num_examples)[: self.max_examples]

    def steps(self, num_chosen: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of all epochs' examples in order, and where each step starts.

        Returns:
            int64 `(epochs * num_chosen,)` and int64 `(num_steps + 1,)`.
        """
        # The chosen examples come shuffled, so the first pass takes them as they are.
        again = (rng.permutation(num_chosen) for _ in range(1, self.epochs))
        epochs = [np.arange(num_chosen), *again]
        starts = np.arange(0, num_chosen, self.batch_size)
        firsts = [starts + epoch * num_chosen for epoch in range(self.epochs)]
        return np.concatenate(epochs), np.append(np.concatenate(firsts), self.epochs * num_chosen)

    def batches(self, num_chosen: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return the positions of every step's batch, all epochs in order."""
        order, starts = self.steps(num_chosen, rng)
        return [order[a:b] for a, b in itertools.pairwise(starts.tolist())]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseSoftmaxTrainer:
    """Local SGD for softmax regression on bags of words, touching the user's own rows only.

    Every step, update and norm works on the rows of the words the user wrote, and equals the
    dense computation to rounding: rows of words that never occur have gradient zero. The global
    kernel is read in place and only the change is kept, so what is returned was never the small
    difference of two large numbers.

    Attributes:
        schedule: How much work.
        inputs: "tff" for mean one-hot words, "unit-norm" for rows of unit l2 norm.
        multiplier: 1/A for each row, float32 `(num_rows,)`, applied to the kernel's gradient at
            every local step and not to the bias (AdaDPS Algorithm 3, line 6); None for plain SGD.
        word_features: What becomes of words, and pairs of them, before rows get unit norm; of the
            chosen examples only. None for their counts.
    """

    #: Nothing of it ever changes, so threads may share it.
    thread_safe: ClassVar[bool] = True
    cpu_only: ClassVar[str] = "its work is scattered rows, which a processor's caches serve best"

    schedule: Schedule
    inputs: str = "tff"
    multiplier: np.ndarray | None = field(default=None, repr=False)
    word_features: WordFeatures | None = None

    def __post_init__(self) -> None:
        if self.schedule.make_optimizer is not None:
            raise ValueError("tag prediction trains by compiled local SGD; use local 'sgd'")
        if self.inputs not in INPUTS:
            raise ValueError(f"inputs {self.inputs!r} is unknown; choose one of {INPUTS}")
        if self.word_features is not None and self.inputs != "unit-norm":
            raise ValueError(
                f"inputs {self.inputs!r} have neither weights nor pairs; use 'unit-norm' with them"
            )

    def train(self, params: Params, examples: TagExamples, key: Key) -> Tree:
        """Return the update of `kernel` (row-sparse) and `bias` (dense), float32.

        A user without examples returns zeros.

        Raises:
            ValueError: If a word or a label is outside the model, or a logit is not finite.
        """
        from fedpriv.kernels.sparse_softmax import train

        rng = key.generator()
        chosen = self.schedule.choose(len(examples), rng)
        order, starts = self.schedule.steps(len(chosen), rng)
        if self.word_features is not None:
            examples, chosen = (
                examples.with_features(self.word_features, chosen),
                np.arange(len(chosen)),
            )
        elif not isinstance(examples, TagExamples) or examples.counts.dtype not in _COUNTS:
            examples, chosen = examples.take(chosen), np.arange(len(chosen))
        counts = examples.counts if examples.counts.dtype in _COUNTS else None
        rows, change, moved, unsound = train(
            np.ascontiguousarray(examples.indptr, np.int64),
            np.ascontiguousarray(examples.indices, np.int32),
            np.ascontiguousarray(examples.counts, np.float32 if counts is None else counts.dtype),
            np.ascontiguousarray(examples.labels, np.int32),
            chosen[order],
            self.inputs == "unit-norm",
            starts,
            params["kernel"],
            params["bias"],
            _NOTHING if self.multiplier is None else self.multiplier,
            self.schedule.learning_rate,
        )
        if unsound != 0:
            raise ValueError("a logit is not finite")
        return {
            "bias": moved,
            "kernel": RowSparse(rows=rows, values=change, num_rows=len(params["kernel"])),
        }
