"""Reasons why dense local training is fast on one core: ratios of one alternating run.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/dense_training.py [JOB ...]

Every way to train trains the same users from the same params; blocks of all ways alternate, and
what is printed is the median of the blocks' CPU time, and each block's ratio to the loop with
`optim.SGD` next to it. Two processes take turns: one returns freed memory to the system, as any
process does, the other keeps it. Nothing is bounded, summed or noised here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median

import numpy as np
import torch
from jobs.cifar_job import make_cnn
from torch import nn

from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.devices import keep_freed_memory
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer, module_params
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.vectorised import VectorisedTrainer

KEPT = ", memory kept"


def cnn_without_dropout() -> nn.Module:
    return nn.Sequential(*(m for m in make_cnn() if not isinstance(m, nn.Dropout)))


def mlp(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


# Model, shape of an input, examples a user, users a block, users at once.
JOBS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, tuple[int, ...]]] = {
    "cnn": (make_cnn, (3, 32, 32), 50, 4, ()),
    "cnn-no-dropout": (cnn_without_dropout, (3, 32, 32), 50, 8, (2, 4, 8)),
    "cnn-no-dropout-50": (cnn_without_dropout, (3, 32, 32), 50, 50, (16, 50)),
    "softmax": (lambda: nn.Linear(784, 10), (784,), 20, 100, (2, 4, 8, 16, 50)),
    "mlp-32": (lambda: mlp(32), (784,), 20, 100, (2, 4, 8, 16, 50)),
    "mlp-128": (lambda: mlp(128), (784,), 20, 100, (4, 8, 16, 50)),
    "mlp-256": (lambda: mlp(256), (784,), 20, 50, (4, 8, 16, 50)),
    "mlp-512": (lambda: mlp(512), (784,), 20, 50, (4, 8, 16)),
}


def loop(module: nn.Module, params: dict, users: list[ArrayExamples]) -> None:
    """Train the users as a plain PyTorch program does."""
    start = {name: torch.from_numpy(array) for name, array in params.items()}
    module.train()
    for user in users:
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        x, y = torch.from_numpy(user.x), torch.from_numpy(user.y)
        order = torch.randperm(len(x))
        for first in range(0, len(x), 10):
            batch = order[first : first + 10]
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
        _ = {name: p.detach() - start[name] for name, p in module.named_parameters()}


def ways(job: str, kept: bool, num_users: int) -> dict[str, Callable[[], object]]:
    """Return what one process times, by name."""
    make, shape, number, _, at_once = JOBS[job]
    torch.manual_seed(0)
    module, rng = make(), np.random.default_rng(0)
    params, key = module_params(module), Key.simulation(0)
    users = [
        ArrayExamples(
            rng.normal(size=(number, *shape)).astype(np.float32), rng.integers(0, 10, number)
        )
        for _ in range(num_users)
    ]
    keys = [key.fold(user) for user in range(num_users)]
    alone = ModuleTrainer(
        module=module,
        loss=nn.functional.cross_entropy,
        schedule=LocalSgd(learning_rate=0.1, batch_size=10),
    )

    def one_by_one() -> None:
        for user, own in zip(users, keys, strict=True):
            alone.train(params, NO_CONTEXT, user, own)

    found: dict[str, Callable[[], object]] = {
        "loop with optim.SGD": lambda: loop(module, params, users),
        "ModuleTrainer": one_by_one,
    }
    if not kept:
        return found

    # The trial of batch invariance is made once a trainer, in the block that warms up.
    trainers = {
        f"{size} users at once": VectorisedTrainer(alone=alone, users_at_once=size)
        for size in at_once
    }

    def together(many: VectorisedTrainer) -> None:
        works = [many.prepare(params, user, own) for user, own in zip(users, keys, strict=True)]
        for _ in many.batches(many.alone.start(params), NO_CONTEXT, works):
            pass

    for name, many in trainers.items():
        found[name] = lambda many=many: together(many)
    return {name + KEPT: way for name, way in found.items()}


def serve(pipe: Connection, job: str, kept: bool, num_users: int) -> None:
    """Time the ways that the other side of the pipe names."""
    torch.set_num_threads(1)
    if kept and not keep_freed_memory():
        raise SystemExit("this C library does not let a process keep freed memory")
    found = ways(job, kept, num_users)
    pipe.send(list(found))
    while (name := pipe.recv()) is not None:
        started = time.process_time()
        found[name]()
        pipe.send((time.process_time() - started) / num_users)


def measure(job: str, blocks: int, num_users: int) -> None:
    """Print one job's table."""
    context = multiprocessing.get_context("spawn")
    pipes, processes, turns = [], [], []
    for kept in (False, True):
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, job, kept, num_users))
        process.start()
        processes.append(process)
        pipes.append(here)
        turns += [(here, name) for name in here.recv()]
    seconds: dict[str, list[float]] = {name: [] for _, name in turns}
    for block in range(blocks + 1):
        for pipe, name in turns:
            pipe.send(name)
            taken = pipe.recv()
            if block:  # the first warms up
                seconds[name].append(taken)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()
    base = seconds[turns[0][1]]
    print(f"\n{job}: {JOBS[job][2]} examples a user in batches of 10, {blocks} blocks")
    for name, times in seconds.items():
        ratios = sorted(b / t for b, t in zip(base, times, strict=True))
        print(
            f"  {name:36s} {median(times) * 1e3:9.3f} ms a user   x{median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time dense local training.")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--users", type=int, help="a block, instead of the job's own")
    arguments = parser.parse_args()
    for job in arguments.jobs or [name for name in JOBS if not name.endswith("-50")]:
        measure(job, arguments.blocks, arguments.users or JOBS[job][3])


if __name__ == "__main__":
    main()
