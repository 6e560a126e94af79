"""A round's time over that of its unavoidable work.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/floor.py --corpus onstartups

The unavoidable work of one round of the sparse job, as bare loops over arrays that lie ready, on
one core of the same process: sparse products, exponentials, the traffic of the touched rows (clear,
norm, add to the sum), one Gaussian a parameter, and one pass of the server over all parameters.
Whole rounds (cohort, keys, guards, bounds, ledger synced to disk) alternate with it, and the ratio
is that of the medians. Evaluation is timed apart.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any, cast

import numpy as np
from harness.main_job import about, open_job, parser
from jobs.ledger_only import LedgerOnly
from numba import njit

from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Components
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.loop import rounds
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.work import Attempt

F = np.float32
_ONE: Any = F(1.0)  # what the kernel is compiled for


@njit(cache=True, nogil=True, fastmath={"contract"})
def products(indptr, indices, values, kernel, out):
    for row in range(indptr.size - 1):
        sums = out[row]
        sums[:] = F(0)
        for j in range(indptr[row], indptr[row + 1]):
            value, column = values[j], kernel[indices[j]]
            for c in range(sums.size):
                sums[c] += value * column[c]


@njit(cache=True, nogil=True, fastmath={"contract"})
def transposed_products(indptr, places, values, residuals, out):
    for row in range(indptr.size - 1):
        residual = residuals[row]
        for j in range(indptr[row], indptr[row + 1]):
            value, sums = values[j], out[places[j]]
            for c in range(residual.size):
                sums[c] += value * residual[c]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def norm_and_add(rows, change, total):
    squared = 0.0
    for r in range(rows.size):
        row = change[r]
        for c in range(row.size):
            squared += np.float64(row[c]) * np.float64(row[c])
    factor = 1e6 / squared
    for r in range(rows.size):
        row, sums = change[r], total[rows[r]]
        for c in range(row.size):
            sums[c] += np.int32(np.rint(np.float64(row[c]) * factor))


@njit(cache=True, nogil=True)
def server_step(total, noise, params, out):
    for i in range(total.size):
        out[i] = params[i] + F((total[i] + noise[i]) * 0.05)


class Floor:
    """The bare work of rounds, piece by piece."""

    def __init__(self, components: Components, experiment) -> None:
        trainer: Any = components.trainer
        schedule, inputs = trainer.schedule, experiment.task.inputs
        self.kernel = components.task.init_params(Key.simulation(0))["kernel"]
        self.total = np.zeros(self.kernel.shape, np.int32)
        self.params = np.zeros(self.kernel.size, np.float32)
        self.users = {}
        for user in components.task.roster:
            examples = components.task.data.examples(user)
            rng = np.random.default_rng(0)
            order = schedule.choose(len(examples), rng)
            chosen = examples.take(order)
            rows, places = np.unique(chosen.indices, return_inverse=True)
            values = chosen.values(inputs)
            starts = [*range(0, len(chosen), schedule.batch_size), len(chosen)]
            steps = []
            for a, b in pairwise(starts):
                first, last = chosen.indptr[a], chosen.indptr[b]
                indptr = chosen.indptr[a : b + 1] - first
                cut = slice(first, last)
                steps.append((indptr, chosen.indices[cut], places[cut], values[cut]))
            self.users[user] = (rows, steps)
        width = self.kernel.shape[1]
        largest = max(len(rows) for rows, _ in self.users.values())
        self.change = np.zeros((largest, width), np.float32)
        self.logits = np.zeros((schedule.batch_size, width), np.float32)
        self.more = np.zeros_like(self.logits)

    def round(self, cohort) -> dict[str, float]:
        """Do one round's work and return the seconds of its pieces."""
        from fedpriv.kernels.normals import box_muller, philox

        spent: dict[str, float] = dict.fromkeys(
            ("products", "exponentials", "rows", "normals", "server"), 0.0
        )
        clock = time.perf_counter
        for user in cohort:
            rows, steps = self.users[user]
            if not len(rows):  # nothing to train on
                continue
            change = self.change[: len(rows)]
            at = clock()
            change.fill(0)
            spent["rows"] += clock() - at
            for number, (indptr, indices, places, values) in enumerate(steps):
                at = clock()
                logits = self.logits[: len(indptr) - 1]
                products(indptr, indices, values, self.kernel, logits)
                if number:  # the user's own change counts from its second step on
                    products(indptr, places, values, change, self.more)
                then = clock()
                np.exp(logits, out=logits)
                logits /= logits.sum(axis=1, keepdims=True)
                spent["exponentials"] += clock() - then
                spent["products"] += then - at
                at = clock()
                transposed_products(indptr, places, values, logits, change)
                spent["products"] += clock() - at
            at = clock()
            norm_and_add(rows, change, self.total)
            spent["rows"] += clock() - at
        at = clock()
        noise = np.empty(self.params.size, np.float32)
        bits = np.empty(1 << 16, np.uint32)
        key, counter = np.zeros(2, np.uint32), np.zeros(4, np.uint32)
        for start in range(0, noise.size, 1 << 16):
            block = noise[start : start + (1 << 16)]
            philox(key, counter, bits[: block.size])
            box_muller(bits[: block.size], _ONE, block)
        then = clock()
        self.params = _stepped(self.total.reshape(-1), noise, self.params)
        self.total.fill(0)
        spent["normals"] += then - at
        spent["server"] += clock() - then
        return spent


def _stepped(total, noise, params):
    out = np.empty_like(params)
    server_step(total, noise, params, out)
    return out


def main() -> None:
    arguments = parser("A round's time over that of its unavoidable work.", rounds=60).parse_args()
    experiment, corpus = open_job(arguments, rounds=arguments.rounds + 5, eval_every=10**6)
    components = build(experiment, corpus)
    floor, backend = Floor(components, experiment), serial(experiment, components)
    root, drawn, answer = Key.simulation(0), [], backend.sum

    def noting(request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        drawn.append(cohort)  # the floor is of the very users that the round had
        return answer(request, attempt, cohort)

    backend.sum = noting
    with tempfile.TemporaryDirectory() as folder:
        kept = LedgerOnly.create(Path(folder) / "run", experiment, components)
        running = rounds(
            components,
            backend,
            root,
            folder=cast(RunFolder, kept),
            eval_every=10**6,
        )
        seconds, bare, pieces = [], [], []
        for _ in range(1, arguments.rounds + 5):
            started = time.perf_counter()
            next(running)
            seconds.append(time.perf_counter() - started)
            started = time.perf_counter()
            pieces.append(floor.round(drawn[-1]))
            bare.append(time.perf_counter() - started)
        seconds, bare, pieces = seconds[4:], bare[4:], pieces[4:]
        params = components.task.init_params(root)
        timed = []
        for public in (False, True):
            started = time.perf_counter()
            components.task.evaluate(params, public=public)
            timed.append(time.perf_counter() - started)
    print(f"{about(arguments, corpus)}, {len(os.sched_getaffinity(0))} core(s)")
    for name, values in (("round", seconds), ("floor", bare)):
        low, _, high = quantiles(values, n=4)
        print(f"  {name:<13}{median(values):.4f} s (quartiles {low:.4f} to {high:.4f})")
    for name in pieces[0]:
        print(f"    {name:<13}{median(piece[name] for piece in pieces):.4f} s")
    print(f"  ratio        {median(seconds) / median(bare):.2f}")
    print(f"  evaluation   {timed[0]:.2f} s on the roster, {timed[1]:.2f} s on public users, apart")


if __name__ == "__main__":
    main()
