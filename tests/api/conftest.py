"""Fixtures of the API's tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fedpriv as fp


@pytest.fixture(scope="session")
def dense() -> Iterator[ModuleType]:
    """The module `dense`, importable by its name."""
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    yield importlib.import_module("dense")
    sys.path.remove(folder)
    sys.modules.pop("dense", None)


@pytest.fixture(scope="session")
def kept(dense: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> fp.Run:
    """A run that is kept; nobody changes its folder."""
    out = tmp_path_factory.mktemp("runs") / "dense"
    return fp.run("dense:experiment", out, progress=False)
