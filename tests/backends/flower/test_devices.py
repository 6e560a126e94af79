"""Devices of nodes: who chooses, what is computed there, and what a missing one comes to."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.clientapp import ClientApp

import fedpriv as fp
from fedpriv.backends.flower.client import device_of, prepare, serve
from fedpriv.backends.flower.settings import Node, read_host
from fedpriv.backends.guard import Guard
from tests.backends.flower import stub_grid as stub
from tests.backends.flower.real.processes import DECLARED
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import Given

OWN = """
import numpy as np
from torch import nn

from fedpriv.experiments import FederatedExperiment, GaussianNoise, LocalSgd
from fedpriv.mechanisms import Clip
from fedpriv.tasks.module_task import ModuleTask


def people(number):
    for user in range(number):
        x = np.random.default_rng(user).normal(size=(3 + 5 * (user % 4), 8))
        yield f"user-{user:02d}", (x, (x[:, 0] > 0).astype(int))


def experiment():
    return FederatedExperiment(
        name="own", description="", rounds=3, delta=1e-3,
        task=lambda experiment: ModuleTask(
            name="own", module=lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)),
            loss=nn.functional.cross_entropy, users=dict(people(20)), synthetic=True),
        cohort=12.0, bound=Clip(l2_clip_norm=0.5),
        noise=GaussianNoise(multiplier=1.0), local=LocalSgd(learning_rate=0.5, batch_size=4))
"""


@pytest.fixture
def own(tmp_path):
    """The name of an experiment whose users are of unequal sizes."""
    (tmp_path / "own.py").write_text(OWN, "utf-8")
    return f"{tmp_path / 'own.py'}:experiment"


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("node", "run", "expected"),
    [
        ({}, {}, None),
        ({}, DECLARED, None),
        ({}, {"device": "cuda:1"}, "cuda:1"),
        ({"device": "cpu"}, {"device": "cuda:1"}, "cpu"),
        ({"device": "cuda"}, {"device": ""}, "cuda"),
        ({"device": "none"}, {"device": "cuda:1"}, None),
    ],
)
def test_a_node_chooses_before_the_run_does(node, run, expected):
    assert device_of(node, run) == expected


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:\u0663", "cpu:0", 3, "x" * 9999])
def test_no_device_is_called_so(name, deploy, tmp_path):
    with refuses(ValueError, "none") as caught:
        device_of({}, {"device": name})
    assert f"device {name!r:.40}" in str(caught.value) and len(str(caught.value)) < 300
    with pytest.raises(ValueError):
        deploy(out=tmp_path / "run", device=name)
    assert not (tmp_path / "run").exists()


def test_a_simulated_client_uses_the_gpu_that_ray_set_aside_for_it(monkeypatch):
    for gpus, expected in (([], None), ([3], "cuda:0"), (["0"], "cuda:0")):
        ray = SimpleNamespace(is_initialized=lambda: True, get_gpu_ids=lambda gpus=gpus: gpus)
        monkeypatch.setitem(sys.modules, "ray", ray)
        assert device_of({}, DECLARED) == expected
        assert device_of({}, {"device": "cpu"}) == "cpu"
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    assert device_of({}, DECLARED) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own", "adadps-tags", "dp-fedavg-words"])
def test_a_run_of_nodes_on_a_device_ends_where_the_run_ends(name, own, deploy, tmp_path):
    asked = {"experiment": own, "corpus": ""} if name == "own" else {"experiment": name}
    if name == "dp-fedavg-words":
        asked |= {"start": "fresh"}
    for place, device in (("here", ""), ("there", "cpu")):
        deploy(out=tmp_path / place, device=device, **asked)
    here, there = (fp.load(tmp_path / place) for place in ("here", "there"))
    assert here.summary["rounds"] == there.summary["rounds"] == 3
    assert here.summary["epsilon"] == there.summary["epsilon"]
    for name, array in here.params.items():
        np.testing.assert_allclose(there.params[name], array, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_node_without_its_device_says_so_and_contributes_nothing(
    own, deploy, tmp_path, no_gpu, caplog
):
    """The other two nodes' users are trained, round after round."""
    changes = {"experiment": own, "corpus": "", "allow_missing_users": True}
    changes["register_seconds"] = 2.0  # for nodes that could still come
    with caplog.at_level(logging.INFO, "fedpriv"):
        deploy(out=tmp_path / "run", node_config={"device": "cuda:0"}, **changes)
    assert "device 'cuda:0': torch" in caplog.text and "sees no GPU here" in caplog.text
    assert "7 of 20 rostered users are hosted by none of the 3 nodes" in caplog.text
    assert fp.load(tmp_path / "run").summary["rounds"] == 3
    lines = (tmp_path / "run" / "diagnostics.jsonl").read_text("utf-8").splitlines()
    assert all(0 < json.loads(line)["num_failed"] <= 7 for line in lines)


@pytest.mark.parametrize(
    ("device", "guard"), [(None, Guard()), ("cpu", Guard()), ("cuda:0", None), ("cuda", None)]
)
def test_no_child_is_forked_off_a_process_that_has_a_gpu_open(device, guard):
    task = stub.TinyTags()
    node = Node(task=task, trainer=Given(), device=device)
    assert read_host(node, {}, {}).guard == guard


@pytest.mark.parametrize(("device", "opened"), [("", 1), ("cpu", 1), ("none", 1), ("cuda:0", 0)])
def test_nor_is_a_gpu_opened_where_messages_processes_are_forked_off(device, opened):
    calls, made = [], ClientApp()
    serve(made, calls.append)
    prepare(made, stub.context({"device": device}))
    assert len(calls) == opened
    prepare(made, stub.context({}, {"device": device}))
    assert len(calls) == 2 * opened
