"""A node that insists on promises builds nothing that a run-config names before it is allowed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from client import app as client_app
from fedpriv.backends.flower import client
from fedpriv.backends.flower.client import PROMISES_KEY, PROMISES_VARIABLE
from fedpriv.backends.flower.messages import SharedRecords
from fedpriv.backends.flower.registry import QUERY
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key

ALLOWED, OTHER = "a" * 64, "0" * 64
TRAP = """from pathlib import Path
Path({marker!r}).touch()
from fedpriv.experiments.catalogue import load_experiment

def experiment():
    return load_experiment("dp-fedavg-tags")
"""


@pytest.fixture
def node(stub, tiny_corpus, tmp_path, monkeypatch):
    """A node that allows one promise, whose run-config names code with a side effect."""
    client_app._node.cache_clear()
    stub.StubGrid({})
    marker = tmp_path / "imported"
    (tmp_path / "trap.py").write_text(TRAP.format(marker=str(marker)))
    monkeypatch.setenv(PROMISES_VARIABLE, ALLOWED)
    config = {
        "experiment": f"{tmp_path / 'trap.py'}:experiment", "corpus": str(tiny_corpus),
        "noise-multiplier": 1.0, "guard-users": False,
    }  # fmt: skip
    made = stub.AppNode(client_app.app, 0, 1, config)
    made.marker = marker
    made.config = config
    return made


def query(promise):
    content = RecordDict()
    if promise:
        content["question"] = ConfigRecord({"promise": promise})
    return Message(content, 1, QUERY)


def train(promise):
    shared = SharedRecords.of(
        params={"w": np.zeros(2, np.float32)}, bound=Clip(l2_clip_norm=0.5),
        key=Key.simulation(0), round_num=1, attempt=1, promise=promise,
    )  # fmt: skip
    return Message(shared.request(["a"], 30.0), 1, "train")


@pytest.mark.parametrize("ask", [query, train])
@pytest.mark.parametrize("promise", ["", OTHER])
def test_under_another_promise_nothing_is_imported(node, ask, promise):
    said = node.query(ask(promise))
    assert "is not among them" in said.error.reason
    assert not node.marker.exists()


@pytest.mark.parametrize("ask", [query, train])
def test_who_knows_an_allowed_promise_names_no_code_either(node, ask):
    """A promise's digest covers the plan, and not the experiment: anybody may repeat it."""
    said = node.query(ask(ALLOWED))
    assert "FEDPRIV_EXPERIMENTS" in said.error.reason and "trap.py" in said.error.reason
    assert not node.marker.exists()


@pytest.mark.parametrize("listed", ["dp-fedavg-tags", "http.server:test adadps-tags"])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_list_of_experiments_is_all_there_is(node, monkeypatch, listed, pinned):
    if not pinned:
        monkeypatch.delenv(PROMISES_VARIABLE, raising=False)
    monkeypatch.setenv("FEDPRIV_EXPERIMENTS", listed)
    said = node.query(query(ALLOWED))
    assert "is not among them" in said.error.reason and not node.marker.exists()


def test_nothing_is_made_ready_of_it(node):
    with pytest.raises(ValueError, match="FEDPRIV_EXPERIMENTS"):
        client.prepare(client_app.app, node.context)
    assert not node.marker.exists()


@pytest.mark.parametrize("place", ["environment", "node-config"])
def test_code_that_the_operator_lists_is_built(node, monkeypatch, place):
    node.marker.unlink(missing_ok=True)
    name = node.config["experiment"]
    if place == "environment":
        monkeypatch.setenv("FEDPRIV_EXPERIMENTS", f"adadps-tags {name}")
    else:
        node.context.node_config["experiments"] = f"{name}, adadps-tags"
    assert len(node.query(query(ALLOWED)).content["registration"]["user-ids"])
    monkeypatch.delenv("FEDPRIV_EXPERIMENTS", raising=False)
    node.context.node_config.pop("experiments", None)


def test_our_own_experiments_need_no_list(stub, node, tiny_corpus):
    config = node.config | {"experiment": "dp-fedavg-tags"}
    found = stub.AppNode(client_app.app, 0, 1, config).query(query(ALLOWED))
    assert len(found.content["registration"]["user-ids"])


def test_both_places_must_list_an_experiment():
    allowed = client.allowed_experiments
    assert allowed({}, {}) is None
    assert allowed({"experiments": "a b"}, {"FEDPRIV_EXPERIMENTS": "b, c"}) == {"b"}
    for blank in (" ", ","):
        with pytest.raises(ValueError, match=r"FEDPRIV_EXPERIMENTS is .* lists no experiment"):
            allowed({}, {"FEDPRIV_EXPERIMENTS": blank})


def test_a_node_with_no_list_and_no_promise_runs_any(node, monkeypatch):
    monkeypatch.delenv(PROMISES_VARIABLE)
    assert json.dumps(list(node.query(query("")).content["registration"]["user-ids"]))
    assert PROMISES_KEY not in node.context.node_config and node.marker.exists()
