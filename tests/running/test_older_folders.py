"""Run folders and ledgers of format 1, as people have them: verified, reported on and resumed.

`tests/fixtures/runs/write.py` says how they were made; `expected.json` holds what they gave then.
Figures are compared to a relative 1e-9 and tensors to 1e-5, because machines differ in their last
bits; another cohort or another noise would differ by 1 and more.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv.cli import main
from tests.repeats import only
from tests.resumed import own_code_of

FIXTURES = Path(__file__).parents[1] / "fixtures" / "runs"
FOLDERS = FIXTURES / "format-1"
EXPECTED = json.loads((FOLDERS / "expected.json").read_text("utf-8"))
RUNS, LEDGERS = EXPECTED["runs"], EXPECTED["ledgers"]
FINISHED = [name for name in RUNS if (FOLDERS / name / "summary.json").exists()]
INTERRUPTED = [name for name in RUNS if name not in FINISHED]
#: Folders that this version does not resume, by words of the message that says what to do.
REFUSED: dict[str, str] = {}


@pytest.fixture
def fedpriv(monkeypatch, capsys):
    """Runs a command line and returns its status and what it printed."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FIXTURES))

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["fedpriv", *map(str, argv)])
        try:
            main()
            code = 0
        except SystemExit as done:
            code = done.code or 0
        return code, capsys.readouterr()

    yield run
    for name in set(sys.modules) - before:
        if name == "older_experiments":
            del sys.modules[name]


@pytest.fixture
def copied(tmp_path):
    """Copies a folder, for everything that writes into it."""
    return lambda name: Path(shutil.copytree(FOLDERS / name, tmp_path / name))


def same(found, recorded):
    """Compare a figure with the recorded one, whose floats are hexadecimal."""
    if isinstance(recorded, str) and "0x" in recorded:
        return math.isclose(found, float.fromhex(recorded), rel_tol=1e-9)
    return found == recorded


def assert_verifies(fedpriv, folder, recorded):
    code, said = fedpriv("verify", folder, "--json")
    found = json.loads(said.out)
    assert code == 0 and found["ok"], found["checks"]
    for key, value in recorded.items():
        assert same(found.get(key), value), (key, found.get(key), value)


@pytest.mark.parametrize("name", RUNS)
def test_an_older_run_verifies_and_its_epsilon_is_the_recorded_one(fedpriv, name):
    assert_verifies(fedpriv, FOLDERS / name, RUNS[name]["verify"])


@pytest.mark.parametrize("name", LEDGERS)
def test_an_older_ledger_verifies_and_its_epsilon_is_the_recorded_one(fedpriv, name):
    """Every kind of event, with an attempt that was lost and one that is not released yet."""
    recorded = LEDGERS[name]["verify"]
    assert (recorded["charges"], recorded["releases"], recorded["lost"]) == (5, 3, 2)
    assert_verifies(fedpriv, FOLDERS / "ledgers" / name, recorded)


def test_every_kind_of_event_is_among_the_ledgers():
    lines = [
        json.loads(line)
        for name in LEDGERS
        for line in (FOLDERS / "ledgers" / name / "ledger.jsonl").read_text("utf-8").splitlines()
    ]
    events = [line["event"] for line in lines if line["kind"] == "charge"]
    assert {event and event["kind"] for event in events} == {
        None,
        "gaussian",
        "poisson-gaussian",
        "truncated-poisson-gaussian",
        "fixed-size-gaussian",
    }
    assert {line["plan"]["unit"] for line in lines if line["kind"] == "plan"} == {"user", "example"}


@pytest.mark.parametrize(
    "name", only(["tags-finished", "users-secure", "examples-finished"], list(RUNS))
)
def test_an_older_run_is_reported_on(fedpriv, copied, name):
    folder = copied(name)
    code, _ = fedpriv("report", folder)
    assert code == 0
    page = (folder / "report.html").read_text("utf-8")
    epsilon = RUNS[name]["verify"]["epsilon"]
    shown = "∞" if epsilon is None else f"{math.ceil(float.fromhex(epsilon) * 100) / 100:.2f}"
    assert f"older-{name.partition('-')[0]}" in page and shown in page


