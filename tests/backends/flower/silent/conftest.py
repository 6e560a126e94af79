"""Fixtures of the tests of nodes that stay silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What ends uploads and trainings that hang, at the latest after the test."""
    event = threading.Event()
    yield event
    event.set()
