"""Slots and parts of an experiment whose unit is an example (centralised training)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedpriv import optimizers
from fedpriv.experiments.mechanism import AVERAGING, BATCHES_APART, BOUND, NOISE, RUN, promise_slots
from fedpriv.experiments.methods import BOLT_ON_SLOTS, AgdOfExamples, BoltOnOfExamples, method_slot
from fedpriv.experiments.options import Slot, option
from fedpriv.experiments.preconditioning import EXAMPLE_PRECONDITIONERS
from fedpriv.experiments.server import AGGREGATE, EXAMPLE_OPTIMIZERS
from fedpriv.experiments.start import START, Fresh, FromFile, FromPublic
from fedpriv.mechanisms import Bound, RoundedSum
from fedpriv.privacy.sampling import Sampler, sampler_of
from fedpriv.ranges import Range
from fedpriv.rng import Key
from fedpriv.transform import Transform, chain
from fedpriv.tree import Params

if TYPE_CHECKING:
    from fedpriv.tasks.central import CentralTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """How long, and how many examples a step."""

    batch_size: float = option(
        64.0, "Expected examples a step; each has its own independent draw.", Range.ABOVE_ZERO
    )
    epochs: float | None = option(
        None, "Passes over the training set, in expectation; sets the steps.", Range.ABOVE_ZERO
    )
    steps: int | None = option(None, "Steps; none takes them from epochs.", Range.AT_LEAST_ONE)
    micro_batch: int = option(
        1, "Examples whose mean is bounded as one; above 1 sensitivity doubles.",
        Range.AT_LEAST_ONE,
    )  # fmt: skip

    def num_steps(self, num_examples: int) -> int:
        """Return how many steps are planned.

        Raises:
            ValueError: If neither steps nor epochs are given, or both.
        """
        if self.steps is not None and self.epochs is None:
            return self.steps
        if self.epochs is not None and self.steps is None:
            return max(1, math.ceil(self.epochs * num_examples / self.batch_size - 1e-9))
        raise ValueError(
            f"steps {self.steps!r} and epochs {self.epochs!r}: give exactly one of them"
        )

    def num_groups(self) -> int | None:
        """Return how many micro-batches share the expected batch; None without."""
        if self.micro_batch == 1:
            return None
        return max(1, round(self.batch_size / self.micro_batch))


#: From the number of steps to what the learning rate of each is multiplied by.
_FACTORS: Mapping[str, Callable[[int], optimizers.Factor]] = {
    "step": optimizers.stepwise,
    "cyclic": optimizers.cyclic,
    "inverse-root": lambda num_steps: optimizers.inverse_root(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How the learning rate changes."""

    schedule: Literal["constant", "step", "cyclic", "inverse-root"] = option(
        "constant", "Of the learning rate: a tenth at half, one triangle, or α/√t."
    )

    def scheduled(self, optimizer: Transform, num_steps: int) -> Transform:
        """Return an optimiser whose learning rate changes so."""
        if self.schedule not in _FACTORS:
            return optimizer
        return chain(optimizer, optimizers.scheduled(_FACTORS[self.schedule](num_steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Training on public examples before, without noise."""

    warm_start_epochs: int = option(
        0, "Epochs on the public set before, without noise.", Range.AT_LEAST_ZERO
    )
    warm_start_rate: float = option(0.1, "Their learning rate.", Range.ABOVE_ZERO)

    def warmed(self, task: CentralTask, start: Fresh | FromPublic | FromFile) -> CentralTask:
        """Return the task with params that were trained on its public examples first.

        Args:
            task: May have some.
            start: The part that says what training starts from.

        Raises:
            ValueError: If it has none, or the start says something else.
        """
        if self.warm_start_epochs == 0:
            return task
        if not isinstance(start, Fresh):
            raise ValueError(
                f"warm-start-epochs {self.warm_start_epochs} and a start that is not 'fresh' both "
                "say what training starts from; leave one of them out"
            )
        # torch takes seconds to import, and declarations are read for `fedpriv --help`
        from fedpriv.training.per_example.example_sum import warm_start

        public = task.public_examples()

        def init(key: Key) -> Params:
            return warm_start(
                public,
                task.num_public,
                task.init_params(key),
                key.fold("warm start"),
                epochs=self.warm_start_epochs,
                learning_rate=self.warm_start_rate,
            )

        return replace(task, init=init, cold=task.cold or task.init)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSum:
    """Whether the sum of a step is of whole numbers."""

    exact_sum: bool = option(
        False,
        "Round the sum to a grid, which hardens a secure run; of linear models.",
        before=False,
    )

    def rounded(self, bound: Bound, task: CentralTask) -> Bound:
        """Return a bound, of a sum on a grid where that is asked for.

        Raises:
            ValueError: If the model's sums have no stated error.
        """
        if not self.exact_sum:
            return bound
        from fedpriv.training.per_example.example_sum import SumsApart

        if not isinstance(task.train, SumsApart):
            raise ValueError(
                f"exact-sum true: gradients of {type(task.train).__name__} are summed in float32, "
                "or depend on the batch in their last bits; leave it out (a secure run then says "
                "that its noise is not hardened)"
            )
        return RoundedSum(
            bound=bound,
            float_error=task.train.float_error(),
            mixed_error=task.train.float_error(mixed=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonBatches:
    """Every example's own independent Bernoulli draw."""

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return who draws."""
        return sampler_of("poisson", num_examples, batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBatches:
    """So many examples each step."""

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return who draws.

        Raises:
            ValueError: If the batch size is not whole.
        """
        return sampler_of("fixed", num_examples, batch_size)


_SAMPLING: Mapping[str, type] = {
    "poisson": PoissonBatches,
    "fixed": FixedBatches,
    **BATCHES_APART,
}
_PROMISES = promise_slots(_SAMPLING, "agd")
EXAMPLE_SLOTS = (
    method_slot(agd=AgdOfExamples, bolt_on=BoltOnOfExamples),
    *BOLT_ON_SLOTS,
    Slot(name="length", help="How long.", choices={"": Batches}, within=AVERAGING),
    Slot(
        name="sampling",
        help="How batches are drawn.",
        choices=_SAMPLING,
        within=AVERAGING,
    ),
    BOUND,
    NOISE,
    Slot(
        name="sum",
        help="Of bounded gradients.",
        choices={"": ExactSum},
        within=("noise", frozenset(NOISE.choices) - {"none"}),
    ),
    *_PROMISES,
    # What is proved of a finished result is of a replaced example: a set of one less has other
    # batches, and moves further than one whose place stays empty.
    replace(
        _PROMISES[0],
        within=("method", frozenset({"bolt-on"})),
        defaults={"relation": "replace-one"},
    ),
    Slot(
        name="optimizer",
        help="What is made of the released mean gradient.",
        choices=EXAMPLE_OPTIMIZERS,
        within=AVERAGING,
    ),
    Slot(
        name="schedule",
        help="Of the learning rate.",
        choices={"": Schedule},
        within=AVERAGING,
    ),
    Slot(
        name="guide",
        help="What public data or past releases add.",
        choices=EXAMPLE_PRECONDITIONERS,
        within=AVERAGING,
    ),
    START,
    Slot(
        name="warm start",
        help="Training on public examples before.",
        choices={"": WarmStart},
        within=AVERAGING,
    ),
    AGGREGATE,
    RUN,
)
