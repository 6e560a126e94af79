"""What a run folder names is imported only once its ledger and its seal were checked."""

import json
import sys

import pytest

import fedpriv as fp
from fedpriv.cli import main
from fedpriv.privacy.ledger.chain import decode
from fedpriv.runs.prepared import resume_run
from tests.harness.tag_runs import start, stopping

TRAP = "from pathlib import Path\nPath({marker!r}).touch()\nraise SystemExit('imported')\n"


@pytest.fixture
def interrupted(tiny_corpus, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        start(tiny_corpus, tmp_path / "run", make_backend=stopping(3)).run()
    return tmp_path / "run"


@pytest.fixture
def marker(tmp_path):
    """A file that the trap makes where somebody imports it."""
    return tmp_path / "imported"


@pytest.fixture
def trapped(interrupted, marker, tmp_path):
    """A run folder whose experiment.json was made to name a module of an attacker's."""
    trap = tmp_path / "trap.py"
    trap.write_text(TRAP.format(marker=str(marker)))
    document = json.loads((interrupted / "experiment.json").read_text("utf-8"))
    document["reference"] = f"{trap}:experiment"
    (interrupted / "experiment.json").write_text(json.dumps(document), "utf-8")
    return interrupted


def test_a_tampered_folder_is_refused_before_what_it_names_is_imported(trapped, marker):
    before = {file: file.read_bytes() for file in trapped.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match="not the one the run was started with"):
        resume_run(trapped)
    assert not marker.exists()
    assert before == {file: file.read_bytes() for file in before}


@pytest.mark.parametrize("backend", ["serial", "threads", "ray"])
def test_python_refuses_it_too(trapped, marker, backend):
    with pytest.raises(ValueError, match="not the one the run was started with"):
        fp.resume(trapped, backend=backend)
    assert not marker.exists()


@pytest.mark.slow
def test_so_does_the_command_line(trapped, marker, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedpriv", "run", "--resume", str(trapped)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "not the one the run was started with" in capsys.readouterr().err.replace("\n", " ")
    assert not marker.exists()


def test_an_edited_ledger_is_found_before_anything_is_imported(trapped, marker):
    ledger = trapped / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(ValueError, match="ledger"):
        resume_run(trapped)
    assert not marker.exists()


def test_a_sealed_folder_still_imports_what_it_names(interrupted):
    assert decode((interrupted / "ledger.jsonl").read_bytes()).records
    assert resume_run(interrupted).run()["rounds"] == 5  # of six charges one was lost
