"""Run folders that were interrupted, tampered with or damaged."""

import json
import shutil

import pytest

from fedpriv import json_lines
from fedpriv.datasets.importers.synthetic import synthesize
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.runs import prepared as runs
from fedpriv.runs.prepared import resume_run
from tests.harness import tag_runs
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_document, reseal
from tests.harness.tag_runs import (
    NOISE,
    RELEASED,
    SMALL,
    charged,
    pairs,
    start,
    stopping,
    unchanged,
)


def options_changed(folder):
    document = json.loads((folder / "experiment.json").read_text("utf-8"))
    document["experiment"]["noise-multiplier"] = 5.0
    edit_document(folder, **document)


def state_flipped(folder):
    content = bytearray((folder / "state.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "state.safetensors").write_bytes(bytes(content))


def checkpoint_flipped(folder):
    file = next(folder.glob("checkpoints/round-000003*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


def ledger_of(edit):
    """Return what writes the ledger anew, of the lines that a function makes of its lines."""

    def write(folder):
        lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "ledger.jsonl").write_bytes(b"".join(edit(lines)))

    return write


def less_noise(line):
    return line.replace(b'"noise_multiplier":1.0', b'"noise_multiplier":9.0')


DAMAGES = {
    "line dropped": (ledger_of(lambda old: [old[0], *old[2:]]), "ledger"),
    "lines swapped": (ledger_of(lambda old: [old[0], old[2], old[1], *old[3:]]), "ledger"),
    "line edited": (ledger_of(lambda old: [less_noise(old[0]), *old[1:]]), "ledger"),
    "line repeated": (ledger_of(lambda old: [*old[:2], *old[1:]]), "ledger"),
    "ledger of 1 line": (ledger_of(lambda old: old[:1]), "state.safetensors"),
    "ledger of 3 lines": (ledger_of(lambda old: old[:3]), "state.safetensors"),
    "ledger of 5 lines": (ledger_of(lambda old: old[:5]), "state.safetensors"),
    "no checkpoint": (lambda f: next(f.glob("checkpoints/round-000003*")).unlink(), 3),
    "no state": (lambda folder: (folder / "state.safetensors").unlink(), "state.safetensors"),
    "checkpoint flipped": (checkpoint_flipped, "round 3"),
    "state flipped": (state_flipped, "state.safetensors"),
    "other mode": (lambda folder: edit_document(folder, mode="secure"), "experiment.json"),
    "other backend": (lambda folder: edit_document(folder, backend="flower"), "experiment.json"),
    "other options": (options_changed, "experiment.json"),
}


@pytest.mark.parametrize(("damage", "named"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_and_nothing_is_drawn(interrupted, damage, named):
    damage(interrupted)
    with unchanged(interrupted), refuses(ValueError, named):
        resume_run(interrupted)


def test_another_runs_ledger_is_refused(interrupted, finished):
    shutil.copy(finished / "ledger.jsonl", interrupted)
    with refuses(ValueError, "state.safetensors"):
        resume_run(interrupted)


def test_changed_options_are_refused_whatever_the_hashes_say(interrupted):
    options_changed(interrupted)
    reseal(interrupted)  # of which the ledger knows nothing else
    with refuses(ValueError, interrupted) as caught:
        resume_run(interrupted)
    assert "experiment.json" not in str(caught.value)
    document = json.loads((interrupted / "experiment.json").read_text("utf-8"))
    document["plan"]["num_rounds"] += 1
    edit_document(interrupted, **document)
    reseal(interrupted)
    with refuses(ValueError, "experiment.json"):
        resume_run(interrupted)


@pytest.mark.slow
def test_torn_last_lines_are_cut_off(interrupted):
    for name, torn in (
        ("ledger", b'{"attempt":2,"ev'),
        ("rounds", b'{"round_num": 4, "at'),
        ("diagnostics", b'{"round'),
    ):
        with (interrupted / f"{name}.jsonl").open("ab") as file:
            file.write(torn)
    assert resume_run(interrupted).run()["rounds"] == 5
    for name in ("rounds", "diagnostics"):
        lines = json_lines.read(interrupted / f"{name}.jsonl")
        assert pairs(lines) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 1)]
    assert len(charged(interrupted)) == 6


def test_a_record_that_was_torn_away_is_written_again(interrupted):
    content = (interrupted / "rounds.jsonl").read_bytes()
    (interrupted / "rounds.jsonl").write_bytes(content[:-9])
    prepared = resume_run(interrupted)
    prepared.run()
    lines = json_lines.read(interrupted / "rounds.jsonl")
    assert [line["round_num"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[2]["epsilon"] == prepared.components.plan.epsilon(3).value
    assert set(lines[2]) == RELEASED


@pytest.mark.slow
def test_from_an_older_state_rounds_are_paid_and_drawn_anew(tiny_corpus, tmp_path, monkeypatch):
    """As after a power cut, or a backup: nothing that was spent comes back."""
    keys = []
    real, rehearse = NOISE.gaussian, runs._try

    def rehearsed(*given, **named):
        """A step on synthetic users comes before a run; its noise is no run's."""
        before = len(keys)
        found = rehearse(*given, **named)
        del keys[before:]
        return found

    monkeypatch.setattr(runs, "_try", rehearsed)
    monkeypatch.setattr(
        NOISE, "gaussian", lambda key, *rest: keys.append(key.to_bytes()) or real(key, *rest)
    )
    folder = tag_runs.interrupted(tiny_corpus, tmp_path / "run", after=3)
    state = folder / "state.safetensors"
    old = state.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        resume_run(folder, make_backend=stopping(2)).run()
    assert charged(folder) == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1)]
    state.write_bytes(old)
    prepared = resume_run(folder)
    summary = prepared.run()
    assert charged(folder) == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (3, 3)]
    # Noise is drawn as soon as an attempt is paid for, so lost attempts have drawn theirs too.
    assert len(keys) == len(set(keys)) == 6
    assert (summary["rounds"], summary["charges"]) == (3, 6)
    assert summary["epsilon"] == prepared.components.plan.epsilon(6).value


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_corpus_prepared_anew_in_another_way_is_refused(tmp_path, secure):
    """Its folder and its roster are the same; words, labels and threads held out are not."""
    at, aside = tmp_path / "corpus", tmp_path / "aside"
    corpus = synthesize(at, **SMALL)
    roster = corpus.view().roster
    folder = tag_runs.interrupted(corpus, tmp_path / "run", after=2, secure=secure)
    at.rename(aside)
    assert synthesize(at, **SMALL, seed=5).view().roster == roster
    with unchanged(folder), refuses(ValueError, "data_sha256"):
        resume_run(folder)
    shutil.rmtree(at)
    aside.rename(at)
    Corpus.open(at).add_roster(RosterSpec(name="later", rule="first-sorted", size=5))
    assert resume_run(folder).run()["rounds"] == 5


def test_folders_that_hold_a_run_or_none(tiny_corpus, finished, tmp_path):
    with refuses(ValueError, "--resume"):
        start(tiny_corpus, finished)
    for empty in (tmp_path, tmp_path / "nowhere"):
        with refuses(ValueError, empty):
            resume_run(empty)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "experiment.json").write_text('{"format": "other", "version": 1}')
    with refuses(ValueError, "other"):
        resume_run(tmp_path / "odd")


@pytest.mark.slow
def test_one_process_at_a_time(tiny_corpus, tmp_path):
    prepared = start(tiny_corpus, tmp_path / "run")
    with refuses(ValueError, "ledger.jsonl"):
        resume_run(tmp_path / "run")
    prepared.run()
