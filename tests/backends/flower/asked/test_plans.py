"""A node that trains under some plans only, and what is asked wrongly: each said in one line."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.app.exception import AppExitException
from flwr.superlink.grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from safetensors.numpy import load_file

import fedpriv as fp
from fedpriv.backends.flower.client import (
    PLANS_KEY,
    PLANS_VARIABLE,
    Host,
    allowed_plans,
)
from fedpriv.backends.flower.log import ended_in_one_line
from fedpriv.backends.flower.messages import SharedRecords
from fedpriv.backends.flower.registry import QUERY
from fedpriv.mechanisms import Clip
from fedpriv.privacy.plan import plan_digest
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.work import Attempt
from server import app as server_app
from tests.backends.flower import stub_grid as stub
from tests.backends.flower.real.processes import DECLARED
from tests.harness.refusals import refuses

OTHER = "0" * 64


@pytest.fixture
def two_nodes(deploy):
    """Run two rounds on two nodes, of which the first has a config."""

    def call(out, node_config=None, **changes):
        options = {"rounds": 2, "eval-every": 2, "register-seconds": 0.5, "out": out} | changes
        return deploy(2, 2, node_config=node_config, **options)

    return call


def logged_plan(caplog):
    (found,) = [
        re.fullmatch("plan ([0-9a-f]{64})", record.getMessage())[1]
        for record in caplog.records
        if record.getMessage().startswith("plan ")
    ]
    return found


@pytest.mark.slow
def test_a_node_trains_under_a_plan_that_it_is_allowed(two_nodes, tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedpriv")
    grid = two_nodes(tmp_path / "first")
    plan = logged_plan(caplog)
    assert {request.content["work"]["plan"] for request in grid.requests} == {plan}
    two_nodes(tmp_path / "second", {PLANS_KEY: f"{OTHER} {plan}"})
    first, second = (
        load_file(tmp_path / name / "checkpoints" / "round-000002.safetensors")
        for name in ("first", "second")
    )
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_under_any_other_it_registers_no_user_and_nothing_is_charged(two_nodes, tmp_path, caplog):
    caplog.set_level(logging.ERROR, "fedpriv.backends")
    with refuses(ValueError, 1) as refused:
        two_nodes(tmp_path / "run", {PLANS_KEY: OTHER})
    assert "\n" not in str(refused.value)
    (line,) = [record.getMessage() for record in caplog.records]  # of the node
    assert PLANS_VARIABLE in line and "\n" not in line and "trains under 1 plans" in line
    assert not verify_run(tmp_path / "run").num_charges


@pytest.mark.parametrize("plan", ["", "1" * 64])
def test_a_round_under_another_plan_is_refused_too(plan):
    """Where a server said nothing, or something else, when users were registered."""
    host = Host(works={}, data=None, user_ids=frozenset("ab"), plans=frozenset({OTHER}))
    stub.StubGrid({})
    assert host.query(Message(RecordDict(), 1, QUERY)).has_content()
    params = {"w": np.zeros(2, np.float32)}
    attempt = Attempt(bound=Clip(l2_clip_norm=0.5), key=Key.simulation(0))
    shared = SharedRecords.of(SumRequest(params=params), attempt, plan=plan)
    with refuses(ValueError, PLANS_VARIABLE):
        host.train(Message(shared.request(["a"], 30.0), 1, "train"))


def test_a_digest_is_of_the_plan_and_of_whom_it_is_for():
    plan = fp.Rounds(users=4, cohort=2, rounds=3, delta=0.01).plan(
        l2_clip_norm=0.5, noise_multiplier=1.0
    )
    found = plan_digest(plan, ["a", "b", "c", "d"])
    assert found == plan_digest(plan, ("a", "b", "c", "d"))
    assert found != plan_digest(plan, ["a", "b", "c", "e"])
    assert found == plan_digest(plan, ["a", "b", "c", "d"], {})
    weights = [{"m": "1" * 64}, {"m": "2" * 64}, {"n": "1" * 64}]
    digests = {plan_digest(plan, ["a", "b", "c", "d"], published) for published in weights}
    assert len({found, *digests}) == 4


@pytest.mark.parametrize(
    ("variable", "key", "found"),
    [
        ("", "", None),
        (OTHER, "", {OTHER}),
        ("", f"{OTHER}, {'1' * 64}", {OTHER, "1" * 64}),
        (OTHER, "1" * 64, set()),
        (f"{OTHER}\n{'1' * 64}", "1" * 64, {"1" * 64}),
    ],
)
def test_both_places_must_allow_a_plan(variable, key, found):
    assert allowed_plans({PLANS_KEY: key}, {PLANS_VARIABLE: variable}) == found


@pytest.mark.parametrize("odd", [" ", ",", "\n", " , ", "abc"])
def test_a_list_that_lists_nothing_or_no_digest_allows_nothing(odd):
    """One that was cut off, or filled from an empty file, is not taken for none at all."""
    with refuses(ValueError, "FEDPRIV_PLANS"):
        allowed_plans({}, {PLANS_VARIABLE: odd})
    with refuses(ValueError, "plans"):
        allowed_plans({PLANS_KEY: odd}, {})


MISTAKES = [
    ({"experiment": "adadps-tag"}, "'adadps-tags'"),
    ({"rounds": -1}, "-1"),
    ({"round-deadline": 0.0}, "round-deadline"),
    ({"options": "{"}, "'{'"),
    ({"corpus": "/none"}, "/none"),
    ({"corpus": ""}, "--run-config"),
    ({"experiment": "OWN:experiment"}, "own_mistake.py, line 3"),
]


@pytest.mark.parametrize(
    ("changes", "message"), MISTAKES, ids=lambda value: next(iter(value), "") if value else ""
)
@pytest.mark.parametrize("kind", [HttpGrid, InMemoryGrid])
def test_a_mistake_is_one_line_on_flower_s_grids(
    tiny_corpus, tmp_path, monkeypatch, caplog, kind, changes, message
):
    own = tmp_path / "own_mistake.py"
    own.write_text('"""Broken."""\n\nimport not_installed\n', "utf-8")
    changes = {key: str(value).replace("OWN", str(own)) if key == "experiment" else value
               for key, value in changes.items()}  # fmt: skip
    config = DECLARED | {"corpus": str(tiny_corpus), "out": str(tmp_path / "run")} | changes
    grid = kind.__new__(kind)  # nothing of it is used: mistakes are found before
    flower = logging.getLogger("flwr")
    monkeypatch.setattr(flower, "filters", list(flower.filters))
    with pytest.raises(AppExitException) as ended:
        server_app.app(grid, stub.context(run_config=config))
    assert not (tmp_path / "run").exists()
    failed = ended.value
    assert 0 <= failed.exit_code < 100
    # As Flower logs it, in a two_nodesment and in a simulation.
    flower.error("%s raised an exception", "ServerApp", exc_info=failed)
    flower.error("Exit Code: 700\n\nFor more information, visit: <https://example.org>")
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert message in line and "\n" not in line and str(failed) == line
    # Whatever else it says is said, of another exception too; a fault of ours keeps its traceback.
    flower.error("%s raised an exception", "ServerApp", exc_info=KeyError("a bug"))
    assert caplog.records[-1].exc_info
    with pytest.raises(KeyError), ended_in_one_line(grid):
        raise KeyError("a bug")
