"""What a run folder holds is printed as text: a terminal is never sent what it would obey."""

import json
import shutil
from itertools import product

import pytest

from fedpriv.privacy.statement.verify import verify_run
from tests.cli.typed import SMALL, run
from tests.harness.command_line import fedpriv
from tests.harness.resealed import edit_document, edit_json, reseal
from tests.report.conftest import edit_rows

#: Clear the screen; a colour by one byte; a title and a bell; text turned around.
SIGNS = "\x1b[2J\x9b31m\x1b]0;mine\x07\u202edesrever\u2066\x08"
HALF = "\ud800"  # of a pair; it cannot be printed at all
HARMFUL = ("\x1b", "\x9b", "\x07", "\u202e", "\u2066", "\x08")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_corpus):
    folder = tmp_path_factory.mktemp("runs") / "run"
    corpus = tiny_corpus.directory
    run("run", "dp-fedavg-tags", *SMALL, "--corpus", corpus, "--out", folder)
    return folder


@pytest.fixture
def tampered(finished, tmp_path):
    """A copy into whose texts somebody wrote signs that terminals obey."""
    folder = shutil.copytree(finished, tmp_path / "run")
    corpus = json.loads((folder / "experiment.json").read_text("utf-8"))["corpus"]
    corpus |= {"name": f"c{SIGNS}", "credit": f"c{SIGNS}", "roster": f"r{SIGNS}"}
    said = {"name": f"x{SIGNS}", "description": f"x{SIGNS}", "mode": f"m{SIGNS}"}
    edit_document(folder, **said, corpus=corpus)
    edit_rows(folder / "rounds.jsonl", epsilon=f"e{SIGNS}", delta=f"d{SIGNS}")
    said = {"relation": f"r{SIGNS}", "epsilon": f"e{SIGNS}", "rounds": f"n{SIGNS}"}
    edit_json(folder / "summary.json", **said)
    return folder


@pytest.mark.parametrize(
    ("command", "as_json"),
    [("report", ()), *product(("verify", "compare", "export", "run"), ((), ("--json",)))],
)
def test_no_command_prints_what_a_terminal_obeys(tampered, tmp_path, command, as_json):
    if command == "run":
        arguments = ("run", "--resume", tampered, *as_json)
    else:
        arguments = (command, tampered, *as_json)
        arguments += ("--to", tmp_path / "model") if command == "export" else ()
    done = fedpriv(*arguments)
    assert done.exit_code in (1, 2)
    for sign in HARMFUL:
        assert sign not in done.output, repr(sign)
    if as_json and done.stdout:
        json.loads(done.stdout)


def test_names_in_a_comparison_are_text_too(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    reseal(folder, name=f"x{SIGNS}{HALF}", description=SIGNS)
    for arguments in (("compare", folder), ("compare", folder, "--json"), ("report", folder)):
        done = run(*arguments)
        for sign in HARMFUL:
            assert sign not in done.output, repr(sign)


def test_a_check_is_text_for_whoever_prints_it(tampered):
    found = verify_run(tampered)
    assert not found.ok
    texts = " ".join(check.text for check in found.checks)
    assert "e\ufffd[2J" in texts
    for sign in HARMFUL:
        assert sign not in texts
