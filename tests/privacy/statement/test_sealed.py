"""What is said of a run is said from the document that its ledger seals, and from no other."""

import json
import shutil

import pytest

import fedpriv as fp
from fedpriv.privacy.statement.coverage import NOT_KNOWN
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.run_record import read_run
from fedpriv.runs.status import run_status
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_document, reseal
from tests.harness.tag_runs import start

PRIVATE = {"source": "private", "description": "word counts"}
SAID = "does NOT cover: side information taken from rostered users"


@pytest.fixture(scope="module")
def sound(tiny_corpus, tmp_path_factory):
    """A run whose document says what ε does not cover."""
    folder = tmp_path_factory.mktemp("sealed") / "run"
    start(tiny_corpus, folder, rounds=2).run()
    reseal(folder, side_information=PRIVATE)
    return folder


@pytest.fixture
def edited(sound, tmp_path):
    """The same, with that taken out and nothing else changed."""
    folder = shutil.copytree(sound, tmp_path / "run")
    edit_document(folder, side_information=None)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("reading", [read_run, run_statement, run_status, fp.load, fp.compare])
def test_an_edited_document_says_nothing_in_python(sound, edited, reading):
    reading(sound)
    with refuses(ValueError, edited / "experiment.json"):
        reading(edited)


@pytest.mark.parametrize(
    "arguments",
    [("report",), ("export", "--to", "model"), ("compare",), ("status",),
     ("predict", "--text", "equity"), ("run", "--resume")],
)  # fmt: skip
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_nor_does_a_command(edited, tmp_path, monkeypatch, arguments, form):
    monkeypatch.chdir(tmp_path)
    ended = fedpriv(*arguments, edited, *(form if arguments[0] != "report" else ()))
    assert ended.exit_code == 2 and "experiment.json" in "".join(ended.stderr.split())
    assert "ε" not in ended.stdout and not (tmp_path / "model").exists()
    assert not (edited / "report.html").exists()


def test_the_sealed_one_is_said_everywhere(sound, tmp_path):
    folder = shutil.copytree(sound, tmp_path / "run")
    for command in ("status", "compare", "verify"):
        assert SAID in " ".join(fedpriv(command, folder).stdout.split()), command
    assert run_status(folder).to_json()["not_covered"] == [SAID.removeprefix("does NOT cover: ")]


def test_a_document_that_no_ledger_seals_says_nothing(sound, tmp_path):
    """A training of one's own has none, and what is put next to its ledger is not its own."""
    folder = shutil.copytree(sound, tmp_path / "run")
    document = (folder / "experiment.json").read_bytes()
    (folder / "experiment.json").unlink()

    def unsealed(kind, fields):
        if kind == "plan":
            del fields["extra"]["experiment_sha256"]
        return fields

    reseal(folder, unsealed)
    assert run_status(folder).to_json()["not_covered"] == list(NOT_KNOWN.not_covered)
    (folder / "experiment.json").write_bytes(document)
    for reading in (read_run, run_statement, run_status):
        with refuses(ValueError, folder / "experiment.json"):
            reading(folder)


def test_another_plan_or_mode_than_the_ledger_s_is_refused(sound, tmp_path):
    folder = shutil.copytree(sound, tmp_path / "run")
    plan = json.loads((folder / "experiment.json").read_text("utf-8"))["plan"]
    for change in ({"mode": "secure"}, {"plan": {**plan, "delta": plan["delta"] / 2}}):
        reseal(folder, **change)
        with refuses(ValueError, folder / "experiment.json"):
            read_run(folder)
        reseal(folder, mode="simulation", plan=plan)
    assert read_run(folder).coverage.not_covered
