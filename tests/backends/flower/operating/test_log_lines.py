"""Logs of a deployed run: lines with a time and a level, and nothing of anybody in them."""

from __future__ import annotations

import io
import logging
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import fedpriv as fp
from fedpriv.backends.flower import settings
from fedpriv.backends.flower.log import show_log
from fedpriv.backends.flower.registry import WAITING, note_waiting
from fedpriv.backends.flower.settings import opened_node
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import make_task
from fedpriv.privacy.epsilon import rounded_up
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.tasks.module_task import ModuleTask
from tests.backends.flower import stub_grid as stub

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (DEBUG|INFO|WARNING|ERROR) fedpriv[\w.]*: \S.*")
ID, VALUE, TEXT = "marker-of-an-id", 1234567.0, "marker-of-an-exception"


def loss(outputs, targets):
    """A user's own code, which fails on one user's data and says them."""
    found = nn.functional.cross_entropy(outputs, targets)
    if float(targets.sum()) == 0.0 and len(targets) == 7:
        raise RuntimeError(f"{TEXT} {VALUE} {targets.tolist()}")
    return found


def task(experiment):
    rng = np.random.default_rng(0)
    users = {f"person-{n}": (rng.normal(size=(6, 3)), rng.integers(0, 2, 6)) for n in range(9)} | {
        ID: (np.full((7, 3), VALUE), np.zeros(7, int))
    }
    public = rng.normal(size=(20, 3)), rng.integers(0, 2, 20)
    return ModuleTask(name="marked", module=lambda: nn.Linear(3, 2), loss=loss, users=users,
                      public=public, synthetic=True)  # fmt: skip


def experiment():
    return FederatedExperiment(
        name="marked", description="One user's code fails.", task=task, rounds=2
    ).with_options(
        {"cohort": 10.0, "l2_clip_norm": 0.5, "noise_multiplier": 1.0, "local_learning_rate": 0.1}
    )


@pytest.fixture
def marked():
    opened_node.cache_clear()
    yield f"{__name__}:experiment"
    opened_node.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_no_line_holds_an_id_a_value_or_an_errors_text(
    mode, guarded, marked, deploy, tmp_path, capfd
):
    """Law: of a user that fails the logs of both sides say the kind of error, at any level."""
    show_log()
    logging.getLogger("fedpriv").setLevel(logging.DEBUG)
    secure = {"secure": True, "allow_unauthenticated_nodes": True} if mode == "secure" else {}
    changes = {"corpus": "", "rounds": 2, "cohort": 10, "guard_users": guarded}
    deploy(experiment=marked, out=tmp_path / "run", **changes, **secure)
    err = capfd.readouterr().err
    lines = [line for line in err.splitlines() if "fedpriv" in line]
    assert len(lines) > 5 and all(LINE.fullmatch(line) for line in lines), lines
    for marker in (ID, TEXT, "1234567", "person-"):
        assert marker not in err
    failures = [line for line in lines if "a user contributes zero: RuntimeError" in line]
    assert len(failures) == (2 if mode == "simulation" else 0)
    assert fp.load(tmp_path / "run").summary["rounds"] == 2


def unopened(experiment):
    """A user's own code, which says whom it was reading when it fails as a whole."""
    raise ValueError(f"{TEXT}: {ID} has {VALUE}")


def faulty(experiment):
    return {ID: VALUE}[TEXT]


@pytest.mark.slow
@pytest.mark.parametrize("code", [unopened, faulty], ids=["own error", "fault"])
@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_a_node_that_fails_as_a_whole_says_kind_and_place(
    code, mode, marked, deploy, tmp_path, capfd, monkeypatch
):
    """Law: neither its own log, nor what it answers, the server's log or the run folder, has the
    text of an error that was raised where its users' data were open."""
    secure = {"secure": True, "allow_unauthenticated_nodes": True} if mode == "secure" else {}

    def on_nodes(given, corpus, data):
        return make_task(replace(given, task=code), corpus, data)

    monkeypatch.setattr(settings, "make_task", on_nodes)
    changes = {"corpus": "", "cohort": 10, "register_seconds": 1.0}
    with pytest.raises(ValueError) as refused:
        deploy(experiment=marked, out=tmp_path / "run", **changes, **secure)
    err = capfd.readouterr().err
    folder = "".join(p.read_text("utf-8", "replace") for p in (tmp_path / "run").rglob("*.json*"))
    for marker in (TEXT, "1234567"):  # ids of the roster are said to who starts nodes
        assert marker not in err + str(refused.value) + folder
    assert all(f" in {code.__name__}" in said for said in (err, str(refused.value)))


@pytest.mark.parametrize("later", [False, True])
def test_a_line_stands_once_where_flower_writes_every_loggers(monkeypatch, later):
    """Flower's processes give the root logger a handler of standard error, libraries later too."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    root, ours = logging.getLogger(), logging.getLogger("fedpriv")
    monkeypatch.setattr(ours, "handlers", [])
    of_flower = logging.StreamHandler(stream)
    try:
        if later:
            show_log()
        root.addHandler(of_flower)
        show_log()
        logging.getLogger("fedpriv.server").info("round 1")
        logging.getLogger("flwr").error("its own")
    finally:
        root.removeHandler(of_flower)
    assert stream.getvalue().count("round 1") == 1 and "its own" in stream.getvalue()


def test_a_node_writes_no_word_of_a_servers_into_its_log(caplog):
    from flwr.app import ConfigRecord, Message, RecordDict

    stub.StubGrid({})  # a message wants to know who sends it
    for record in ({"why": TEXT, "users": 3}, {"why": "late", "users": TEXT}, {}):
        content = RecordDict({"waiting": ConfigRecord(record)})
        message = Message(content, 1, WAITING)
        message.metadata.__dict__["_message_id"] = "told"
        with caplog.at_level(logging.DEBUG, "fedpriv"):
            note_waiting(message)
    assert caplog.messages == []


@pytest.mark.slow
def test_each_round_has_its_own_epsilon(deploy, tmp_path, caplog):
    """That of the charges so far, as `fedpriv status` has it, and no later round's."""
    caplog.set_level(logging.INFO, "fedpriv")
    deploy(out=tmp_path / "run", rounds=4, eval_every=4, select="last")
    plan = read_ledger(tmp_path / "run" / "ledger.jsonl")[1].plan
    said = [line for line in caplog.messages if re.match(r"round \d: epsilon", line)]
    expected = [rounded_up(plan.epsilon(number).value, 3) for number in range(1, 5)]
    assert [float(line.split()[4]) for line in said] == expected == sorted(set(expected))
    assert [("accuracy" in line) for line in said] == [False, False, False, True]


@pytest.mark.slow
def test_a_finished_run_asks_no_node_and_selects_nothing_again(deploy, tmp_path, caplog):
    out = tmp_path / "run"
    deploy(out=out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    caplog.set_level(logging.INFO, "fedpriv")
    caplog.clear()
    grid = deploy(nodes=1, register_seconds=1.0, resume=out)
    assert not grid.requests and not any("selecting" in line for line in caplog.messages)
    assert any("nothing is left to charge" in line for line in caplog.messages)
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert {path.name for path in after if after[path] != before.get(path)} <= {"ledger.jsonl"}
