"""Records as lines of JSON, one object a line, appended as they come.

A process that is killed while it writes leaves half a line at the end. Whoever reads leaves it out,
so a file may be read while somebody writes to it; whoever goes on writing cuts it off first.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "rounds.jsonl"
>>> append(path, {"round_num": 1})
>>> with path.open("a") as file:
...     _ = file.write('{"round_')
>>> read(path)
[{'round_num': 1}]
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file; an absent file has none.

    The last line is left out if it does not end in a newline or is no JSON object.

    Raises:
        ValueError: If any other line is no JSON object, naming the file and the line.
    """
    if not path.is_file():
        return []
    # After the last newline comes an empty rest.
    lines = _whole(path.read_bytes()).split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_object(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not a JSON object: {error}") from error
    return rows


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Write one object behind the others; the file is made if there is none."""
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row, ensure_ascii=False) + "\n")


def replace_last(path: Path, row: Mapping[str, Any]) -> None:
    """Write an object in the place of the last one, in one step: a reader sees either of the two.

    Raises:
        ValueError: If there is none.
    """
    rows = read(path)
    if not rows:
        raise ValueError(f"{path} holds no line to replace")
    content = _whole(path.read_bytes())
    before = content[: content.rfind(b"\n", 0, len(content) - 1) + 1]
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(before + (json.dumps(row, ensure_ascii=False) + "\n").encode())
    os.replace(part, path)


def cut_torn_line(path: Path) -> None:
    """Remove the last line where `read` leaves it out, so that nothing is written behind it."""
    if path.is_file():
        content = path.read_bytes()
        whole = len(_whole(content))
        if whole != len(content):
            os.truncate(path, whole)


def _whole(content: bytes) -> bytes:
    """Return the content up to a last line that was torn."""
    end = content.rfind(b"\n") + 1
    start = content.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        _object(content[start:end])
    except ValueError:
        return content[:start]
    return content[:end]


def _object(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}")
    return value
