"""A run folder that somebody else wrote, hashes and all: it verifies, and chooses no code.

Its hashes have no key, so a document that names any code, and links to anywhere, can be sealed.
"""

import shutil
from functools import partial

import pytest

import fedpriv as fp
from fedpriv.attacks.membership import attack_membership
from fedpriv.audit.run import candidate_of, open_unaudited
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import resume_run
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_document, reseal
from tests.harness.tag_runs import start, unchanged

TRAP = """from pathlib import Path
Path({marker!r}).touch()
from fedpriv.experiments.load import load_experiment

def experiment():
    return load_experiment("dp-fedavg-tags")
"""


@pytest.fixture
def marker(tmp_path):
    """A file that the trap makes where somebody imports it."""
    return tmp_path / "imported"


@pytest.fixture
def trap(tmp_path, marker):
    """What the folders name: code of an attacker's."""
    (tmp_path / "trap.py").write_text(TRAP.format(marker=str(marker)))
    return f"{tmp_path / 'trap.py'}:experiment"


@pytest.fixture
def crafted(interrupted, finished, trap):
    """Both runs, which name the trap, and verify."""
    folders = {"interrupted": interrupted, "finished": finished}
    for folder in folders.values():
        reseal(folder, reference=trap)
        assert verify_run(folder).ok
    return folders


class TestNamedCode:
    """`reference` of `experiment.json` is imported only where the person names it too."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "reading"),
        [
            ("interrupted", resume_run),
            ("interrupted", fp.resume),
            ("interrupted", lambda folder: fp.resume(folder, backend="ray")),
            ("finished", lambda folder: fp.run_uncertainty(folder, ks=(2,))),
            ("finished", lambda folder: candidate_of(open_unaudited(folder))),
            ("finished", attack_membership),
        ],
    )
    def test_python_imports_nothing_of_it(self, crafted, marker, name, reading):
        with refuses(ValueError, "trap.py:experiment"):
            reading(crafted[name])
        assert not marker.exists()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("interrupted", ("run", "--resume")),
            ("finished", ("uncertainty", "--k", "2")),
            ("finished", ("audit", "--into")),
            ("finished", ("attack", "membership")),
            ("finished", ("report",)),
            ("finished", ("compare",)),
            ("finished", ("status",)),
            ("finished", ("verify",)),
            ("finished", ("predict", "--text", "equity")),
        ],
    )
    def test_no_command_imports_it(self, crafted, marker, name, arguments):
        words = (arguments[0], crafted[name], *arguments[1:])
        if arguments[-1] in ("--resume", "--into", "membership"):
            words = (*arguments, crafted[name])
        done = fedpriv(*words)
        assert not marker.exists()
        reads = arguments[0] in ("report", "compare", "status", "verify", "predict")
        assert done.exit_code == (0 if reads else 2), done.output
        assert reads or "trap.py:experiment" in done.stderr

    def test_a_standard_module_is_not_imported_either(self, crafted, monkeypatch):
        called = []
        monkeypatch.setattr("http.server.test", lambda: called.append(1))
        reseal(crafted["finished"], reference="http.server:test")
        for reading in (fp.run_uncertainty, attack_membership):
            with refuses(ValueError, "http.server:test"):
                reading(crafted["finished"])
        assert not called

    def test_another_name_is_refused_before_it_is_imported(self, crafted, marker, tmp_path):
        other = tmp_path / "other.py"
        shutil.copy(tmp_path / "trap.py", other)
        for given in (f"{other}:experiment", "dp-fedavg-tags"):
            with refuses(ValueError, "trap.py:experiment", given):
                fp.resume(crafted["interrupted"], experiment=given)
        assert not marker.exists()

    @pytest.mark.slow
    def test_who_names_it_again_runs_it(self, crafted, marker, trap, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # a file may be named from here too
        done = fedpriv("run", "trap.py:experiment", "--resume", crafted["interrupted"])
        assert done.exit_code == 0 and marker.exists()
        assert verify_run(crafted["interrupted"]).ok
        assert fp.run_uncertainty(crafted["finished"], ks=(2,), experiment=trap).kept
        assert candidate_of(open_unaudited(crafted["finished"]), trap).name == "dp-fedavg-tags"

    def test_the_value_itself_needs_no_name(self, crafted, marker):
        made = load_experiment("dp-fedavg-tags")
        assert fp.resume(crafted["interrupted"], experiment=made).rounds_done == 5
        assert not marker.exists()

    @pytest.mark.parametrize("reference", [["os:getcwd"], 3, {"a": 1}])
    def test_what_is_no_name_is_refused(self, finished, reference):
        reseal(finished, reference=reference)
        with refuses(ValueError, repr(reference)):
            fp.run_uncertainty(finished, ks=(2,))


@pytest.mark.parametrize(
    "reading", [resume_run, fp.resume, lambda folder: fp.resume(folder, backend="ray")]
)
def test_a_tampered_folder_is_refused_before_what_it_names_is_imported(
    interrupted, trap, marker, reading
):
    """Its ledger and its seal are checked first."""
    edit_document(interrupted, reference=trap)
    with unchanged(interrupted), refuses(ValueError, "experiment.json"):
        reading(interrupted)
    done = fedpriv("run", "--resume", interrupted)
    assert done.exit_code == 2 and "experiment.json" in done.stderr
    ledger = interrupted / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([lines[0], *lines[2:]]))
    with refuses(ValueError, "ledger"):
        reading(interrupted)
    assert not marker.exists()


class TestLinks:
    """A link in a run folder leads elsewhere what is written, deleted or copied."""

    @pytest.mark.parametrize(
        "name", ["checkpoints", "secret", "rounds.jsonl", "summary.json", "report.html"]
    )
    def test_a_run_is_not_resumed_over_a_link(self, interrupted, tmp_path, name):
        outside = tmp_path / "outside"
        if (interrupted / name).exists():
            shutil.move(interrupted / name, outside)
        elif "." in name:
            outside.write_text("mine")
        else:
            outside.mkdir()
        if outside.is_dir():
            (outside / "round-000001.safetensors").write_bytes(b"mine")
            (outside / ".round-000007.safetensors.part").write_bytes(b"mine")
        (interrupted / name).symlink_to(outside)
        for resume in (partial(resume_run, keep_last=1), fp.resume):
            with unchanged(interrupted, outside), refuses(ValueError, interrupted / name):
                resume(interrupted)

    def test_a_link_deeper_in_is_found(self, interrupted, tmp_path):
        (tmp_path / "precious").write_bytes(b"mine")
        link = interrupted / "checkpoints" / "round-000009.safetensors"
        link.symlink_to(tmp_path / "precious")
        with refuses(ValueError, link):
            resume_run(interrupted)

    def test_no_run_is_started_over_a_link(self, tiny_corpus, tmp_path):
        (tmp_path / "outside").mkdir()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "outside")
        with refuses(ValueError, "checkpoints"):
            start(tiny_corpus, tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]

    def test_a_report_does_not_write_through_one(self, finished, tmp_path):
        (tmp_path / "precious").write_text("mine")
        (finished / "report.html").symlink_to(tmp_path / "precious")
        with unchanged(tmp_path / "precious"), refuses(ValueError, "report.html"):
            fp.load(finished)
        [found] = [check for check in verify_run(finished).checks if not check.ok]
        assert found.name == "links" and "report.html" in found.text

    def test_the_folder_itself_may_be_one(self, finished, tmp_path):
        (tmp_path / "latest").symlink_to(finished)
        assert fp.load(tmp_path / "latest").finished
