"""Fixtures of runs that decide their prices on the way."""

import sys

import pytest

from tests.running.adaptive.descent import SOURCE


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """The own file, in a working directory of its own."""
    (tmp_path / "own_descent.py").write_text(SOURCE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_descent", None)
