"""Short runs of tag prediction, each made once and copied for every test."""

import shutil
from pathlib import Path

import pytest

from tests.harness import tag_runs


@pytest.fixture(scope="session")
def _finished(tiny_corpus, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    tag_runs.start(tiny_corpus, out).run()
    return out


@pytest.fixture(scope="session")
def _interrupted(tiny_corpus, tmp_path_factory) -> Path:
    return tag_runs.interrupted(tiny_corpus, tmp_path_factory.mktemp("interrupted") / "run")


@pytest.fixture
def finished(_finished, tmp_path) -> Path:
    """The folder of a run that came to its end."""
    return shutil.copytree(_finished, tmp_path / "run")


@pytest.fixture
def interrupted(_interrupted, tmp_path) -> Path:
    """The folder of a run that was killed in its fourth round, after the cohort was drawn."""
    return shutil.copytree(_interrupted, tmp_path / "interrupted")
