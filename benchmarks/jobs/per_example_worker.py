"""The worker of `per_example.py`: one tool, one model, one step after another.

A step is everything from the positions of a batch to the sum of its clipped gradients; noise and
the optimiser's step are the same few vector operations for all. The model is the same class with
the same weights, the batches hold the same examples. Runs in fedpriv's environment or in Opacus'.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from protocol import Gate
from torch import nn
from torch.nn import functional

# Opacus' environment does not hold fedpriv; its models are plain modules and need only torch.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from simulations.adadps.models import Autoencoder
from simulations.dpnsgd.resnet import ResNet20

NUM_EXAMPLES, CLIP = 512, 0.5

#: From the positions of a batch to the sum of its clipped gradients; and the norm of such a sum.
Step = tuple[Callable[[np.ndarray], Any], Callable[[Any], float]]


def job(model: str) -> tuple[nn.Module, Callable, np.ndarray, np.ndarray]:
    """Return the model with its first weights, the loss, and synthetic inputs and targets."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    if model == "autoencoder":
        images = rng.random((NUM_EXAMPLES, 784), np.float32)
        return Autoencoder(), functional.mse_loss, images, images
    images = rng.standard_normal((NUM_EXAMPLES, 3, 32, 32), np.float32)
    labels = rng.integers(0, 10, NUM_EXAMPLES)
    return ResNet20(), functional.cross_entropy, images, labels


def fedpriv_step(model: str) -> Step:
    """Return fedpriv's step."""
    from fedpriv import tree
    from fedpriv.mechanisms.bounds import Clip
    from fedpriv.sums import RunningSum
    from fedpriv.training.algorithm import NO_CONTEXT
    from fedpriv.training.bounded_sum import sum_bounded
    from fedpriv.training.local.module import module_params
    from fedpriv.training.per_example.module import ModuleGradients

    module, loss, x, y = job(model)
    params, bound = module_params(module), Clip(l2_clip_norm=CLIP)
    gradients = ModuleGradients(module, loss, x, y)

    def step(index: np.ndarray) -> tree.Params:
        stacks = [gradients.stacks(params, index)]
        done = sum_bounded(RunningSum(params, None), stacks, bound, params, NO_CONTEXT)
        return tree.to_dense(done.total)

    return step, tree.l2_norm


def opacus_step(model: str) -> Step:
    """Return plain Opacus' step: GradSampleModule with hooks, then its optimiser's clipping."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module, loss, x, y = job(model)
    wrapped = GradSampleModule(module.train(), batch_first=True, loss_reduction="mean")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        expected_batch_size=64,
    )

    def step(index: np.ndarray) -> list[torch.Tensor]:
        optimizer.zero_grad()
        outputs = wrapped(torch.from_numpy(x[index]))
        loss(outputs, torch.from_numpy(y[index])).backward()
        optimizer.clip_and_accumulate()
        return [p.summed_grad for p in optimizer.params]

    def norm(sums: list[torch.Tensor]) -> float:
        return float(sum(s.double().square().sum() for s in sums) ** 0.5)

    return step, norm


def peak_mib() -> float:
    # Not getrusage's ru_maxrss: a child begins with the peak of the process that started it.
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return int(dict(line.split(":") for line in lines)["VmHWM"].split()[0]) / 1024


def main() -> None:
    tool, model, batch, threads, mode = sys.argv[1:]
    gate = Gate()
    torch.set_num_threads(int(threads))
    step, norm = opacus_step(model) if tool == "opacus" else fedpriv_step(model)
    before, rng = peak_mib(), np.random.default_rng(1)
    found = norm(step(np.arange(int(batch))))

    def one() -> None:
        step(np.sort(rng.choice(NUM_EXAMPLES, int(batch), replace=False)))

    if mode == "memory":
        for _ in range(5):
            one()
        gate.ready(before=before, peak=peak_mib(), norm=found)
        return
    gate.ready(norm=found)
    while gate.passes():
        one()


if __name__ == "__main__":
    main()
