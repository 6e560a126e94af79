"""Calls of `os` that fail, or that are noted."""

import os
from collections.abc import Callable
from typing import Any

import pytest


def failing(error: int) -> Callable[..., Any]:
    """Return a function of `os` that always fails with an error number."""

    def fail(*args: Any, **named: Any) -> Any:
        raise OSError(error, os.strerror(error))

    return fail


def noted(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Return the list to which functions of `os` add their names when they are called."""
    order: list[str] = []

    def noting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (order.append(name), real(*args))[1]

    for name in names:
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    return order
