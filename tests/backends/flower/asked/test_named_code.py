"""A node that insists on plans builds nothing that a run-config names before it is allowed."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message

from client import app as client_app
from fedpriv.backends.flower import client
from fedpriv.backends.flower.client import PLANS_VARIABLE
from fedpriv.backends.flower.messages import SharedRecords, naming_plan
from fedpriv.backends.flower.registry import QUERY
from fedpriv.backends.flower.settings import opened_node
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.work import Attempt
from tests.backends.flower import stub_grid as stub
from tests.harness.refusals import refuses
from tests.running.test_crafted import TRAP

ALLOWED, OTHER = "a" * 64, "0" * 64


@pytest.fixture
def node(tiny_corpus, tmp_path, monkeypatch):
    """A node that allows one plan, whose run-config names code with a side effect."""
    opened_node.cache_clear()
    stub.StubGrid({})
    marker = tmp_path / "imported"
    (tmp_path / "trap.py").write_text(TRAP.format(marker=str(marker)))
    monkeypatch.setenv(PLANS_VARIABLE, ALLOWED)
    config = {
        "experiment": f"{tmp_path / 'trap.py'}:experiment", "corpus": str(tiny_corpus),
        "noise-multiplier": 1.0, "guard-users": False,
    }  # fmt: skip
    made = stub.AppNode(client_app.app, 0, 1, config)
    made.marker = marker
    made.config = config
    return made


def query(plan):
    return Message(naming_plan(plan), 1, QUERY)


def train(plan):
    params = {"w": np.zeros(2, np.float32)}
    attempt = Attempt(bound=Clip(l2_clip_norm=0.5), key=Key.simulation(0))
    shared = SharedRecords.of(SumRequest(params=params), attempt, plan=plan)
    return Message(shared.request(["a"], 30.0), 1, "train")


@pytest.mark.parametrize("ask", [query, train])
@pytest.mark.parametrize("plan", ["", OTHER])
def test_under_another_plan_nothing_is_imported(node, ask, plan):
    assert PLANS_VARIABLE in node.query(ask(plan)).error.reason
    assert not node.marker.exists()


@pytest.mark.parametrize("ask", [query, train])
def test_who_knows_an_allowed_plan_names_no_code_either(node, ask):
    """A plan's digest covers the plan, and not the experiment: anybody may repeat it."""
    said = node.query(ask(ALLOWED))
    assert "FEDPRIV_EXPERIMENTS" in said.error.reason and "trap.py" in said.error.reason
    assert not node.marker.exists()


@pytest.mark.parametrize("listed", ["dp-fedavg-tags", "http.server:test adadps-tags"])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_list_of_experiments_is_all_there_is(node, monkeypatch, listed, pinned):
    if not pinned:
        monkeypatch.delenv(PLANS_VARIABLE, raising=False)
    monkeypatch.setenv("FEDPRIV_EXPERIMENTS", listed)
    said = node.query(query(ALLOWED))
    assert "FEDPRIV_EXPERIMENTS" in said.error.reason and not node.marker.exists()


def test_nothing_is_made_ready_of_it(node):
    with refuses(ValueError, "FEDPRIV_EXPERIMENTS"):
        client.prepare(client_app.app, node.context)
    assert not node.marker.exists()


@pytest.mark.parametrize("place", ["environment", "node-config"])
def test_code_that_the_operator_lists_is_built(node, monkeypatch, place):
    name = node.config["experiment"]
    if place == "environment":
        monkeypatch.setenv("FEDPRIV_EXPERIMENTS", f"adadps-tags {name}")
    else:
        node.context.node_config["experiments"] = f"{name}, adadps-tags"
    assert len(node.query(query(ALLOWED)).content["registration"]["user-ids"])
