"""A folder that is copied, put back or cut is found by what was marked outside it."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.ledger.anchor import FileAnchor, anchors_of
from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import resume_run, start_run
from tests.harness.tag_runs import OPTIONS, charged, ledger_state, stopping


@pytest.fixture
def anchored(tmp_path):
    """Makes the anchors of the same run anew, as every start and resume does."""
    return lambda: anchors_of(tmp_path / "elsewhere.anchor")


def begin(corpus, out, anchors=(), *, secure=True, make_backend=None, **more):
    experiment = load_experiment("dp-fedavg-tags")
    options = {**OPTIONS, **more}
    extra = {} if make_backend is None else {"make_backend": make_backend}
    return start_run(
        experiment.with_options(options), "dp-fedavg-tags", corpus, out, secure=secure,
        anchors=anchors, **extra,
    )  # fmt: skip


def interrupted(corpus, out, anchors=(), after=3):
    with pytest.raises(KeyboardInterrupt):
        begin(corpus, out, anchors, make_backend=stopping(after)).run()
    return out


def refused(found, message):
    (wrong,) = (check for check in found.checks if not check.ok)
    assert wrong.name == "anchor" and message in wrong.text
    return True


@pytest.mark.slow
def test_without_an_anchor_a_copy_is_continued_besides_and_both_verify(tiny_corpus, tmp_path):
    """What there is to find, and the statement says that it cannot be found."""
    one = interrupted(tiny_corpus, tmp_path / "one")
    other = shutil.copytree(one, tmp_path / "other")
    releases = 0
    for folder in (one, other):
        before = len(ledger_state(folder).releases)
        resume_run(folder).run()
        releases += len(ledger_state(folder).releases) - before
        assert verify_run(folder).ok and len(charged(folder)) == OPTIONS["rounds"]
    assert releases + before > OPTIONS["rounds"] - 1  # more private releases than are counted
    said = " ".join(p for part in run_statement(one).sections for p in part.paragraphs)
    assert "no anchor outside its folder" in said


@pytest.mark.slow
def test_of_two_copies_of_a_secure_folder_one_is_continued(tiny_corpus, tmp_path, anchored):
    one = interrupted(tiny_corpus, tmp_path / "one", anchored())
    other = shutil.copytree(one, tmp_path / "other")
    ledger = (other / "ledger.jsonl").read_bytes()
    resume_run(one, anchors=anchored()).run()
    with pytest.raises(LedgerError, match="copy of a run that was continued elsewhere"):
        resume_run(other, anchors=anchored())
    assert (other / "ledger.jsonl").read_bytes() == ledger
    assert verify_run(one, anchors=anchored()).ok
    assert refused(verify_run(other, anchors=anchored()), "continued elsewhere")
    said = " ".join(p for part in run_statement(one).sections for p in part.paragraphs)
    assert "marked outside its folder" in said


@pytest.mark.slow
def test_two_copies_are_not_continued_at_once(tiny_corpus, tmp_path):
    anchor = tmp_path / "elsewhere.anchor"
    one = interrupted(tiny_corpus, tmp_path / "one", anchors_of(anchor))
    other = shutil.copytree(one, tmp_path / "other")
    going = resume_run(one, anchors=anchors_of(anchor))
    with pytest.raises(LedgerError, match=r"the anchor .* is in use by another process"):
        resume_run(other, anchors=anchors_of(anchor))
    going.run()


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 2, 3])
def test_charges_cut_off_the_end_are_found(tiny_corpus, tmp_path, anchored, lines):
    folder = interrupted(tiny_corpus, tmp_path / "run", anchored())
    whole = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    assert b'"kind":"charge"' in whole[-1]
    (folder / "ledger.jsonl").write_bytes(b"".join(whole[:-lines]))
    if lines == 1:  # the trailing charge: by itself the folder verifies
        assert verify_run(folder).ok
    assert any(
        check.name == "anchor" and not check.ok
        for check in verify_run(folder, anchors=anchored()).checks
    )
    with pytest.raises(LedgerError, match="lacks line"):
        resume_run(folder, anchors=anchored())


@pytest.mark.slow
def test_a_backup_that_is_put_back_is_refused(tiny_corpus, tmp_path, anchored):
    folder = interrupted(tiny_corpus, tmp_path / "run", anchored())
    backup = shutil.copytree(folder, tmp_path / "backup")
    resume_run(folder, anchors=anchored()).run()
    shutil.rmtree(folder)
    backup.rename(folder)
    assert verify_run(folder).ok  # it is a whole run of its time
    with pytest.raises(LedgerError, match="an older backup"):
        resume_run(folder, anchors=anchored())


@pytest.mark.slow
def test_an_anchored_run_does_not_go_on_without_its_anchor(tiny_corpus, tmp_path, anchored):
    folder = interrupted(tiny_corpus, tmp_path / "run", anchored())
    with pytest.raises(LedgerError, match="started with an anchor"):
        resume_run(folder)
    other = FileAnchor(tmp_path / "another.anchor")
    with pytest.raises(LedgerError, match=r"is of nothing, and not of run"):
        resume_run(folder, anchors=(other,))
    found = verify_run(folder)
    assert found.ok and any("not compared: give --anchor" in c.text for c in found.checks)


@pytest.mark.slow
def test_an_anchor_belongs_to_one_run_and_lies_elsewhere(tiny_corpus, tmp_path):
    anchor = tmp_path / "elsewhere.anchor"
    interrupted(tiny_corpus, tmp_path / "one", anchors_of(anchor))
    with pytest.raises(LedgerError, match="give each run its own"):
        begin(tiny_corpus, tmp_path / "two", anchors_of(anchor))
    with pytest.raises(LedgerError, match="lies in the run folder"):
        begin(tiny_corpus, tmp_path / "three", anchors_of(tmp_path / "three" / "a" / "anchor"))
    plain = interrupted(tiny_corpus, tmp_path / "four")
    with pytest.raises(LedgerError, match="started without an anchor"):
        resume_run(plain, anchors=anchors_of(tmp_path / "late.anchor"))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["line", "mark"])
def test_what_a_crash_leaves_between_ledger_and_anchor_goes_on(tiny_corpus, tmp_path, damage):
    anchor = tmp_path / "elsewhere.anchor"
    folder = interrupted(tiny_corpus, tmp_path / "run", anchors_of(anchor))
    marks = anchor.read_bytes().splitlines(keepends=True)
    if damage == "line":  # the charge is on the disk, its mark was not written
        anchor.write_bytes(b"".join(marks[:-1]))
    else:  # half of it was
        anchor.write_bytes(b"".join(marks[:-1]) + marks[-1][:20])
    resume_run(folder, anchors=anchors_of(anchor)).run()
    assert verify_run(folder, anchors=anchors_of(anchor)).ok
    assert len(charged(folder)) == OPTIONS["rounds"]


def test_an_anchor_that_was_put_back_is_refused(tiny_corpus, tmp_path):
    anchor = tmp_path / "elsewhere.anchor"
    folder = interrupted(tiny_corpus, tmp_path / "run", anchors_of(anchor))
    marks = anchor.read_bytes().splitlines(keepends=True)
    anchor.write_bytes(b"".join(marks[:-2]))
    with pytest.raises(LedgerError, match="a crash leaves one more at most"):
        resume_run(folder, anchors=anchors_of(anchor))


def test_nothing_is_drawn_where_the_anchor_cannot_be_written(tiny_corpus, tmp_path, monkeypatch):
    drawn = []
    anchor = FileAnchor(tmp_path / "elsewhere.anchor")
    prepared = begin(tiny_corpus, tmp_path / "run", (anchor,), make_backend=counting(drawn))

    def full(mark):
        raise LedgerError("no room")

    monkeypatch.setattr(anchor, "advance", full)
    with pytest.raises(LedgerError, match="no room"):
        prepared.run()
    assert drawn == [] and len(charged(tmp_path / "run")) == 1


def counting(drawn):
    from fedpriv.backends import SerialBackend

    class Counting(SerialBackend):
        def partial_sum(self, **arguments):
            drawn.append(arguments["cohort"])
            return super().partial_sum(**arguments)

    return lambda experiment, components: Counting(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )


def test_a_mark_is_synced_before_anything_is_drawn(tiny_corpus, tmp_path, monkeypatch):
    anchor, seen, fsync = tmp_path / "elsewhere.anchor", [], os.fsync
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))
    )

    def look(cohorts):
        seen.append((len(anchor.read_bytes().splitlines()), synced[-1]))

    drawn = type("Drawn", (list,), {"append": lambda self, cohort: look(cohort)})()
    begin(tiny_corpus, tmp_path / "run", anchors_of(anchor), make_backend=counting(drawn)).run()
    # The plan, then of every round before a charge and a release, then its own charge.
    assert [lines for lines, _ in seen] == [2 * round_num for round_num in range(1, 7)]
    assert {last for _, last in seen} == {str(anchor)}
    marks = [json.loads(line) for line in anchor.read_text().splitlines()]
    assert [mark["seq"] for mark in marks] == list(range(len(marks)))
