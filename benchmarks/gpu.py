"""Training on GPUs: the path itself, the peers, many users, on several GPUs.

    python benchmarks/gpu.py                      on every GPU there is, about ten minutes
    python benchmarks/gpu.py --device cpu         the same on the processor, where it shows little
    python benchmarks/gpu.py --device cpu --smallest    that all of it runs

`path` times one round's sum of the 400 users' softmax regression in this process, in alternating
blocks: the compiled kernels, the device path, and plain dense PyTorch on the device, which trains
one user after another on all rows of the kernel. `linear` times one step of linear models by
example, of SYNTHETIC rows, by scipy, on the device and plain. `best`, `words` and `cifar` are those
of `compare.py`, with fedpriv on the device, on Ray with a GPU for each worker, and pfl on the
device. `users` is `growth.py`'s 342,477 SYNTHETIC users, with up to a thousand for every GPU.
Results go to `benchmarks/results/gpu.md`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import growth
import numpy as np
import torch
from compare import measure, tell
from growing.case import Case
from harness import contestants, figures
from harness.main_job import open_job, parser
from jobs.cifar_job import NUM_USERS
from scipy import sparse
from torch import nn

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import make_task
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, RunningSum
from fedpriv.training.algorithm import NO_CONTEXT, TRAIN, SumRequest
from fedpriv.training.bounded_sum import sum_bounded
from fedpriv.training.devices import device_description, usable_device
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.per_example.example_sum import ExampleGradients
from fedpriv.training.per_example.linear import SoftmaxGradients
from fedpriv.training.work import Attempt, Users, as_works
from fedpriv.tree import Params

PARTS = ("path", "linear", "best", "words", "cifar", "users")


def finished(device: torch.device) -> None:
    """Wait for what a device was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def dense_loop(task: Any, schedule: Any, device: torch.device, users: list[str]) -> Callable:
    """Return what trains users one by one as a plain PyTorch program does, on all rows."""
    examples = [task.data.examples(user) for user in users]
    start = {n: torch.from_numpy(a) for n, a in task.init_params(Key.simulation(0)).items()}
    num_rows, num_classes = start["kernel"].shape
    model = nn.Linear(num_rows, num_classes, device=device)
    before = {"weight": start["kernel"].t().to(device), "bias": start["bias"].to(device)}
    bound = Clip(l2_clip_norm=1.0)

    def train() -> None:
        total = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
        for own in examples:
            model.load_state_dict(before)
            optimizer = torch.optim.SGD(model.parameters(), lr=schedule.learning_rate)
            rng = np.random.default_rng(0)
            chosen = own.take(schedule.choose(len(own), rng))
            inputs = torch.from_numpy(chosen.features(task.norm).toarray()).to(device)
            labels = torch.from_numpy(chosen.labels.astype(np.int64)).to(device)
            for batch in schedule.batches(len(chosen), rng):
                index = torch.from_numpy(batch).to(device)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs[index]), labels[index]).backward()
                optimizer.step()
            update = {n: p.detach() - before[n] for n, p in model.named_parameters()}
            norm = math.sqrt(sum(float(u.double().square().sum()) for u in update.values()))
            for name, tensor in update.items():
                total[name] += tensor * (min(1.0, bound.l2_clip_norm / norm) if norm else 1.0)

    return train


class Slots:
    """Count of slots, and of those that users take; put it around `_many`."""

    def __init__(self) -> None:
        self.taken = self.all = 0

    def counted(self, many: Callable) -> Callable:
        """Return the method, which counts."""

        def wrapped(trainer: Any, start: Any, context: Any, works: Any) -> Any:
            self.taken += len(works)
            self.all += trainer.slots(works[0].kind)
            return many(trainer, start, context, works)

        return wrapped


