"""Records as lines of JSON, one object a line, appended as they come.

A process that is killed while it writes leaves half a line at the end. Readers leave it out, so a
file may be read while it is written to; the next writer cuts it off first.

>>> from tempfile import TemporaryDirectory
>>> folder = TemporaryDirectory()
>>> path = Path(folder.name) / "rounds.jsonl"
>>> append(path, {"round_num": 1})
>>> with path.open("a") as file:
...     _ = file.write('{"round_')
>>> read(path)
[{'round_num': 1}]
>>> folder.cleanup()
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import BytesIO
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
            rows.append(parse_object(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not a JSON object: {error}") from error
    return rows


def read_last(path: Path) -> dict[str, Any]:
    """Return the last object of a file; raise `ValueError` if it holds none.

    Only the end of the file is read, however long it is.
    """
    return _last(path)[1]


def append(path: Path, row: Mapping[str, Any], *, mode: int = 0o666) -> None:
    """Write one object behind the others; the file is made, with this mode, if there is none."""
    made = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
    with os.fdopen(made, "a", encoding="utf-8") as out:
        out.write(_line(row))


def replace_last(path: Path, row: Mapping[str, Any]) -> None:
    """Write an object in the place of the last one: a reader sees either of the two.

    Only the end of the file is read and written, so the cost does not grow with the file.

    Raises:
        ValueError: If there is none.
    """
    start, _ = _last(path)
    with path.open("r+b") as out:
        out.seek(start)
        out.write(_line(row).encode())  # the rest of a longer line is left out as a torn one
        out.truncate()


def cut_torn_line(path: Path) -> None:
    """Remove the last line where `read` leaves it out, so that nothing is written behind it."""
    if path.is_file():
        content = path.read_bytes()
        whole = len(_whole(content))
        if whole != len(content):
            os.truncate(path, whole)


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raises:
        ValueError: If it is none, a name occurs twice in an object (readers differ in which they
            take), or it is nested too deeply.
    """
    try:
        value = json.loads(text, object_pairs_hook=_with_names_once)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}")
    return value


def _with_names_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {twice!r} twice")
    return found


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _whole(content: bytes) -> bytes:
    """Return the content up to a last line that was torn."""
    end = content.rfind(b"\n") + 1
    start = content.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        parse_object(content[start:end])
    except ValueError:
        return content[:start]
    return content[:end]


_CHUNK = 1 << 16


def _last(path: Path) -> tuple[int, dict[str, Any]]:
    """Return where the last object of a file begins, and the object."""
    with path.open("rb") if path.is_file() else BytesIO() as file:
        size = file.seek(0, os.SEEK_END)
        length = min(size, _CHUNK)
        while True:
            file.seek(size - length)
            content = file.read(length)
            # Whole are the last line and, where it is torn, the one before it.
            if length == size or content.count(b"\n") > 2:
                break
            length = min(size, 2 * length)
    whole = _whole(content)
    start = whole.rfind(b"\n", 0, max(len(whole) - 1, 0)) + 1
    if not whole:
        raise ValueError(f"{path} holds no line")
    return size - length + start, parse_object(whole[start:])
