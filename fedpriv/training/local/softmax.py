"""Local SGD for softmax regression, on bags of words and on dense rows.

Two trainers take the steps of `fedpriv.training.local.sgd.train_locally` with `SGD`, in compiled
calls (`fedpriv.kernels.sparse_softmax`, `dense_softmax`) and without torch: of a block of users
whose examples lie in common columns, else of each user. On another device users are trained in
batches (`fedpriv.training.local.vectorised`), each on the rows of its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np
from scipy import sparse

from fedpriv.datasets.stackexchange.tag_view import INPUTS, Features, TagExamples
from fedpriv.rng import Key
from fedpriv.sums import Block
from fedpriv.training.algorithm import Context, SumRequest
from fedpriv.training.bounded_sum import RowStack, Stack
from fedpriv.training.failures import contributing_zero_on_failure
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.stopping import stop_if_asked
from fedpriv.training.work import Attempt, Users, UserTrainer
from fedpriv.tree import Params, RowSparse, Tree

if TYPE_CHECKING:
    import torch

    from fedpriv.training.local.vectorised import VectorisedTrainer

_NOTHING, _NO_ROWS = np.empty(0, np.float32), np.empty(0, np.int64)
# Users of a compiled call: their updates stay in a core's cache until they are added.
_BLOCK, _BLOCK_EXAMPLES = 16, 128
# Counts that the compiled loop reads in place; others are converted, those of the chosen examples
# only, so that work never follows the size of a user.
_COUNTS = (np.uint8, np.uint16, np.float32)


@runtime_checkable
class InColumns(Protocol):
    """User data whose examples are runs of common columns, which may be mapped from a file."""

    columns: TagExamples

    def span(self, user_id: str) -> tuple[int, int]:
        """Return where a user's examples start and end in the columns.

        Raises:
            ValueError: If the user is unknown.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSoftmaxTrainer(UserTrainer):
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
    takes: ClassVar[tuple[str, ...]] = ("rate",)
    otherwise: ClassVar[str] = (
        "its compiled loop has no others: leave it out; --device cpu trains by a loop that has "
        "the proximal term, and a ModuleTask has all"
    )

    schedule: LocalSgd
    inputs: str = "tff"
    multiplier: np.ndarray | None = field(default=None, repr=False)
    word_features: Features | None = None

    def __post_init__(self) -> None:
        if self.inputs not in INPUTS:
            raise ValueError(f"inputs {self.inputs!r} is unknown; choose one of {INPUTS}")
        if self.word_features is not None and self.inputs != "unit-norm":
            raise ValueError(
                f"inputs {self.inputs!r} have neither weights nor pairs; use 'unit-norm' with them"
            )

    def load(self) -> None:
        """Load the kernels, and compile those that were not yet."""
        import fedpriv.kernels.sparse_softmax

        if self.word_features is not None:
            import fedpriv.kernels.word_features  # noqa: F401

    def train(self, params: Params, context: Context, examples: TagExamples, key: Key) -> Tree:
        """Return the update of `kernel` (row-sparse) and `bias` (dense), float32.

        A user without examples returns zeros.

        Raises:
            ValueError: If a word or a label is outside the model, or a logit is not finite.
        """
        rng = key.generator()
        chosen = self.schedule.choose(len(examples), rng)
        order, starts = self.schedule.steps(len(chosen), rng)
        if self.word_features is None:
            examples = examples.take(chosen)
        else:
            examples = examples.with_features(self.word_features, chosen)
        own, moved = self._trained(params, context, examples, [order], [starts])
        if np.isnan(moved).any():
            raise ValueError("a word or a label is outside the model, or a logit is not finite")
        kernel = RowSparse(rows=own.rows, values=own.values, num_rows=len(params["kernel"]))
        return {"bias": moved[0], "kernel": kernel}

    def stacks(self, request: SumRequest, attempt: Attempt, users: Users) -> Iterator[Stack]:
        """Yield blocks of users whose examples lie in common columns; of others user by user."""
        plain = self.word_features is None and self.select is None
        plain = plain and request.context.mixture is None  # which fills all rows of each user
        data = users.data
        if not plain or not isinstance(data, InColumns) or data.columns.counts.dtype not in _COUNTS:
            yield from UserTrainer.stacks(self, request, attempt, users)
            return
        columns, last = data.columns, len(users.ids) - 1
        orders, steps, number = list[np.ndarray](), list[np.ndarray](), 0
        for place, user_id in enumerate(users.ids):
            with contributing_zero_on_failure():
                key = attempt.key.fold(user_id)
                order, starts = self._ordered(data, user_id, request.context, key)
                orders.append(order)
                steps.append(starts)
                number += len(order)
            if place == last or len(orders) == _BLOCK or number >= _BLOCK_EXAMPLES:
                stop_if_asked()
                own, moved = self._trained(request.params, request.context, columns, orders, steps)
                yield RowStack({"kernel": own, "bias": moved})
                orders, steps, number = [], [], 0

    def rows(self, data: InColumns, user_id: str, context: Context, key: Key) -> np.ndarray:
        """Return the rows of the columns that a user trains on in a round, int64."""
        return np.arange(*data.span(user_id))

    def _ordered(
        self, data: InColumns, user_id: str, context: Context, key: Key
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a user's rows in the order of its steps, and where each step starts."""
        rows = self.rows(data, user_id, context, key)
        if self.schedule.is_one_batch(len(rows)):
            return rows, np.array([0, len(rows)] if len(rows) else [0])
        rng = key.generator()
        chosen = self.schedule.choose(len(rows), rng)
        order, starts = self.schedule.steps(len(chosen), rng)
        return rows[chosen[order]], starts

    def _trained(
        self,
        params: Params,
        context: Context,
        examples: TagExamples,
        orders: Sequence[np.ndarray],
        steps: Sequence[np.ndarray],
    ) -> tuple[Block, np.ndarray]:
        """Return the updates of a block of users: rows of the kernel, and the bias (users, ...)."""
        from fedpriv.kernels.sparse_softmax import train

        kind = examples.counts.dtype if examples.counts.dtype in _COUNTS else np.float32
        rows, starts, change, moved = train(
            np.ascontiguousarray(examples.indptr, np.int64),
            np.ascontiguousarray(examples.indices, np.int32),
            np.ascontiguousarray(examples.counts, kind),
            np.ascontiguousarray(examples.labels, np.int32),
            np.concatenate([_NO_ROWS, *orders]),
            np.cumsum([0, *map(len, orders)]),
            np.concatenate([_NO_ROWS, *steps]),
            np.cumsum([0, *map(len, steps)]),
            self.inputs == "unit-norm",
            params["kernel"],
            params["bias"],
            _NOTHING if self.multiplier is None else self.multiplier,
            self.schedule.learning_rate * context.rate,
        )
        return Block(rows, starts, change), moved


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSoftmaxTrainer(UserTrainer):
    """Local SGD for softmax regression without a bias on dense rows, as of a pretrained encoder.

    It takes the steps of `CompiledSoftmaxTrainer` on the same inputs, to float32's rounding. A
    user has few examples, and fewer distinct rows (sentences of a thread share its title), so its
    update is kept as a product: kernel = Xᵀ R with X its distinct rows `(m, d)` and R `(m, k)` the
    sum of the steps' residuals. Logits after some steps are X W + (X Xᵀ) R, so the kernel is read
    once and written once however many steps are taken. A user's update depends on its own examples,
    key and the params alone.

    Attributes:
        schedule: How much work.
        inputs: From examples and which of them, int64 `(n,)`, to distinct rows of unit norm,
            float32 `(m, d)`, and each one's row among them, int64 `(n,)`.
        multiplier: 1/A for each row of the kernel, float32 `(d,)`, applied to its gradient at
            every step; None for plain SGD.
    """

    #: Nothing of it ever changes, so threads may share it.
    thread_safe: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = ("proximal", "rate")
    otherwise: ClassVar[str] = (
        "its updates are kept as products, which others would fill: leave it out; a ModuleTask "
        "has all"
    )

    schedule: LocalSgd
    inputs: Callable[[TagExamples, np.ndarray], tuple[np.ndarray, np.ndarray]] = field(repr=False)
    multiplier: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.multiplier is not None and self.schedule.proximal_mu != 0.0:
            raise ValueError(
                f"proximal-mu {self.schedule.proximal_mu:g} with precondition in local steps: the "
                "preconditioned pull is no product of this model's rows; leave one of them out, "
                "or precondition 'update'"
            )

    def load(self) -> None:
        """Load the kernels, and compile them if they were not yet."""
        import fedpriv.kernels.dense_softmax  # noqa: F401

    def train(self, params: Params, context: Context, examples: TagExamples, key: Key) -> Tree:
        """Return the update of `kernel`, float32; of a user without examples zeros.

        Raises:
            ValueError: If a label is outside the model, or a logit is not finite.
        """
        from fedpriv.kernels.dense_softmax import train

        rng = key.generator()
        chosen = self.schedule.choose(len(examples), rng)
        order, starts = self.schedule.steps(len(chosen), rng)
        if not len(chosen):
            return {name: np.zeros_like(array) for name, array in params.items()}
        distinct, place = self.inputs(examples, chosen)
        change, unsound = train(
            np.ascontiguousarray(distinct, np.float32),
            place,
            examples.labels[chosen].astype(np.int64),
            order,
            starts,
            params["kernel"],
            _NOTHING if self.multiplier is None else self.multiplier,
            self.schedule.learning_rate * context.rate,
            self.schedule.learning_rate * context.rate * self.schedule.proximal_mu,
        )
        if unsound != 0:
            raise ValueError("a logit is not finite")
        # What the last step made is not finite only for a rate or multiplier that is not: the
        # bound refuses it.
        return {"kernel": change}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWords:
    """Examples over the words that they have, which are rows of a kernel.

    Attributes:
        inputs: As of `CompiledSoftmaxTrainer`.
        shape: Rows of the kernel, and classes.
        word_features: As of `CompiledSoftmaxTrainer`.
    """

    inputs: str = "tff"
    shape: tuple[int, int]
    word_features: Features | None = None

    def over(self, examples: TagExamples) -> tuple[np.ndarray, sparse.csr_array]:
        """Return the words of examples, increasing, and inputs over these, float32."""
        if self.word_features is not None:
            examples = examples.with_features(self.word_features, np.arange(len(examples)))
        words, columns = np.unique(examples.indices, return_inverse=True)
        values, shape = examples.values(self.inputs), (len(examples), len(words))
        return words, sparse.csr_array((values, columns, examples.indptr), shape=shape)

    def own(self, chosen: TagExamples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return words, int64 `(r,)`, inputs over these, float32 `(n, r)`, and labels, int64.

        Raises:
            ValueError: If a word or a label is outside the model.
        """
        (words, inputs), labels = self.over(chosen), chosen.labels.astype(np.int64)
        for numbers, end in zip((words, labels), self.shape, strict=True):
            if numbers.size and not 0 <= numbers.min() <= numbers.max() < end:
                raise ValueError(f"a word or a label is outside the model: there are {end}")
        return words.astype(np.int64), inputs.toarray(), labels

    def dense(self, chosen: TagExamples) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs over all rows of the kernel, float32 `(n, rows)`, and labels."""
        words, own, labels = self.own(chosen)
        found = np.zeros((len(own), self.shape[0]), np.float32)
        found[:, words] = own
        return found, labels


def softmax_on_device(
    words: OwnWords,
    schedule: LocalSgd,
    device: torch.device,
    *,
    multiplier: np.ndarray | None = None,
    biased: bool = True,
) -> VectorisedTrainer:
    """Return local SGD of the same model on a device, many users at once.

    Args:
        words: What examples are.
        schedule: How much work.
        device: Where.
        multiplier: As of `CompiledSoftmaxTrainer`.
        biased: Whether there is a "bias" among the params.
    """
    from torch.nn.functional import cross_entropy

    from fedpriv.models.images import SoftmaxRegression
    from fedpriv.training.local.module import ModuleTrainer
    from fedpriv.training.local.vectorised import OwnRows, VectorisedTrainer

    module = SoftmaxRegression(*words.shape)
    module.bias.requires_grad_(biased)  # zeros, which without one stay so
    alone = ModuleTrainer(
        module=module,
        loss=cross_entropy,
        schedule=schedule,
        multiplier={} if multiplier is None else {"kernel": multiplier},
        device=device,
        encode=words.dense,
    )
    return VectorisedTrainer(alone=alone, own_rows=OwnRows(name="kernel", of=words.own))
