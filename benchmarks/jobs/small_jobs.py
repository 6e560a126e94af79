"""Workers of jobs that fedpriv alone is timed at: a network of one's own, single examples, secure.

    small_jobs.py own-cnn | by-example | secure [--corpus FOLDER]

Nothing is written but what a run keeps in memory; secure noise is drawn while users train.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from protocol import Gate
from torch import nn

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import rounds
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients

GATE = Gate()
ROUNDS, USERS = 100_000, 200


def network() -> nn.Module:
    """Return two convolutions and a linear layer, of images of 16 by 16."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def own_cnn() -> Experiment:
    """Return rounds of 20 of 200 users with 10 to 40 images each."""
    rng = np.random.default_rng(0)
    users = {}
    for number in range(USERS):
        size = int(rng.integers(10, 41))
        x = rng.standard_normal((size, 1, 16, 16)).astype(np.float32)
        users[f"u{number:03d}"] = (x, rng.integers(0, 10, size))

    def task(experiment: Any) -> ModuleTask:
        return ModuleTask(
            name="own network",
            module=network,
            loss=nn.functional.cross_entropy,
            users=users,
            synthetic=True,
        )

    made = FederatedExperiment(name="own-cnn", description="", task=task, rounds=ROUNDS)
    return made.with_options(
        {"noise-multiplier": 1.0, "cohort": 20.0, "local-batch-size": 10, "local-epochs": 2}
    )


def by_example() -> Experiment:
    """Return steps of DP-SGD on the same network, of 128 of 2,000 images."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2_000, 1, 16, 16)).astype(np.float32)
    train = ModuleGradients(network(), nn.functional.cross_entropy, x, rng.integers(0, 10, 2_000))
    task = CentralTask(
        name="single images",
        train=train,
        num_train=2_000,
        init=lambda key: module_params(network()),
        measure=lambda params: None,
        synthetic=True,
    )
    made = CentralExperiment(name="by-example", description="", task=lambda experiment: task)
    return made.with_options({"noise-multiplier": 1.0, "batch-size": 128.0, "steps": ROUNDS})


def secure() -> Experiment:
    """Return rounds of the main job, whose cohorts and noise are drawn without a seed."""
    return load_experiment("adadps-tags").with_options(
        {"start": "fresh", "target-epsilon": None, "noise-multiplier": 1.0, "rounds": ROUNDS}
    )


JOBS = {"own-cnn": own_cnn, "by-example": by_example, "secure": secure}


def main() -> None:
    parser = argparse.ArgumentParser(description="A worker of fedpriv's own jobs.")
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--corpus", default=None, help="of the secure job; as for `fedpriv run`")
    given = parser.parse_args()
    name = given.job
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    corpus = resolve_corpus(given.corpus, allow_synthetic=True) if name == "secure" else None
    experiment = JOBS[name]()
    components = build(experiment, corpus)
    key = Key.secure() if name == "secure" else Key.simulation(0)
    running = rounds(components, serial(experiment, components), key, eval_every=10**9)
    GATE.ready(
        **{each: version(each) for each in ("fedpriv", "torch", "numpy")},
        python=sys.version.split()[0],
        synthetic=corpus is None or corpus.synthetic,
    )
    while GATE.passes():
        next(running)


if __name__ == "__main__":
    main()
