"""Libraries without type stubs, loaded where they are used and taken for what they are: untyped."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def library(name: str) -> Any:
    """Return a module by its name, such as "scipy.signal"; what it holds is `Any`."""
    return import_module(name)
