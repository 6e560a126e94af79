"""Backups of a run folder, and a server that is upgraded and rolled back between rounds."""

from __future__ import annotations

import shutil

import pytest

import fedpriv as fp
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run
from tests.harness.refusals import refuses

NUM_ROUNDS = 5  # of which each loss of the SuperLink costs an attempt


def interrupted(deploy, rounds, **options):
    """Lose the SuperLink in the round behind so many."""
    with pytest.raises(ConnectionError):
        going_on(deploy, rounds_until_lost=rounds, **options)


def going_on(deploy, **options):
    deploy(rounds=NUM_ROUNDS, **options)


@pytest.mark.slow
def test_an_older_copy_that_is_put_back_is_refused(deploy, tmp_path):
    """Copied after round 1; round 2 is done; the copy put back would spend its charges twice."""
    folder, anchor = tmp_path / "runs" / "run", tmp_path / "elsewhere" / "run.anchor"
    anchor.parent.mkdir()
    interrupted(deploy, 1, out=folder, anchor=anchor)
    backup = shutil.copytree(folder, tmp_path / "backup")
    interrupted(deploy, 1, resume=folder, anchor=anchor)  # one round more, then lost again
    assert read_ledger(folder / "ledger.jsonl")[1].rounds_done == 2
    kept = shutil.move(folder, tmp_path / "kept")
    shutil.copytree(backup, folder)
    with pytest.raises(ValueError) as refused:
        going_on(deploy, resume=folder, anchor=anchor)
    assert str(anchor) in str(refused.value)
    with pytest.raises(ValueError):  # nor without it
        going_on(deploy, resume=folder)
    assert (folder / "ledger.jsonl").read_bytes() == (backup / "ledger.jsonl").read_bytes()
    shutil.rmtree(folder)
    shutil.move(kept, folder)
    going_on(deploy, resume=folder, anchor=anchor)
    assert verify_run(folder).ok and fp.load(folder).summary["rounds"] == NUM_ROUNDS - 2


@pytest.mark.slow
def test_a_folder_of_a_format_that_this_version_does_not_know_is_refused(deploy, tmp_path):
    """A rollback behind a change of format: nothing is charged, and the folder stays as it is."""
    folder = tmp_path / "run"
    interrupted(deploy, 1, out=folder)
    file = folder / "experiment.json"
    text = file.read_text("utf-8")
    file.write_text(text.replace('"version": 1', '"version": 99', 1), "utf-8")
    before = (folder / "ledger.jsonl").read_bytes()
    with refuses(ValueError, 99):
        going_on(deploy, resume=folder)
    assert (folder / "ledger.jsonl").read_bytes() == before
