"""A run folder that somebody else wrote, hashes and all: it verifies, and chooses no code.

Its hashes have no key, so a document that names any code, and links to anywhere, can be sealed.
"""

import shutil

import pytest

import fedpriv as fp
from fedpriv.attacks.membership import attack_membership
from fedpriv.audit.run import AuditedRun
from fedpriv.cli import main
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import resume_run
from tests.harness.resealed import reseal
from tests.harness.tag_runs import start, stopping

TRAP = """from pathlib import Path
Path({marker!r}).touch()
from fedpriv.experiments.load import load_experiment

def experiment():
    return load_experiment("dp-fedavg-tags")
"""


@pytest.fixture(scope="module")
def sound(tiny_corpus, tmp_path_factory):
    """A run that was interrupted, and one that is finished."""
    folder = tmp_path_factory.mktemp("sound")
    with pytest.raises(KeyboardInterrupt):
        start(tiny_corpus, folder / "interrupted", make_backend=stopping(4)).run()
    start(tiny_corpus, folder / "finished").run()
    return folder


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
def crafted(sound, tmp_path, trap):
    """Copies of both runs that name the trap, and verify."""
    folder = shutil.copytree(sound, tmp_path / "crafted")
    for name in ("interrupted", "finished"):
        reseal(folder / name, reference=trap)
        assert verify_run(folder / name).ok
    return folder


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["fedpriv", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


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
            ("finished", lambda folder: AuditedRun.open(folder).candidate()),
            ("finished", attack_membership),
        ],
    )
    def test_python_imports_nothing_of_it(self, crafted, marker, name, reading):
        with pytest.raises(ValueError, match=r"trap\.py:experiment.*name it"):
            reading(crafted / name)
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
    def test_no_command_imports_it(self, crafted, marker, monkeypatch, capsys, name, arguments):
        words = (arguments[0], crafted / name, *arguments[1:])
        if arguments[-1] in ("--resume", "--into", "membership"):
            words = (*arguments, crafted / name)
        done = command(monkeypatch, *words)
        assert not marker.exists()
        reads = arguments[0] in ("report", "compare", "status", "verify", "predict")
        said = " ".join(capsys.readouterr().err.split())
        assert done == (0 if reads else 2), said
        assert reads or "name it" in said

    def test_a_standard_module_is_not_imported_either(self, crafted, monkeypatch):
        called = []
        monkeypatch.setattr("http.server.test", lambda: called.append(1))
        reseal(crafted / "finished", reference="http.server:test")
        for reading in (fp.run_uncertainty, attack_membership):
            with pytest.raises(ValueError, match=r"http\.server:test.*name it"):
                reading(crafted / "finished")
        assert not called

    def test_another_name_is_refused_before_it_is_imported(self, crafted, marker, tmp_path):
        other = tmp_path / "other.py"
        shutil.copy(tmp_path / "trap.py", other)
        for given in (f"{other}:experiment", "dp-fedavg-tags"):
            with pytest.raises(ValueError, match=r"is a run of .*trap\.py:experiment, not of"):
                fp.resume(crafted / "interrupted", experiment=given)
        assert not marker.exists()

    @pytest.mark.slow
    def test_who_names_it_again_runs_it(self, crafted, marker, trap, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # a file may be named from here too
        assert not command(
            monkeypatch, "run", "trap.py:experiment", "--resume", crafted / "interrupted"
        )
        assert marker.exists()
        assert verify_run(crafted / "interrupted").ok
        assert fp.run_uncertainty(crafted / "finished", ks=(2,), experiment=trap).kept
        assert AuditedRun.open(crafted / "finished").candidate(trap).name == "dp-fedavg-tags"

    def test_the_value_itself_needs_no_name(self, crafted, marker):
        made = load_experiment("dp-fedavg-tags")
        assert fp.resume(crafted / "interrupted", experiment=made).record.rounds_done == 5
        assert not marker.exists()

    @pytest.mark.parametrize("reference", [["os:getcwd"], 3, {"a": 1}])
    def test_what_is_no_name_is_refused(self, crafted, reference):
        reseal(crafted / "finished", reference=reference)
        with pytest.raises(ValueError, match="no name of an experiment"):
            fp.run_uncertainty(crafted / "finished", ks=(2,))


class TestLinks:
    """A link in a run folder leads elsewhere what is written, deleted or copied."""

    @pytest.mark.parametrize(
        "name", ["checkpoints", "secret", "rounds.jsonl", "summary.json", "report.html"]
    )
    def test_a_run_is_not_resumed_over_a_link(self, sound, tmp_path, name):
        folder = shutil.copytree(sound / "interrupted", tmp_path / "run")
        outside = tmp_path / "outside"
        if (folder / name).exists():
            shutil.move(folder / name, outside)
        elif "." in name:
            outside.write_text("mine")
        else:
            outside.mkdir()
        if outside.is_dir():
            (outside / "round-000001.safetensors").write_bytes(b"mine")
            (outside / ".round-000007.safetensors.part").write_bytes(b"mine")
        (folder / name).symlink_to(outside)
        before = contents(folder), contents(outside)
        for resume in (resume_run, fp.resume):
            with pytest.raises(ValueError, match=f"{name}.* is a link"):
                resume(folder, keep_last=1) if resume is resume_run else resume(folder)
        assert (contents(folder), contents(outside)) == before

    def test_a_link_deeper_in_is_found(self, sound, tmp_path):
        folder = shutil.copytree(sound / "interrupted", tmp_path / "run")
        (tmp_path / "precious").write_bytes(b"mine")
        (folder / "checkpoints" / "round-000009.safetensors").symlink_to(tmp_path / "precious")
        with pytest.raises(ValueError, match="is a link"):
            resume_run(folder)

    def test_no_run_is_started_over_a_link(self, tiny_corpus, tmp_path):
        (tmp_path / "outside").mkdir()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "outside")
        with pytest.raises(ValueError, match="is a link"):
            start(tiny_corpus, tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]

    def test_a_report_does_not_write_through_one(self, sound, tmp_path):
        folder = shutil.copytree(sound / "finished", tmp_path / "run")
        (tmp_path / "precious").write_text("mine")
        (folder / "report.html").symlink_to(tmp_path / "precious")
        with pytest.raises(ValueError, match="is a link"):
            fp.load(folder)
        assert (tmp_path / "precious").read_text() == "mine"
        [found] = [check for check in verify_run(folder).checks if not check.ok]
        assert found.name == "links" and "report.html" in found.text

    def test_the_folder_itself_may_be_one(self, sound, tmp_path):
        (tmp_path / "latest").symlink_to(sound / "finished")
        assert fp.load(tmp_path / "latest").record.finished


def contents(place):
    """Return every file of a folder, links as what they point to."""
    return {
        str(path): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in sorted([place, *place.rglob("*")])
        if path.is_symlink() or path.is_file()
    }
