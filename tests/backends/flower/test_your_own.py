"""examples/own-model: its code on both backends."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpriv.backends.flower.client import Host
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import rounds
from tests.backends.flower import stub_grid as stub

NAMES = ("own", "line", "chatter")
EXAMPLE = Path(__file__).parents[3] / "examples" / "own-model"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The example's modules; the working directory is another."""
    for name in NAMES:
        lines = (EXAMPLE / f"{name}.py").read_text("utf-8").splitlines()
        assert len([line for line in lines if line.strip()]) <= (40 if name == "own" else 55), name
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


#: What each measures of public users, the headline first, and whether the higher is the better.
FIGURES = {
    "own": {"accuracy": True},
    "line": {"mean_squared_error": False, "mean_absolute_error": False, "near": True},
    "chatter": {"perplexity": False, "token_accuracy": True},
}


def on_two_backends(name, number):
    """Return (params, record) after some rounds, in this process and on Flower's grid."""
    experiment = load_experiment(f"{name}:experiment").with_options({"rounds": number})
    components = build(experiment, None)

    def final(backend):
        *_, (record, state) = rounds(components, backend, Key.simulation(0))
        return state.params, record

    # Every node opens the task itself, as it would in a process of its own.
    hosts = {
        n + 1: Host.of(
            components.task, build(experiment, None).trainer, partition=n, num_partitions=7
        )
        for n in range(7)
    }
    backend = stub.started(components.task, hosts)
    deployed = final(replace(backend, measure=components.task.evaluate))
    return final(serial(experiment, components)), deployed


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_backends_train_and_measure_the_same_model(own, name):
    (alone, here), (deployed, there) = on_two_backends(name, 3)
    for tensor, array in alone.items():
        np.testing.assert_allclose(deployed[tensor], array, rtol=1e-5, atol=1e-6)
    for measure in FIGURES[name]:
        value = here.released.measured[measure]
        assert there.released.measured[measure] == pytest.approx(value, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["line", "chatter"])
def test_the_ready_and_own_measures_improve_with_training(own, name):
    experiment = load_experiment(f"{name}:experiment")
    experiment = experiment.with_options({"noise": "none", "bound": "none"})
    components = build(experiment, None)
    task = components.task
    before = task.evaluate(task.init_params(Key.simulation(0).fold("init")), public=True)
    *_, (record, _) = rounds(components, serial(experiment, components), Key.simulation(0))
    for measure, higher in FIGURES[name].items():
        now, then = record.released.measured[measure], before.get(measure)
        assert now > then if higher else now < 0.8 * then, measure
