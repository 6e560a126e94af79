"""The files of docs/studies.md."""

import re
from pathlib import Path

import pytest

from fedpriv.studies.record import read_study
from fedpriv.studies.study import load_study
from tests.harness.command_line import fedpriv

PAGE = (Path(__file__).parents[2] / "docs/studies.md").read_text("utf-8")


@pytest.fixture
def place(tiny_corpus, tmp_path, monkeypatch):
    """A folder with the page's files; the corpus that experiments find is the tiny one."""
    for kind, name, text in re.findall(r"```(toml|python)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        assert name.endswith({"toml": ".toml", "python": ".py"}[kind])
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_files_are_run(place):
    done = fedpriv("study", "my_study.py:study", "--out", "a", "--workers", "2")
    assert done.exit_code == 0, done
    assert [trial.failure for trial in read_study("a").trials] == [None] * 4
    assert load_study("searched.toml").search.compose
    assert "C = 0.1" in (place / "a" / "index.html").read_text("utf-8")
    done = fedpriv("study", "searched.toml", "--out", "b", "--workers", "1")
    assert done.exit_code == 0, done
    found = read_study("b")
    assert len(found.document["searched"]) == 2 and len(found.trials) == 2
    assert len(found.document["privacy"]) > 2
