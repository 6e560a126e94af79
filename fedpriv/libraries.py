"""Libraries that are untyped, and those that only an extra of fedpriv brings."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def library(name: str) -> Any:
    """Return a module by its name, such as "scipy.signal"; what it holds is `Any`."""
    return import_module(name)


def need(module: str, extra: str, wanted_by: str) -> None:
    """Refuse to go on without a library that an extra of fedpriv brings.

    Where fedpriv is installed pip takes that installation and adds the extra's packages alone.

    Args:
        module: Top-level name that is imported next.
        extra: Of pyproject.toml.
        wanted_by: What cannot be done without, as the beginning of the sentence.

    Raises:
        ValueError: If it is not installed; in one line, with the command that installs it.
    """
    if find_spec(module) is None:
        raise ValueError(
            f"{wanted_by} needs {module}, which is not installed; run "
            f"pip install 'fedpriv[{extra}]'"
        )
