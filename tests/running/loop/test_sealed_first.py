"""What a run folder names is imported only once its ledger and its seal were checked."""

import pytest

import fedpriv as fp
from fedpriv.runs.prepared import resume_run
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_document
from tests.harness.tag_runs import unchanged

TRAP = "from pathlib import Path\nPath({marker!r}).touch()\nraise SystemExit('imported')\n"


@pytest.fixture
def trapped(interrupted, tmp_path):
    """A run folder whose experiment.json names a module of an attacker's, and what that makes."""
    trap, marker = tmp_path / "trap.py", tmp_path / "imported"
    trap.write_text(TRAP.format(marker=str(marker)))
    edit_document(interrupted, reference=f"{trap}:experiment")
    yield interrupted
    assert not marker.exists()


def test_a_tampered_folder_is_refused_before_what_it_names_is_imported(trapped):
    with unchanged(trapped), refuses(ValueError, "experiment.json"):
        resume_run(trapped)


@pytest.mark.parametrize("backend", ["serial", "ray"])
def test_python_refuses_it_too(trapped, backend):
    with refuses(ValueError, "experiment.json"):
        fp.resume(trapped, backend=backend)


@pytest.mark.slow
def test_so_does_the_command_line(trapped):
    done = fedpriv("run", "--resume", trapped)
    assert done.exit_code == 2 and "experiment.json" in done.stderr


def test_an_edited_ledger_is_found_before_anything_is_imported(trapped):
    ledger = trapped / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([lines[0], *lines[2:]]))
    with refuses(ValueError, "ledger"):
        resume_run(trapped)


def test_a_sealed_folder_still_imports_what_it_names(interrupted):
    assert resume_run(interrupted).run()["rounds"] == 5  # of six charges one was lost
