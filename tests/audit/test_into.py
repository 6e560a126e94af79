"""An audit that is kept with a run: what its statement says of it, and whose audit it may not be.

A thousand canaries; the seed is fixed, and a right mechanism is refuted once in a thousand audits.
"""

import json
import re
import shutil

import pytest

from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from tests.audit.test_commands import OWN, SETTING
from tests.cli.typed import run
from tests.harness.command_line import fedpriv

AUDIT = ("audit", "--trials", 1_000, "--into")


def trained(folder, corpus, *options, experiment="dp-fedavg-tags"):
    run("run", experiment, "--corpus", corpus.directory, *SETTING, *options, "--out", folder,
        "--json")  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def plain(tiny_corpus, tmp_path_factory):
    """A run that nobody audited."""
    return trained(tmp_path_factory.mktemp("runs") / "plain", tiny_corpus)


@pytest.fixture(scope="module")
def audited(plain):
    """The same, audited; and what was printed."""
    folder = shutil.copytree(plain, plain.with_name("audited"))
    return folder, run(*AUDIT, folder).stdout


def refused(folder, *options):
    """What an audit of a run is refused with."""
    done = fedpriv(*AUDIT, folder, *options)
    assert done.exit_code == 2
    return " ".join(done.stderr.split())


def words_of(statement, title="Audit"):
    return " ".join(next(part for part in statement.sections if part.title == title).paragraphs)


def test_without_an_audit_every_output_says_so(plain):
    statement = run_statement(plain)
    assert words_of(statement).startswith("Not audited")
    assert statement.to_json()["audit"] == {"outcome": "not audited"}
    found = verify_run(plain)
    assert found.ok and ("audit", "not audited") in {(c.name, c.text) for c in found.checks}
    assert found.to_json()["audit"] == {"outcome": "not audited"}
    assert re.search(r"^- +audit +not audited", run("verify", plain).stdout, re.MULTILINE)
    assert "Not audited: this mechanism" in (plain / "report.html").read_text("utf-8")


def test_an_audit_is_in_statement_verification_page_and_card(audited, tmp_path):
    folder, printed = audited
    assert "consistent" in printed and "audit.json" in printed
    kept = json.loads((folder / "audit.json").read_text("utf-8"))
    record = run_statement(folder).to_json()["audit"]
    assert record["outcome"] == "consistent" and record["seed"] == 0
    assert record["canaries"] == 1_000 and 0 < record["canaries_in"] < 1_000
    assert record["confidence"] == 0.999 and record["form"] in kept["bounds"]
    assert record["bound"] == kept["bound"] == kept["bounds"][record["form"]]["epsilon"]
    assert record["version"] and len(record["of"]["plan_sha256"]) == 64
    assert not {"date", "time"} & set(kept)
    found = verify_run(folder)
    assert found.ok and found.to_json()["audit"] == record
    [check] = [each for each in found.checks if each.name == "audit"]
    assert "derived again" in check.text and "scores of canaries are not" in check.text
    assert "Consistent is not proved" in (folder / "report.html").read_text("utf-8")  # written anew
    run("report", folder)
    run("export", folder, "--to", tmp_path / "model")
    for page in (folder / "report.html", tmp_path / "model" / "README.md"):
        text = page.read_text("utf-8")
        assert "Consistent is not proved" in text and "99.9 % confidence" in text
        assert "Not audited" not in text


def test_the_same_audit_gives_the_same_file(audited, plain):
    folder, _ = audited
    again = shutil.copytree(plain, plain.with_name("again"))
    run(*AUDIT, again)
    assert (again / "audit.json").read_bytes() == (folder / "audit.json").read_bytes()


def test_an_outcome_is_not_replaced_by_a_later_one(audited):
    folder, _ = audited
    before = (folder / "audit.json").read_bytes()
    assert "no later one replaces" in refused(folder)
    assert (folder / "audit.json").read_bytes() == before


def test_an_audit_of_other_options_is_refused_by_name(plain, tiny_corpus):
    options = ("--corpus", tiny_corpus.directory, *SETTING)
    other = ("dp-fedavg-tags", *options, "--noise-multiplier", "2")
    assert "noise_multiplier 2.0 instead of 1.0" in refused(plain, *other)
    said = refused(plain, "adadps-tags", *options)
    assert "the audit of adadps-tags" in said and "a run of dp-fedavg-tags" in said
    said = refused(plain, "--rounds", "2")
    assert "takes experiment, corpus and options from the run" in said
    assert "is a simulation" in refused(plain, "--secure")
    assert not (plain / "audit.json").exists()


