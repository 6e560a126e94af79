"""Files that a task brings: what the model's inputs and outputs mean, such as a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.tasks.task import BringsFiles

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.[a-z0-9]+")
#: What a run folder or an export holds itself.
# fmt: off
_TAKEN = frozenset({
    "experiment.json", "data.key", "ledger.jsonl", "rounds.jsonl", "diagnostics.jsonl",
    "backends.jsonl", "start.safetensors", "selected.safetensors", "state.safetensors",
    "summary.json", "report.html", "model.safetensors", "README.md",
})
# fmt: on


def checked_files(task: Any) -> Mapping[str, bytes]:
    """Return the files that a task brings, by name; of a task that brings none, nothing.

    Raises:
        ValueError: If a name is no file name or another file's, or a content is not bytes.
    """
    if not isinstance(task, BringsFiles):
        return {}
    files = task.files()
    for name, content in files.items():
        if not _NAME.fullmatch(name) or name in _TAKEN:
            raise ValueError(
                f"the task's file {name!r} cannot lie in a run folder; give it a plain name of its "
                "own, such as 'words.json'"
            )
        if not isinstance(content, bytes):
            raise ValueError(
                f"the task's file {name!r} is a {type(content).__name__}; give its bytes, such as "
                "json.dumps(...).encode()"
            )
    return files


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, each in one step."""
    for name, content in files.items():
        part = folder / f".{name}.part"
        part.write_bytes(content)
        part.replace(folder / name)
