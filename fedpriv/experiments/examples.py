"""Slots and parts of an experiment whose unit is an example (centralised training)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from fedpriv import optimizers
from fedpriv.experiments.options import Part
from fedpriv.experiments.start import Fresh
from fedpriv.mechanisms import Bound, RoundedSum
from fedpriv.privacy.sampling import Sampler, sampler_of
from fedpriv.rng import Key
from fedpriv.transform import Transform, chain
from fedpriv.tree import Params

if TYPE_CHECKING:
    from fedpriv.tasks.central import CentralTask


def num_steps(steps: int | None, epochs: float | None, batch_size: float, num_examples: int) -> int:
    """Return how many steps are planned.

    Raises:
        ValueError: If neither steps nor epochs are given, or both.
    """
    if steps is not None and epochs is None:
        return steps
    if epochs is not None and steps is None:
        return max(1, math.ceil(epochs * num_examples / batch_size - 1e-9))
    raise ValueError(f"steps {steps!r} and epochs {epochs!r}: give exactly one of them")


def num_groups(batch_size: float, micro_batch: int) -> int | None:
    """Return how many micro-batches share the expected batch; None without."""
    return None if micro_batch == 1 else max(1, round(batch_size / micro_batch))


#: From the number of steps to what the learning rate of each is multiplied by.
_FACTORS: Mapping[str, Callable[[int], optimizers.Factor]] = {
    "step": optimizers.stepwise,
    "cyclic": optimizers.cyclic,
    "inverse-root": lambda num_steps: optimizers.inverse_root(),
}


def scheduled(optimizer: Transform, schedule: str, num_steps: int) -> Transform:
    """Return an optimiser whose learning rate changes by a schedule."""
    if schedule not in _FACTORS:
        return optimizer
    return chain(optimizer, optimizers.scheduled(_FACTORS[schedule](num_steps)))


def warmed(task: CentralTask, start: Part, epochs: int, learning_rate: float) -> CentralTask:
    """Return the task with params that were trained on its public examples first, without noise.

    Args:
        task: May have some.
        start: The part that says what training starts from.
        epochs: Over the public examples; 0 for none.
        learning_rate: Of these.

    Raises:
        ValueError: If it has none, or the start says something else.
    """
    if epochs == 0:
        return task
    if not isinstance(start, Fresh):
        raise ValueError(
            f"warm-start-epochs {epochs} and a start that is not 'fresh' both say what training "
            "starts from; leave one of them out"
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
            epochs=epochs,
            learning_rate=learning_rate,
        )

    return replace(task, init=init, cold=task.cold or task.init)


def rounded(bound: Bound, task: CentralTask) -> Bound:
    """Return a bound of a sum on a grid.

    Raises:
        ValueError: If the model's sums have no stated error.
    """
    from fedpriv.training.per_example.example_sum import SumsApart

    if not isinstance(task.train, SumsApart):
        raise ValueError(
            f"exact-sum true: gradients of {type(task.train).__name__} are summed in float32, or "
            "depend on the batch in their last bits; leave it out (a secure run then says that its "
            "noise is not hardened)"
        )
    return RoundedSum(
        bound=bound,
        float_error=task.train.float_error(),
        mixed_error=task.train.float_error(mixed=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonBatches(Part):
    """Every example's own independent Bernoulli draw."""

    kind: ClassVar[str] = "poisson"

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return who draws."""
        return sampler_of("poisson", num_examples, batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBatches(Part):
    """So many examples each step."""

    kind: ClassVar[str] = "fixed"

    def sampler(self, num_examples: int, batch_size: float, num_steps: int) -> Sampler:
        """Return who draws.

        Raises:
            ValueError: If the batch size is not whole.
        """
        return sampler_of("fixed", num_examples, batch_size)