def test_the_run_s_own_options_are_its_own(plain, tiny_corpus, tmp_path):
    folder = shutil.copytree(plain, tmp_path / "named")
    run(*AUDIT, folder, "dp-fedavg-tags", "--corpus", tiny_corpus.directory, *SETTING)
    assert verify_run(folder).to_json()["audit"]["outcome"] == "consistent"


def test_another_run_s_audit_is_an_error_that_names_both(audited, tiny_corpus, tmp_path):
    """Of other options, and of the very same ones: another run is another run."""
    folder, _ = audited
    first = verify_run(folder).audit.of
    for number, options in enumerate(((), ("--noise-multiplier", "2"))):
        other = trained(tmp_path / f"run{number}", tiny_corpus, *options)
        shutil.copy(folder / "audit.json", other / "audit.json")
        found = verify_run(other)
        [check] = [each for each in found.checks if each.name == "audit"]
        assert not found.ok and not check.ok and found.audit is None
        head = json.loads((other / "ledger.jsonl").read_text("utf-8").splitlines()[0])
        for named in (first["ledger_sha256"][:12], head["hash"][:12]):
            assert named in check.text
        with pytest.raises(ValueError, match="audit of another run"):
            run_statement(other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(bound=0.001), "its forms give"),
        (lambda d: d["stated"].update(epsilon=99.0), "the plan: ε 99"),
        (lambda d: d["stated"].update(delta=0.1), "the plan: δ 0.1"),
        (lambda d: d.update(rounds=1), "1 rounds instead of 2"),
        (lambda d: d.update(refuted=True), "refuted=True"),
        (lambda d: d.update(canaries_in=10_000), "more canaries in"),
        (lambda d: d.update(confidence=0.0), "no confidence"),
        (lambda d: d.update(seed=None), "in mode simulation"),
        (lambda d: d.pop("bounds"), "cannot be read|can be read"),
        (lambda d: d.update(of=[]), "can be read"),
        (lambda d: d["of"].update(mode="secure"), "another run"),
        (lambda d: d["of"].update(plan_sha256="0" * 64), "another run"),
        (lambda d: d["of"].update(experiment_sha256="0" * 64), "another run"),
    ],
)  # fmt: skip
def test_what_contradicts_the_plan_or_itself_is_found(audited, tmp_path, change, said):
    folder = shutil.copytree(audited[0], tmp_path / "copy")
    document = json.loads((folder / "audit.json").read_text("utf-8"))
    change(document)
    (folder / "audit.json").write_text(json.dumps(document), "utf-8")
    assert not verify_run(folder).ok
    with pytest.raises(ValueError, match=said):
        run_statement(folder)


def test_a_refuted_run_says_so_in_its_headline_and_does_not_verify(tiny_corpus, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN, "utf-8")
    folder = tmp_path / "run"
    run("run", f"{own}:quiet", "--corpus", tiny_corpus.directory, "--out", folder, "--json")
    assert verify_run(folder).ok
    done = fedpriv(*AUDIT, folder, f"{own}:quiet")
    assert done.exit_code == 1 and "REFUTED" in done.stdout
    statement = run_statement(folder)
    assert "REFUTED by its audit" in statement.headline
    assert "does NOT keep" in words_of(statement)
    assert statement.to_json()["audit"]["outcome"] == "refuted"
    assert not verify_run(folder).ok
    assert "Refuted by its audit" in (folder / "report.html").read_text("utf-8")


def test_a_secure_run_is_audited_as_one(tiny_corpus, tmp_path):
    folder = trained(tmp_path / "run", tiny_corpus, "--secure")
    run(*AUDIT, folder)
    found = verify_run(folder)
    assert found.ok and found.audit.of["mode"] == "secure" and found.audit.seed is None


def test_a_run_that_does_not_verify_is_not_audited(plain, tmp_path):
    folder = shutil.copytree(plain, tmp_path / "copy")
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    (folder / "summary.json").write_text(json.dumps({**summary, "epsilon": 0.1}), "utf-8")
    assert "does not verify" in refused(folder)