def path(device: torch.device, arguments: argparse.Namespace) -> list[str]:
    """Return the table of one round's sum."""
    experiment, corpus = open_job(arguments, rounds=1, eval_every=1)
    assert isinstance(experiment, FederatedExperiment)
    task, schedule = make_task(experiment, corpus), experiment.local
    rng, lines = np.random.default_rng(0), []
    params = {
        n: a + 0.01 * rng.standard_normal(a.shape).astype(np.float32)
        for n, a in task.init_params(Key.simulation(0)).items()
    }
    bound = Rounded(bound=Clip(l2_clip_norm=1.0))
    slots, many = Slots(), VectorisedTrainer._many
    cohorts = [20] if device.type == "cpu" else [20, 100, len(task.roster)]
    for cohort in [5] if arguments.smallest else cohorts:
        users = [str(user) for user in rng.choice(task.roster, cohort, replace=False)]

        def summed(name: str | None, users: list[str] = users) -> Callable:
            work = as_works(experiment.make_trainer(task, device=name))[TRAIN]
            asked = SumRequest(params=params), Attempt(bound=bound, key=Key.simulation(0))

            def once() -> None:
                failed = work.answer(*asked, Users(users, task.data)).num_failed
                if failed:  # a round without users would be quick
                    raise SystemExit(f"{failed} of {len(users)} users failed on {name}")

            return once

        ways = {
            "compiled, one core": summed(None),
            f"device path on {device}": summed(str(device)),
            f"plain dense PyTorch on {device}": dense_loop(task, schedule, device, users),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for block in range(arguments.blocks + 1):
            for name, way in ways.items():
                slots.taken = slots.all = 0
                VectorisedTrainer._many = slots.counted(many)
                finished(device)
                began = time.perf_counter()
                way()
                finished(device)
                if block:
                    seconds[name].append(time.perf_counter() - began)
                VectorisedTrainer._many = many
                if "path" in name:
                    full = slots.taken / max(1, slots.all)
        mine = seconds[f"device path on {device}"]
        for name, times in seconds.items():
            ratio = median([t / own for t, own in zip(times, mine, strict=True)])
            filled = f"{full:.0%}" if "path" in name else ""
            lines.append(
                f"| {cohort} | {name} | {1000 * median(times):.2f} ms | {ratio:.2f} | {filled} |"
            )
        tell(f"path: {cohort} users done")
    memory = ""
    if device.type == "cuda":
        memory = f" At most {torch.cuda.max_memory_allocated(device) / 2**20:,.0f} MiB of the GPU."
    return [
        f"## One round's sum: {'SYNTHETIC ' if corpus.synthetic else ''}corpus {corpus.name}",
        "",
        f"{sum(a.size for a in params.values()):,} parameters.{memory}",
        "",
        "| users | | a round | × device path | slots filled |",
        "|---:|---|---:|---:|---:|",
        *lines,
        "",
    ]


def dense_step(
    rows: np.ndarray, labels: np.ndarray, kernel: np.ndarray, batch: np.ndarray, device: Any
) -> Callable:
    """Return what a plain PyTorch program does for a batch's clipped sum of softmax gradients."""
    arrays = rows.astype(np.float64), labels, kernel.astype(np.float64), batch
    inputs, targets, weights, index = (torch.from_numpy(array).to(device) for array in arrays)

    def step() -> None:
        x = inputs[index]
        residuals = torch.softmax(x @ weights, 1)
        residuals -= nn.functional.one_hot(targets[index], weights.shape[1])
        norms = ((x.square().sum(1) + 1.0) * residuals.square().sum(1)).sqrt()
        residuals *= torch.clamp(1.0 / norms, max=1.0)[:, None]
        for total in (x.T @ residuals, residuals.sum(0)):
            total.cpu()

    return step


def clipped_sum(gradients: ExampleGradients, params: Params, batch: np.ndarray) -> PartialSum:
    """Return the sum of a batch's gradients, each clipped to 1."""
    total, stacks = RunningSum(params, None), [gradients.stacks(params, batch)]
    return sum_bounded(total, stacks, Clip(l2_clip_norm=1.0), params, NO_CONTEXT)


def linear(device: torch.device, arguments: argparse.Namespace) -> list[str]:
    """Return the table of one step's sum of softmax regressions by example."""
    lines, rng = [], np.random.default_rng(0)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    shapes = [(100, 0.1, 2), (784, 0.2, 2), (784, 0.2, 10), (10_000, 0.01, 2)]
    for columns, share, classes in shapes[:1] if arguments.smallest else shapes:
        dense = rng.normal(size=(2_000, columns)) * (rng.random((2_000, columns)) < share)
        labels = rng.integers(0, classes, len(dense))
        here = SoftmaxGradients(sparse.csr_matrix(dense, dtype=np.float32), labels, classes)
        there = here.on_device(str(device))
        kernel = rng.normal(size=(columns, classes)).astype(np.float32)
        params = {"kernel": kernel, "bias": np.zeros(classes, np.float32)}
        steps = 1 if arguments.smallest else 40_000 // columns
        for size in (64, 256, 1024):
            batch = rng.choice(len(dense), size, replace=False)
            ways = {
                "plain dense PyTorch": dense_step(dense, labels, kernel, batch, device),
                "device path": partial(clipped_sum, there, params, batch),
                "scipy, one core": partial(clipped_sum, here, params, batch),
            }
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for block in range(arguments.blocks + 1):
                for name, way in ways.items():
                    finished(device)
                    began = clock()
                    for _ in range(steps):
                        way()
                    finished(device)
                    if block:
                        seconds[name].append((clock() - began) / steps)
            for name, times in seconds.items():
                pairs = zip(times, seconds["plain dense PyTorch"], strict=True)
                ratio = median([own / plain for own, plain in pairs])
                took = f"{1000 * median(times):.3f} ms"
                lines.append(f"| {columns} | {classes} | {size} | {name} | {took} | {ratio:.2f} |")
        tell(f"linear: {columns} columns, {classes} classes done")
    return [
        f"## One step of softmax regression by example, on SYNTHETIC rows, on {device}",
        "",
        f"{'CPU time' if device.type == 'cpu' else 'Time'} from a batch to its clipped sum.",
        "",
        "| columns | classes | batch | | a step | × plain dense PyTorch |",
        "|---:|---:|---:|---|---:|---:|",
        *lines,
        "",
    ]


def compared(part: str, device: str, num_gpus: int, arguments: argparse.Namespace) -> list[str]:
    """Return the section of one of `compare.py`'s jobs."""
    small = arguments.smallest
    options: dict[str, Any] = {
        "best": {"corpus": arguments.corpus},
        "words": {"corpus": arguments.corpus, "cohort": 1 if small else 20},
        "cifar": {
            "file": None,
            "num_users": 4 if small else NUM_USERS,
            "cohort": 1 if small else 50,
        },
    }[part]
    people = contestants.on_device(part, device, num_gpus, options)
    if small:  # the peer's environment takes minutes to make
        people = [person for person in people if person.tool == "fedpriv"]
    entries = measure(
        people,
        blocks=arguments.blocks,
        block_seconds=0.0 if small else 6.0,
        warm_up=1 if small else 6,
        logs=contestants.DATA / "logs" / f"gpu-{part}",
    )
    return [figures.markdown(part, entries, options.get("cohort", 20), []), ""]


def with_many_users(device: str, num_gpus: int, smallest: bool) -> list[str]:
    """Return the table of rounds of many users: processor, one device, and all of them by Ray.

    The largest cohort gives every GPU a thousand users, of which hardly a slot stays empty.
    """
    users, cohorts = 342_477, (20, 200, 1_000, *([1_000 * num_gpus] if num_gpus > 1 else []))
    if smallest:
        users, cohorts = 80, (5,)
    corpus = growth.equal_users(users, 100 if smallest else 34_247)
    lines = [f"## {users:,} SYNTHETIC users", "", "| cohort | | s a round | peak MiB |"]
    lines.append("|---:|---|---:|---:|")
    for cohort in cohorts:
        case = Case(corpus=corpus, cohort=cohort, rounds=2 if smallest else 15)
        ways = {"compiled": case, device: replace(case, device=device)}
        if num_gpus > 1:
            ways[f"Ray, {num_gpus} × {device.split(':')[0]}"] = replace(
                case, device=device, backend="ray", workers=num_gpus
            )
        for name, each in ways.items():
            found = growth.run_case(each)
            lines.append(
                f"| {cohort} | {name} | {found['median']:.4f} | {found['peak_pss_mib']:.0f} |"
            )
            tell(f"users: {cohort} by {name} done")
    return [*lines, ""]


def main() -> None:
    options = parser("Train on GPUs.", rounds=1)
    options.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(PARTS)}; all of them")
    options.add_argument("--device", default="cuda:0")
    options.add_argument("--gpus", type=int, help="of Ray's workers, by default all there are")
    options.add_argument("--blocks", type=int, default=5)
    options.add_argument("--smallest", action="store_true", help="show that all runs, fast")
    options.add_argument("--results", type=Path, help="folder; with --smallest a temporary one")
    arguments = options.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        options.error(f"parts {', '.join(sorted(unknown))} are not known; use {', '.join(PARTS)}")
    arguments.blocks = 1 if arguments.smallest else arguments.blocks
    arguments.results = figures.results_folder(arguments.results, smallest=arguments.smallest)
    device = usable_device(arguments.device)
    number = arguments.gpus or (torch.cuda.device_count() if device.type == "cuda" else 2)
    lines = [
        "# Training on devices",
        "",
        *figures.where(),
        f"Device: {device_description(device)}, torch {torch.__version__}; {number} for Ray.",
        "",
    ]
    if device.type == "cpu":
        lines += ["**Not measured on a GPU**: this is the device path on the processor.", ""]
    for part in arguments.parts or PARTS:
        tell(part)
        try:
            if part == "path":
                lines += path(device, arguments)
            elif part == "linear":
                lines += linear(device, arguments)
            elif part == "users":
                lines += with_many_users(str(device), number, arguments.smallest)
            else:
                lines += compared(part, str(device), number, arguments)
        except Exception as error:  # what was measured before stays
            if arguments.smallest:
                raise
            lines += [f"## {part}", "", f"Not measured: {type(error).__name__}: {error}", ""]
        (arguments.results / "gpu.md").write_text("\n".join(lines), "utf-8")
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main()
