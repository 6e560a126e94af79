"""A public start is the server's affair: nodes and workers are sent params, and need no start."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedpriv.backends.flower.client import Host
from fedpriv.checkpoints.tensor_files import write_tensors
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import rounds
from fedpriv.tasks.module_task import ModuleTask


def person(number):
    x = np.random.default_rng(number).normal(size=(9, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


class OfANode(ModuleTask):
    """A node's own: whoever asks it for a start, or for the params before, is told off."""

    def public_learner(self, key, *, choosing):
        raise AssertionError("a node was asked to learn in public")

    def init_params(self, key):
        raise AssertionError("a node was asked for the params before")


def make_task(kind=ModuleTask):
    return kind(
        name="own",
        module=functools.partial(nn.Linear, 4, 2),
        loss=nn.functional.cross_entropy,
        users={f"u{n:02d}": person(n) for n in range(14)},
        public=person(50),
        public_train=tuple(map(np.concatenate, zip(*map(person, range(60, 64)), strict=True))),
        synthetic=True,
    )


def experiment(**options):
    return FederatedExperiment(
        name="own", description="", task=lambda chosen: make_task(), rounds=3, delta=1e-3
    ).with_options({"cohort": 7.0, "noise_multiplier": 0.5, "local_learning_rate": 0.3, **options})


def options_of(kind, folder):
    if kind != "file":
        return {"start": kind}
    params = {"weight": np.full((2, 4), 0.25, np.float32), "bias": np.ones(2, np.float32)}
    write_tensors(folder / "model.safetensors", params, {})
    return {"start": "file", "start_file": str(folder / "model.safetensors")}


def trained(components, backend):
    *_, (_, state) = rounds(components, backend, Key.simulation(4))
    return state.params


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["public", "file"])
def test_on_flowers_grid(stub, tmp_path, kind):
    options = options_of(kind, tmp_path)
    components = build(experiment(**options))
    # The nodes' own run-config names a file that is not there: they never open it.
    elsewhere = {"start_file": "/nowhere/model.safetensors"} if kind == "file" else {}
    theirs = replace(experiment(**{**options, **elsewhere}), task=lambda _: make_task(OfANode))
    hosts = {
        n + 1: Host.of(components.task, build(theirs, None).trainer, partition=n, num_partitions=5)
        for n in range(5)
    }
    backend = stub.started(components.task, hosts)
    deployed = trained(components, replace(backend, measure=components.task.evaluate))
    alone = trained(components, serial(experiment(**options), components))
    fresh = build(experiment())
    other = trained(fresh, serial(experiment(), fresh))
    for name, array in alone.items():
        np.testing.assert_allclose(deployed[name], array, rtol=1e-5, atol=1e-6)
        assert not np.allclose(other[name], array, rtol=1e-3)
