"""Fixtures of the Flower tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fedpriv.datasets.stackexchange.synthetic import Shape, synthesize


def load(path: str) -> ModuleType:
    """Import a helper, by its path from this folder."""
    file = Path(__file__).parent / path
    name = file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def stub() -> ModuleType:
    """The in-process grid and its made-up users."""
    return load("stub_grid.py")


@pytest.fixture(scope="session")
def processes() -> ModuleType:
    """Starts and stops real Flower processes."""
    return load("real/processes.py")


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic corpus of 24 users, 150 words and 10 tags."""
    path = tmp_path_factory.mktemp("corpora") / "tiny"
    shape = Shape(
        num_users=24, num_sentences=500, public_users=6, num_words=200, num_tags=12, num_topics=4
    )
    synthesize(path, shape=shape, max_words=150, max_tags=10)
    return path


@pytest.fixture
def flower(processes: ModuleType, tmp_path: Path) -> Iterator:
    """Flower's own folder; whatever is started from it is stopped with the test."""
    started = processes.Flower(tmp_path / "flower-home")
    try:
        yield started
    finally:
        started.stop()
        assert not started.left()
