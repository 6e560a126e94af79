"""Unwritable places, full disks and what exists already: one line that says what to do."""

import errno
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from fedpriv import json_lines
from fedpriv.datasets import cache
from fedpriv.datasets.importers import dump, locate, writer
from fedpriv.datasets.importers.downloads import fetch_file
from fedpriv.report import export
from tests.cli.typed import SMALL, run
from tests.harness.command_line import fedpriv

FULL = Path("/dev/full")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "posts.xml").write_text("<posts>")
    (tmp_path / "folder" / "of").write_text("precious")
    return tmp_path


def fails(*arguments):
    """Type a command; return the line that it fails with."""
    done = fedpriv(*arguments)
    said = done.stderr.splitlines()
    assert done.exit_code == 2 and said[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    return said[-1]


@pytest.fixture
def never(monkeypatch):
    """What would be the work."""

    def work(*given, **named):
        raise AssertionError("this should not have begun")

    for module, name in (
        (locate, "synthesize"),
        (dump, "write_corpus"),
        (export, "released_params"),
    ):
        monkeypatch.setattr(module, name, work)
    monkeypatch.setattr("fedpriv.api.running.find_corpus", work)
    for name in ("read_groups", "find_groups"):  # whichever it is
        monkeypatch.setattr(f"fedpriv.cli.results.{name}", work, raising=False)
    monkeypatch.setattr("fedpriv.cli.data.synthesize", work)
    monkeypatch.setattr(f"{fetch_file.__module__}.fetch_file", work)


COMMANDS = {
    "run": ("run", "dp-fedavg-tags", "--out"),
    "compare": ("compare", "run", "--out"),
    "export": ("export", "run", "--to"),
    "import": ("data", "import", "posts.xml", "--out"),
    "synthesize": ("data", "synthesize", "--out"),
    "fetch": ("data", "fetch", "mnist", "--out"),
}
FILES = ("compare",)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_an_unwritable_place_is_named_before_the_work(name, never):
    *_, option = COMMANDS[name]
    assert f"{option.removeprefix('--')} file/x/y.html" in fails(*COMMANDS[name], "file/x/y.html")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_exists_is_named_before_the_work_and_stays(name, place, never):
    if name in FILES:
        assert "folder" in fails(*COMMANDS[name], "folder")
    else:
        assert "file" in fails(*COMMANDS[name], "file")
    if name in ("export", "import", "synthesize"):
        assert "folder" in fails(*COMMANDS[name], "folder")
    assert (place / "file").read_text() == (place / "folder" / "of").read_text() == "precious"


def test_a_folder_with_a_run_is_named_before_the_corpus_is_read(place, never):
    (place / "folder" / "experiment.json").write_text("{}")
    said = fails("run", "dp-fedavg-tags", "--out", "folder")
    assert "--resume folder" in said


class TestCache:
    @pytest.fixture(autouse=True)
    def unwritable(self, place, monkeypatch):
        monkeypatch.setenv("FEDPRIV_CACHE", str(place / "file" / "cache"))

    @pytest.mark.parametrize(
        "arguments",
        [("run", "dp-fedavg-tags"), ("data", "synthesize"), ("data", "info")],
        ids=" ".join,
    )
    def test_one_that_cannot_be_written_to_is_named_before_the_work(self, arguments, monkeypatch):
        monkeypatch.setattr(locate, "synthesize", None)
        said = fails(*arguments)
        assert "file/cache" in said and "FEDPRIV_CACHE" in said

    def test_nor_downloads(self, never):
        assert "FEDPRIV_CACHE" in fails("data", "fetch", "mnist")


def test_a_cache_that_can_only_be_read_is_read(place, tiny_corpus, monkeypatch):
    def make(target, tell):
        target.parent.mkdir(parents=True)
        target.symlink_to(tiny_corpus.directory)
        return tiny_corpus

    facts = {"source": None, "options": {}}
    locate.cached("tiny", make, **facts)
    arrays = cache.cached_arrays("a", {}, lambda: {"x": np.arange(3)})
    monkeypatch.setattr(cache, "locked", None)  # would have to write
    assert locate.cached("tiny", lambda *_: None, **facts).name == tiny_corpus.name
    assert list(cache.cached_arrays("a", {}, dict)["x"]) == list(arrays["x"]) == [0, 1, 2]


class TestFullDisk:
    @pytest.mark.slow
    def test_a_run_says_how_it_goes_on_and_does(self, place, tiny_corpus, monkeypatch):
        append = json_lines.append

        def full(path, line):
            if path.name == "rounds.jsonl":
                raise OSError(errno.ENOSPC, "No space left on device")
            append(path, line)

        monkeypatch.setattr(json_lines, "append", full)
        given = ("--corpus", tiny_corpus.directory, *SMALL, "--out", "run")
        said = fails("run", "dp-fedavg-tags", *given)
        assert "fedpriv run --resume run" in said
        monkeypatch.setattr(json_lines, "append", append)
        run("run", "--resume", "run")
        run("verify", "run")

    @pytest.mark.slow
    @pytest.mark.skipif(not FULL.exists(), reason="a disk that is always full")
    def test_a_page_leaves_nothing_half_made(self, place, tiny_corpus, monkeypatch):
        given = ("--corpus", tiny_corpus.directory, *SMALL, "--out", "run")
        run("run", "dp-fedavg-tags", *given)
        (place / "out").mkdir()
        (place / "out" / ".page.html.part").symlink_to(FULL)
        assert "out/page.html" in fails("compare", "run", "--out", "out/page.html")
        assert not list((place / "out").iterdir())

        def full(*given, **named):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(export, "write_tensors", full)
        assert "out/model" in fails("export", "run", "--to", "out/model")
        assert not list((place / "out").iterdir())

    @pytest.mark.slow
    def test_a_corpus_leaves_nothing_half_made(self, place, monkeypatch):
        def full(*given):
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(writer, "_write_sentences", full)
        shape = ("--users", 20, "--sentences", 400, "--public-users", 20)
        said = fails("data", "synthesize", *shape, "--out", "corpora/mine")
        assert "corpora/mine" in said
        assert not list((place / "corpora").iterdir())
        assert "cache/corpora/" in fails("data", "synthesize", *shape)
