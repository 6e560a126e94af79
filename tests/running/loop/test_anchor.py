"""A folder that is copied, put back or cut is found by what was marked outside it."""

import json
import os
import shutil

import pytest

from fedpriv.backends import SerialBackend
from fedpriv.privacy.ledger.chain import Anchor, LedgerError
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import resume_run
from tests.harness.refusals import refuses
from tests.harness.tag_runs import OPTIONS, charged, interrupted, start, unchanged


@pytest.fixture
def anchor(tmp_path):
    """The file of the anchor, which every start and resume is given."""
    return tmp_path / "elsewhere.anchor"


@pytest.fixture
def folder(tiny_corpus, tmp_path, anchor):
    """The folder of a secure run that was marked there, and ended in its third round."""
    return interrupted(tiny_corpus, tmp_path / "run", 3, secure=True, anchor=anchor)


def said_of(folder):
    return " ".join(p for part in run_statement(folder).sections for p in part.paragraphs)


@pytest.mark.slow
def test_without_an_anchor_the_statement_says_that_no_copy_is_found(tiny_corpus, tmp_path):
    assert "no anchor outside its folder" in said_of(
        interrupted(tiny_corpus, tmp_path / "run", 3, secure=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["copy", "backup", 1, 2, 3])
def test_a_ledger_that_lacks_a_marked_line_is_refused(folder, tmp_path, anchor, how):
    """A copy of what was continued, a backup that is put back, and charges cut off the end."""
    copy = shutil.copytree(folder, tmp_path / "copied")
    if how == "copy":
        resume_run(folder, anchor=anchor).run()
        assert verify_run(folder, anchor=anchor).ok
        assert "marked outside its folder" in said_of(folder)
        folder = copy
    elif how == "backup":
        resume_run(folder, anchor=anchor).run()
        shutil.rmtree(folder)
        copy.rename(folder)
    else:
        whole = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        assert b'"kind":"charge"' in whole[-1]
        (folder / "ledger.jsonl").write_bytes(b"".join(whole[:-how]))
    if how not in (2, 3):  # it is a whole run of its time
        assert verify_run(folder).ok
    wrong = {c.name for c in verify_run(folder, anchor=anchor).checks if not c.ok}
    assert "anchor" in wrong
    with unchanged(folder), refuses(LedgerError, anchor):
        resume_run(folder, anchor=anchor)


@pytest.mark.slow
def test_two_copies_are_not_continued_at_once(folder, tmp_path, anchor):
    other = shutil.copytree(folder, tmp_path / "other")
    going = resume_run(folder, anchor=anchor)
    with refuses(LedgerError, anchor):
        resume_run(other, anchor=anchor)
    going.run()


@pytest.mark.slow
def test_an_anchored_run_does_not_go_on_without_its_anchor(folder, tmp_path):
    with refuses(LedgerError, "--anchor"):
        resume_run(folder)
    other = tmp_path / "another.anchor"
    with refuses(LedgerError, other):
        resume_run(folder, anchor=other)
    found = verify_run(folder)
    assert found.ok and any("--anchor" in check.text for check in found.checks)


@pytest.mark.slow
def test_an_anchor_belongs_to_one_run_and_lies_elsewhere(folder, tiny_corpus, tmp_path, anchor):
    inside = tmp_path / "three" / "a" / "anchor"
    for name, other in (("two", anchor), ("three", inside)):
        with refuses(LedgerError, other):
            start(tiny_corpus, tmp_path / name, secure=True, anchor=other)
    plain = interrupted(tiny_corpus, tmp_path / "four", 3, secure=True)
    with pytest.raises(LedgerError):
        resume_run(plain, anchor=tmp_path / "late.anchor")


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 20])
def test_what_a_crash_leaves_between_ledger_and_anchor_goes_on(folder, anchor, left):
    """The charge is on the disk, and its mark was not written, or in part."""
    *marks, last = anchor.read_bytes().splitlines(keepends=True)
    anchor.write_bytes(b"".join(marks) + last[:left])
    resume_run(folder, anchor=anchor).run()
    assert verify_run(folder, anchor=anchor).ok
    assert len(charged(folder)) == OPTIONS["rounds"]


def test_an_anchor_that_was_put_back_is_refused(folder, anchor):
    marks = anchor.read_bytes().splitlines(keepends=True)
    anchor.write_bytes(b"".join(marks[:-2]))
    with refuses(LedgerError, anchor):
        resume_run(folder, anchor=anchor)


def test_nothing_is_drawn_where_the_anchor_cannot_be_written(
    tiny_corpus, tmp_path, anchor, monkeypatch
):
    drawn, prepared = [], start(tiny_corpus, tmp_path / "run", anchor=anchor)

    def full(self, mark):
        raise LedgerError("no room")

    monkeypatch.setattr(Anchor, "advance", full)
    monkeypatch.setattr(SerialBackend, "sum", lambda *given: drawn.append(given))
    with refuses(LedgerError, "no room"):
        prepared.run()
    assert drawn == [] and len(charged(tmp_path / "run")) == 1


def test_a_mark_is_synced_before_anything_is_drawn(tiny_corpus, tmp_path, anchor, monkeypatch):
    seen, synced, fsync, sums = [], [], os.fsync, SerialBackend.sum

    def sync(fd):
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def look(self, *given):
        seen.append((len(anchor.read_bytes().splitlines()), synced[-1]))
        return sums(self, *given)

    prepared = start(tiny_corpus, tmp_path / "run", secure=True, anchor=anchor)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(SerialBackend, "sum", look)
    prepared.run()
    # The plan, then of every round before a charge and a release, then its own charge.
    assert [lines for lines, _ in seen] == [2 * round_num for round_num in range(1, 7)]
    assert {last for _, last in seen} == {str(anchor)}
    marks = [json.loads(line) for line in anchor.read_text().splitlines()]
    assert [mark["seq"] for mark in marks] == list(range(len(marks)))
