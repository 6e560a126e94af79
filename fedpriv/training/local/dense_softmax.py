"""Local SGD for softmax regression on dense rows, such as those of a pretrained encoder.

A user has few examples, so its update is kept as a product: kernel = Xᵀ R with X its inputs
`(n, d)` and R `(n, k)` the sum of the steps' residuals. Logits after some steps are
X W + (X Xᵀ) R, so the kernel is read once and written once however many steps are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from fedpriv.datasets.stackexchange.tag_view import TagExamples
from fedpriv.rng import Key
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.sgd import as_tensor, one_thread
from fedpriv.tree import Params, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSoftmaxTrainer:
    """Softmax regression of one user on dense rows.

    It takes the steps of `CompiledSoftmaxTrainer` on the same inputs, to float32's rounding. A
    user's update depends on its own examples, key and the params alone.

    Attributes:
        schedule: How much work.
        inputs: From examples to rows of unit norm, float32 `(n, d)`.
        multiplier: 1/A for each row of the kernel, float32 `(d,)`, applied to its gradient at
            every step and not to the bias; None for plain SGD.
    """

    #: Nothing of it ever changes, so threads may share it.
    thread_safe: ClassVar[bool] = True

    schedule: Schedule
    inputs: Callable[[TagExamples], np.ndarray] = field(repr=False)
    multiplier: np.ndarray | None = field(default=None, repr=False)

    def train(self, params: Params, examples: TagExamples, key: Key) -> Tree:
        """Return the update of `kernel` and `bias`, float32; of a user without examples zeros.

        Raises:
            ValueError: If a label is outside the model, or a logit is not finite.
        """
        rng = key.generator()
        chosen = self.schedule.choose(len(examples), rng)
        batches = self.schedule.batches(len(chosen), rng)
        picked = examples.take(chosen)
        number, num_classes = len(picked), params["kernel"].shape[1]
        labels = np.asarray(picked.labels, np.int64)
        if not number:
            return {name: np.zeros_like(array) for name, array in params.items()}
        if not 0 <= labels.min() <= labels.max() < num_classes:
            raise ValueError("a label lies outside the classes")
        with one_thread(), torch.no_grad():
            x = as_tensor(self.inputs(picked))
            scaled = x if self.multiplier is None else x * as_tensor(self.multiplier)
            before = torch.addmm(as_tensor(params["bias"]), x, as_tensor(params["kernel"]))
            residual = torch.zeros_like(before)
            # The bias is an input of one more, which no multiplier scales.
            gram = scaled @ x.T + 1.0 if len(batches) > 1 else None
            label = torch.from_numpy(labels)
            for step, positions in enumerate(batches):
                batch = torch.from_numpy(positions)
                logits = before[batch]
                if step and gram is not None:
                    logits += gram[batch] @ residual
                if not logits.isfinite().all():
                    raise ValueError("a logit is not finite")
                change = torch.softmax(logits, dim=1)
                change[torch.arange(len(batch)), label[batch]] -= 1.0
                change *= -self.schedule.learning_rate / len(batch)
                residual[batch] += change
            # What the last step made is not finite only for a rate or multiplier that is not: the
            # bound refuses it.
            return {
                "bias": residual.sum(dim=0).numpy(),
                "kernel": (scaled.T @ residual).numpy(),
            }
