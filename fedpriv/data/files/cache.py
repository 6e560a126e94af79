"""The folder in which fetched files and prepared corpora are kept, and locks on its entries."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from fedpriv.data.files.unpack import Progress
from fedpriv.hashes import file_sha256


def cache_dir() -> Path:
    """Return the cache folder: `FEDPRIV_CACHE` if set, else the platform's own for fedpriv."""
    chosen = os.environ.get("FEDPRIV_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("fedpriv"))


@contextmanager
def locked(name: str, cache: Path) -> Iterator[None]:
    """Hold the lock called `name` of a cache; other processes wait, a killed one lets go of it.

    Raises:
        ValueError: If the cache cannot be written to.
    """
    folder = cache / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / f"{name}.lock").open("a+b")
    except OSError as error:
        raise ValueError(
            f"the cache {cache} cannot be written to ({(error.strerror or str(error)).lower()}); "
            "set FEDPRIV_CACHE to a folder that can"
        ) from error
    with opened as file:
        try:
            import fcntl
        except ImportError:  # elsewhere: moving into place is atomic, so work is done twice at most
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def remembered_sha256(path: Path, cache: Path, progress: Progress | None = None) -> str:
    """Return `file_sha256`, remembered in the cache while the file's size and time stay."""
    stat = path.stat()
    # The change time too: unlike the modification time, copying tools cannot set it.
    facts = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    note = cache / "digests" / f"{key}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["facts"] == facts and len(known["sha256"]) == 64:
            return known["sha256"]
    digest = file_sha256(path, progress)
    with suppress(OSError):  # only a convenience
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, json.dumps({"facts": facts, "sha256": digest}))
    return digest


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that a reader sees the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
