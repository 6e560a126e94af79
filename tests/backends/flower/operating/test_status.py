"""`fedpriv status` of a deployed run: before, within and after it, and of a server that failed."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from contextlib import closing

import pytest
from flwr.app import Error, Message

from fedpriv import json_lines
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.runs.status import StatusFile, is_held, read_server_status, run_status
from tests.backends.flower import stub_grid as stub
from tests.harness.command_line import fedpriv

COUNTS = ("users", "cohort", "failed", "answered", "missing")


def said(folder, code=0):
    """Return what the command prints, as JSON and as text; it must change nothing."""
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files(folder)}
    as_json, shown = fedpriv("status", folder, "--json"), fedpriv("status", folder)
    assert as_json.exit_code == shown.exit_code == code
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files(folder)}
    return json.loads(as_json.stdout), " ".join(shown.stdout.split())


def files(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


@pytest.mark.slow
def test_a_finished_run(deploy, tmp_path):
    deploy(out=tmp_path / "run")
    found, text = said(tmp_path / "run")
    assert found["state"] == "finished" and not found["held"] and not found["failed"]
    numbers = ("round", "rounds_planned", "nodes", "users")
    assert [found[name] for name in numbers] == [3, 3, 3, 24]
    assert found["spent"] == found["guaranteed"] and found["epsilon_left"] == 0.0
    assert found["spent"].keys() >= {"epsilon", "delta", "relation", "unit", "accountant"}
    assert "user-level, add-remove, PLD, simulation" in text
    assert found["last_error"] is None and found["last_round_ended"] is not None


@pytest.mark.slow
def test_within_a_run_somebody_holds_it(deploy, tmp_path):
    looks = []
    deploy(out=tmp_path / "run", look=lambda: looks.append(run_status(tmp_path / "run")))
    assert {look.state for look in looks} == {"training"} and all(look.held for look in looks)
    assert sorted({look.round_num for look in looks}) == [0, 1, 2]
    assert all(look.lost_attempts == 0 for look in looks)  # what is under way is not lost yet
    first, last = looks[0], looks[-1]
    assert first.spent.value < last.spent.value and first.left > last.left == 0.0
    assert first.last_round_ended is None and last.last_round_ended is not None


@pytest.mark.slow
def test_a_server_that_failed_says_why_until_it_goes_on(deploy, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ConnectionError):
        deploy(rounds_until_lost=1, out=folder)
    found, text = said(folder, code=1)
    assert (found["state"], found["round"], found["lost_attempts"]) == ("failed", 1, 1)
    assert found["last_error"] == "the SuperLink is gone" and found["failed"]
    assert "the SuperLink is gone" in text
    looks = []
    deploy(resume=folder, look=lambda: looks.append(run_status(folder)))
    assert looks[0].round_num == 1 and {look.lost_attempts for look in looks} == {1}
    found, _ = said(folder)
    assert found["state"] == "finished" and found["last_error"] == "the SuperLink is gone"
    assert found["lost_attempts"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_node_that_is_gone_is_seen_whoever_answers(deploy, tmp_path, monkeypatch, caplog, secure):
    """Law: online is what Flower lists. Node 3 answers, node 2 does not, and node 3 is counted."""
    looks, folder = [], tmp_path / "run"
    monkeypatch.setattr(
        stub.StubGrid, "get_node_ids", lambda grid: [1, 2] if len(looks) in (2, 3) else [1, 2, 3]
    )
    answer = stub.StubGrid._answer

    def failing(grid, request):
        dropped = request.metadata.dst_node_id == 2 and request.metadata.message_type == "train"
        return [Message(Error(3, "gone"), reply_to=request)] if dropped else answer(grid, request)

    monkeypatch.setattr(stub.StubGrid, "_answer", failing)

    def look():
        rounds = {found.round_num for _, found in looks}
        found = run_status(folder)
        if found.round_num not in rounds:
            looks.append((" ".join(fedpriv("status", folder).stdout.split()), found))

    with caplog.at_level(logging.INFO, "fedpriv"):
        deploy(
            out=folder, look=look, rounds=4, cohort=24, secure=secure,
            allow_unauthenticated_nodes=True, exact_sum=secure,
        )  # fmt: skip
    assert [found.nodes_online for _, found in looks] == [3, 3, 2, 2]
    assert "nodes 2 of 3 registered nodes are online" in looks[2][0]
    lines = [line for line in caplog.messages if "registered nodes are online" in line]
    assert [line.partition(" registered")[0] for line in lines] == ["2 of 3", "3 of 3"]
    assert "node 3" in lines[0]
    assert run_status(folder).nodes_online is None  # of a run that has ended it would be old


def test_a_full_disk_has_room_for_how_a_run_ended(tmp_path, monkeypatch):
    """A file that is written anew needs room that there is none of."""
    full = OSError(errno.ENOSPC, "No space left on device")

    def no_room(file, value):
        raise full

    status = StatusFile(tmp_path, "secure")
    with pytest.raises(OSError), status.kept():
        monkeypatch.setattr("fedpriv.runs.status.write_json", no_room)
        raise full
    found = read_server_status(tmp_path)
    assert found is not None and found.state == "failed"
    assert "no room is left" in str(found.last_error)


@pytest.mark.slow
def test_a_second_server_is_refused_and_the_first_is_not_disturbed(deploy, tmp_path):
    looks = []

    def look():
        if not looks:
            with pytest.raises(ValueError):
                deploy(resume=tmp_path / "run")
            looks.append(run_status(tmp_path / "run"))

    deploy(out=tmp_path / "run", look=look)
    (seen,) = looks
    assert seen.held and seen.state == "training" and not seen.failed and seen.refused
    assert run_status(tmp_path / "run").state == "finished"


@pytest.mark.slow
def test_a_killed_server_is_seen(deploy, tmp_path):
    """Its file says that it trains, and nobody holds the ledger."""
    copies = []

    def look():
        if not copies:
            copies.append(shutil.copytree(tmp_path / "run", tmp_path / "killed"))

    deploy(out=tmp_path / "run", look=look)
    found, text = said(tmp_path / "killed", code=1)
    assert found["state"] == "interrupted" and "resume.toml" in text
    assert str(tmp_path / "killed" / "resume.toml") in found["last_error"]


@pytest.mark.slow
def test_a_secure_run_says_nothing_that_counts_a_rounds_users(deploy, tmp_path):
    """Law: nothing of it depends on who was drawn, failed or answered."""
    folder = tmp_path / "run"
    deploy(out=folder, secure=True, allow_unauthenticated_nodes=True, exact_sum=True)
    found, text = said(folder)
    assert found["mode"] == "secure" and found["users"] is None
    written = json.loads((folder / "status.json").read_text("utf-8"))
    assert set(written) == {
        "format", "version", "state", "changed", "started", "nodes", "nodes_online", "users",
        "last_round_ended", "last_error", "last_error_at",
    }  # fmt: skip
    assert written["users"] is None
    for name, value in {**written, **found}.items():
        assert not (any(word in name for word in COUNTS) and value not in (None, False)), name
    assert "rostered users" not in text
    assert not json_lines.read(folder / "diagnostics.jsonl")


def test_an_error_that_is_a_fault_shows_its_kind_alone(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(KeyError), StatusFile(tmp_path / "run", "simulation").kept():
        raise KeyError("a value of somebody's")
    found = read_server_status(tmp_path / "run")
    assert found is not None and (found.state, found.last_error) == ("failed", "KeyError")
    with pytest.raises(SystemExit), StatusFile(tmp_path / "run", "simulation").kept():
        raise SystemExit(1)
    found = read_server_status(tmp_path / "run")
    assert found is not None and (found.state, found.last_error) == ("stopped", "KeyError")


@pytest.mark.slow
def test_who_looks_refuses_nobody_and_waits_for_nobody(deploy, tmp_path):
    """A process that looks again and again, and one that opens the ledger a hundred times."""
    deploy(out=tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    script = "import sys; from pathlib import Path\n"
    script += "from fedpriv.runs.status import is_held\nprint(flush=True)\n"
    script += "while True: is_held(Path(sys.argv[1]))\n"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(ledger)], stdout=subprocess.PIPE, env=dict(os.environ)
    ) as looking:
        assert looking.stdout is not None
        looking.stdout.readline()
        try:
            for _ in range(100):
                Ledger.open(ledger).close()
        finally:
            looking.kill()
    with closing(Ledger.open(ledger)):
        assert is_held(ledger)
    assert not is_held(ledger)