def test_older_runs_are_compared(fedpriv):
    code, said = fedpriv("compare", *(FOLDERS / name for name in FINISHED), "--json")
    assert code == 0 and "older-tags" in said.out and "older-examples" in said.out


def test_the_model_of_an_older_run_is_exported_and_predicts(fedpriv, tmp_path):
    code, said = fedpriv("export", FOLDERS / "tags-finished", "--to", tmp_path / "model")
    assert code == 0, said.err
    code, said = fedpriv("predict", tmp_path / "model", "--text", "w00001 w00020")
    assert code == 0 and said.out.strip()


def assert_resumes(fedpriv, folder, name):
    before = (FOLDERS / name / "ledger.jsonl").read_bytes()
    kept = {file.name: file.read_bytes() for file in (FOLDERS / name).glob("checkpoints/*")}
    named = ("run", own_code_of(folder), "--resume", folder)
    code, said = fedpriv(*named, "--keep-checkpoints", "all", "--json")
    if name in REFUSED:
        assert code == 2 and REFUSED[name] in said.err
        assert (folder / "ledger.jsonl").read_bytes() == before
        return
    assert code == 0, said.err
    recorded = RUNS[name]["resumed"]
    checkpoints = sorted(file.name for file in (folder / "checkpoints").iterdir())
    assert checkpoints == recorded["checkpoints"]
    # What was charged and released stays as it was, byte for byte.
    assert (folder / "ledger.jsonl").read_bytes().startswith(before)
    for file, content in kept.items():
        assert (folder / "checkpoints" / file).read_bytes() == content, file
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    secure = summary["mode"] == "secure"
    for key, value in recorded["summary"].items():
        if not (secure and key.startswith("accuracy")):
            assert same(summary[key], value), (key, summary[key], value)
    code, said = fedpriv("verify", folder, "--json")
    assert code == 0 and json.loads(said.out)["ok"], said.out
    if not secure:  # whose noise is another one every time
        expected = load_file(FOLDERS / "resumed" / f"{name}.safetensors")
        found = load_file(folder / "checkpoints" / checkpoints[-1])
        assert set(found) == set(expected)
        for key, array in expected.items():
            assert found[key].dtype == array.dtype and found[key].shape == array.shape
            apart = np.linalg.norm(found[key] - array)
            assert apart <= 1e-5 * np.linalg.norm(array), (key, apart)


@pytest.mark.parametrize("name", only(["users-secure", "examples-interrupted"], INTERRUPTED))
def test_an_older_run_that_was_killed_goes_on_to_the_recorded_model(fedpriv, copied, name):
    assert_resumes(fedpriv, copied(name), name)


@pytest.mark.parametrize("name", only(["users-stopped-early", "examples-finished"], FINISHED))
def test_a_finished_older_run_is_resumed_to_what_it_is(fedpriv, copied, name):
    folder = copied(name)
    before = load_file(FOLDERS / "resumed" / f"{name}.safetensors")
    last = load_file(sorted((folder / "checkpoints").iterdir())[-1])
    assert all(np.array_equal(last[key], before[key]) for key in before)
    assert_resumes(fedpriv, folder, name)


def test_an_older_ledger_with_a_torn_last_line_goes_on(fedpriv, copied):
    folder = copied("users-interrupted")
    with (folder / "ledger.jsonl").open("ab") as ledger:
        ledger.write(b'{"attempt":1,"event":{"kind":"poi')
    code, said = fedpriv("verify", folder, "--json")
    assert code == 0 and "torn" in said.out
    assert_resumes(fedpriv, folder, "users-interrupted")


def test_the_folders_are_small_and_name_no_machine():
    files = [file for file in FOLDERS.rglob("*") if file.is_file()]
    assert len(files) > 50 and sum(file.stat().st_size for file in files) < 400_000
    for name in RUNS:
        document = json.loads((FOLDERS / name / "experiment.json").read_text("utf-8"))
        assert document["corpus"]["path"] is None
        assert document["reference"].startswith("older_experiments:")
        assert (document["format"], document["version"]) == ("fedpriv-run", 1)
