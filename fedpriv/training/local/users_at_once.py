"""How many users are trained at once: the rule, and what it was derived from.

* On a GPU: as many as fit into 2 GiB, at most 32. A single user leaves a GPU idle; a larger chunk
  would mostly be empty slots, since a cohort is shared out to workers and split by batch width.
* On the CPU: one. Where convolutions do the work batching is no faster (0.9 times on a CNN of 1.6 M
  parameters). Small models of linear layers are another matter: against a loop with `optim.SGD`,
  50 users at once train 3 times faster up to 25,000 parameters, twice at 100,000, 16 at once 1.3
  times at 200,000, and from 400,000 on it is slower. Whoever wants that asks for it, and gets
  results that are equal to rounding.
* With a layer that draws at random, everywhere: one. Every user has a random stream of its own.

The rule looks at the model and the device, never at a clock: a run's result cannot depend on how
busy the machine was. `benchmarks/dense_training.py` prints the ratios.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from fedpriv.training.local.dtypes import model_inputs
from fedpriv.training.local.module import ModuleTrainer

_GPU_BYTES = 2 << 30
_MOST_AT_ONCE = 32
# For each user: its params while it trains, its gradient, and its update.
_COPIES = 3
_DROPOUT = (nn.modules.dropout._DropoutNd, nn.RReLU)


def default_users_at_once(trainer: ModuleTrainer, x: np.ndarray) -> int:
    """Return the rule's number of users for a model on its device.

    Args:
        trainer: What trains a single user.
        x: Any inputs, `(n, ...)`; only the shape of one matters.
    """
    if torch.device(trainer.device).type == "cpu" or random_layer(trainer.module) is not None:
        return 1
    return users_that_fit(trainer, x, _GPU_BYTES)


def random_layer(module: nn.Module) -> str | None:
    """Return the name of a layer that draws at random while it trains, if one is known to."""
    for name, layer in module.named_modules():
        # Recurrent layers and attention have a rate called dropout.
        rate = getattr(layer, "p", 1.0) if isinstance(layer, _DROPOUT) else 0.0
        rate = rate or getattr(layer, "dropout", 0.0)
        if isinstance(rate, float) and rate > 0:
            return name or type(layer).__name__
    return None


def users_that_fit(trainer: ModuleTrainer, x: np.ndarray, num_bytes: int) -> int:
    """Return how many users fit into memory at once, from 1 to 32.

    Counts three copies of the trained params and, for a batch, twice what PyTorch keeps of one
    example's forward pass. Nothing is drawn and no buffer changes.
    """
    trained = sum(p.numel() for p in trainer.module.parameters() if p.requires_grad)
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += 0 if isinstance(tensor, nn.Parameter) else tensor.numel() * tensor.element_size()
        return tensor

    if len(x):
        buffers = {name: buffer.clone() for name, buffer in trainer.module.named_buffers()}
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            one = trainer.on_device(model_inputs(x[:1]))
            functional_call(trainer.module.eval(), buffers, (one,))
    per_user = 4 * _COPIES * trained + 2 * kept * trainer.schedule.batch_size
    return max(1, min(_MOST_AT_ONCE, num_bytes // per_user))
