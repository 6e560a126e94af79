"""What secure mode costs a round: the same rounds, simulated and secure, in alternating blocks.

    python benchmarks/secure_rounds.py

A dense model of five million parameters that users train for one step (20 of 400 a round), and the
main job's row-sparse rounds on a corpus. Noise is drawn while users train. Wall time and CPU time
of a round, and their ratio over blocks that lie next to each other.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import first_state, rounds
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import ArrayExamples

CLASSES, USERS, EXAMPLES = 1_000, 400, 8


def dense(inputs: int) -> Experiment:
    """Return a round of 20 of 400 users who train a linear model of 1,000 classes."""
    rng = np.random.default_rng(0)
    users = {
        f"u{i:03d}": ArrayExamples(
            x=rng.standard_normal((EXAMPLES, inputs)).astype(np.float32),
            y=rng.integers(0, CLASSES, EXAMPLES),
        )
        for i in range(USERS)
    }

    def task(experiment: Any, corpus: Any) -> ModuleTask:
        return ModuleTask(
            name="dense",
            module=lambda: nn.Linear(inputs, CLASSES),
            loss=nn.functional.cross_entropy,
            users=users,
            synthetic=True,
        )

    return FederatedExperiment(
        name="dense", description="A linear model.", task=task, rounds=100_000
    ).with_options({"noise_multiplier": 1.0, "cohort": 20.0, "local_batch_size": EXAMPLES})


def tags() -> Experiment:
    """Return the main job's rounds, from zero."""
    options = {"rounds": 100_000, "start": "fresh", "target-epsilon": None, "noise-multiplier": 1.0}
    return load_experiment("adadps-tags").with_options(options)


def playing(experiment: Experiment, corpus: Corpus | None, key: Key) -> Iterator[Any]:
    """Return a run's rounds, one after the other, kept in memory."""
    components = build(experiment, corpus)
    state = first_state(components, key)
    backend = serial(experiment, components)
    return iter(rounds(components, backend, key, state=state, eval_every=10**9))


def block(run: Iterator[Any], number: int) -> tuple[float, float]:
    """Return wall and CPU seconds a round over a block."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(number):
        next(run)
    return (time.perf_counter() - wall) / number, (time.process_time() - cpu) / number


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--corpus", default=None)
    parser.add_argument("--inputs", type=int, default=5_000, help="of the dense model")
    given = parser.parse_args()
    size = (given.inputs + 1) * CLASSES
    jobs: dict[str, tuple[Experiment, Corpus | None, int]] = {
        f"dense, {size:,} parameters": (dense(given.inputs), None, 3)
    }
    jobs["main job, row-sparse"] = (tags(), resolve_corpus(given.corpus, allow_synthetic=True), 10)
    for name, (experiment, corpus, number) in jobs.items():
        runs = {
            mode: playing(experiment, corpus, key)
            for mode, key in (("simulated", Key.simulation(0)), ("secure", Key.secure()))
        }
        for run in runs.values():
            block(run, number)
        taken: dict[str, list[tuple[float, float]]] = {mode: [] for mode in runs}
        for _ in range(given.blocks):
            for mode, run in runs.items():
                taken[mode].append(block(run, number))
        print(f"{name}: {given.blocks} blocks of {number} rounds")
        for place, what in enumerate(("wall", "CPU")):
            pairs = [
                (one[place], other[place])
                for one, other in zip(taken["simulated"], taken["secure"], strict=True)
            ]
            ratios = sorted(other / one for one, other in pairs)
            print(
                f"  {what}: simulated {1e3 * statistics.median(one for one, _ in pairs):.1f} ms, "
                f"secure {1e3 * statistics.median(other for _, other in pairs):.1f} ms a round; "
                f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


if __name__ == "__main__":
    main()
