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
from fedpriv.measures import ACCURACY
from fedpriv.runs.progress import round_line
from fedpriv.runs.records import Released, RoundRecord
from fedpriv.tasks.module_task import ModuleTask

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
def marked(monkeypatch):
    monkeypatch.setitem(sys.modules, "marked", sys.modules[__name__])
    opened_node.cache_clear()
    yield "marked:experiment"
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
    with pytest.raises(ValueError, match="nodes failed") as refused:
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


def test_a_node_writes_no_word_of_a_servers_into_its_log(stub, caplog):
    from flwr.app import ConfigRecord, Message, RecordDict

    stub.StubGrid({})  # a message wants to know who sends it
    for record in ({"why": TEXT, "users": 3}, {"why": "late", "users": TEXT}, {}):
        content = RecordDict({"waiting": ConfigRecord(record)})
        message = Message(content, 1, WAITING)
        message.metadata.__dict__["_message_id"] = "told"
        with caplog.at_level(logging.DEBUG, "fedpriv"):
            note_waiting(message)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("epsilon", "accuracy", "said"),
    [
        (0.93051, None, "round 3: epsilon <= 0.931 at delta 0.001, accuracy on public users -"),
        (0.93051, 0.5, "round 3: epsilon <= 0.931 at delta 0.001, accuracy on public users 50.00%"),
        (None, None, "round 3: no privacy, epsilon is infinite, accuracy on public users -"),
    ],
)
def test_every_round_is_logged_with_its_epsilon_evaluated_or_not(epsilon, accuracy, said):
    released = Released(
        round_num=3,
        attempt=1,
        epsilon=epsilon,
        epsilon_charges=None if epsilon is None else 5,
        delta=None if epsilon is None else 0.001,
        measured={"accuracy": accuracy},
        update_norm=None,
    )
    assert round_line(RoundRecord(released=released, diagnostics=None), ACCURACY) == said
