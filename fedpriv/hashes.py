"""SHA-256 in hexadecimal, of a file's bytes and of a JSON document.

Ledgers, manifests, caches and recorded results are recognised by these digests later, so the bytes
that they are of never change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Progress = Callable[[int, int], None]
"""Called as (how far it is, how far it goes; 0 when not known); a new length is a new stage."""

_CHUNK = 1 << 20


def file_sha256(path: Path, progress: Progress | None = None) -> str:
    """Return the SHA-256 of a file's bytes, read as a stream.

    Args:
        path: The file.
        progress: Called with the bytes read so far, and with all.

    Raises:
        OSError: If it cannot be read.
    """
    digest, total = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            if progress is not None:
                progress(file.tell(), total)
    return digest.hexdigest()


def document_sha256(document: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys.

    >>> document_sha256({"a": 1, "b": [2]}) == document_sha256({"b": [2], "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def hex_digest(name: str, value: Any) -> str:
    """Return a SHA-256 in hex, checked.

    Raises:
        ValueError: If it is not 64 lowercase hex digits.
    """
    if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise ValueError(f"{name} {value!r} is not 64 hex digits; give a SHA-256")
    return value
