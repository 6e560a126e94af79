"""Fixtures of the backends' tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def staff():
    """The worker contexts of the tests, under a name that workers find too."""
    if HERE not in sys.path:
        sys.path.append(HERE)
    import staff

    return staff
