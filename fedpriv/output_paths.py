"""Places to write to: refused before the work where that can be known, explained where it fails."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_KIND = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY)


def check_file(path: Path, option: str) -> None:
    """Refuse a file that could not be written; one that exists would be overwritten.

    Nothing is left behind.

    Args:
        path: The file.
        option: What it was given as, such as "--out".

    Raises:
        ValueError: If it is a folder, or cannot be made where it is.
    """
    if path.is_dir():
        raise ValueError(
            f"{option} {path} is a folder; name a file, such as {path / f'new{path.suffix}'}"
        )
    _check_parents(path, path.parent, option)


def check_folder(path: Path, option: str) -> None:
    """Refuse a folder that could not be written into, or made.

    Raises:
        ValueError: If it is a file, or cannot be written to.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"{option} {path} is a file; give a folder, or remove it")
    _check_parents(path, path, option)


def check_new_folder(path: Path | None, option: str, *, or_empty: bool = False) -> None:
    """Refuse a folder that exists or could not be made; None names no folder.

    Args:
        path: The folder.
        option: What it was given as.
        or_empty: Whether it may exist and be empty.

    Raises:
        ValueError: If it is one.
    """
    if path is None:
        return
    check_folder(path, option)
    if path.exists() and not (or_empty and not any(path.iterdir())):
        raise ValueError(
            f"{option} {path} exists already; give a folder that does not exist yet, or remove it"
        )


@contextmanager
def writing_to(place: Path, then: str = "") -> Iterator[None]:
    """Explain errors of writing that come from what is inside.

    Args:
        place: What is written.
        then: What is to be done afterwards, behind what is to be done about the error.

    Raises:
        ValueError: In the place of such an error.
    """
    try:
        yield
    except Exception as error:
        why = why_unwritten(error, place)
        if why is None or getattr(error, "__notes__", ()):  # a note says whose error it is
            raise
        raise ValueError(why + then) from error


def refuse_links(folder: Path) -> None:
    """Refuse a folder in which a symbolic link lies: it leads writing and deleting elsewhere.

    The folder itself may be one.

    Raises:
        ValueError: With the first link, and what to do.
    """
    for place, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            path = Path(place, name)
            if path.is_symlink():
                raise ValueError(
                    f"{path} is a link, and a run is not read or written through links; put the "
                    "file or folder that it leads to in its place"
                )


def keep_private(folder: Path) -> None:
    """Restrict a folder of users' data to its owner: mode 0700, files in it 0600.

    Anyone who shares a corpus with others on purpose says so afterwards, by chmod.
    """
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read, whole or not at all, and synced.

    Raises:
        OSError: If it cannot be written; the file is then as it was.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)  # of a killed process of that number
    try:
        made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(made, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def why_unwritten(error: BaseException, place: Path | None = None) -> str | None:
    """Return what to do about an error of writing, in a line; None if it is of another kind.

    Args:
        error: What was raised.
        place: What was written: a full disk says of no file that it has no room for it.

    >>> why_unwritten(OSError(errno.ENOSPC, "No space left on device"), Path("runs/a"))
    'no room is left on the disk of runs/a: free some space, or write to another disk'
    """
    if isinstance(error, sqlite3.OperationalError):
        full, number, name = "full" in str(error), None, None
    elif isinstance(error, OSError):
        number, name = error.errno, error.filename
        # NumPy counts what it wrote and does not ask why it was less.
        full = number in _FULL or (number is None and " requested and " in str(error))
    else:
        return None
    if full:
        where = f" of {place or name}" if place or name else ""
        return f"no room is left on the disk{where}: free some space, or write to another disk"
    if name and number in _REFUSED:
        reason = os.strerror(number).lower()
        return f"{name} cannot be opened or written ({reason}); choose another, or allow it"
    if name and number in _KIND:
        return f"{name} is in the way ({os.strerror(number).lower()}); choose another, or remove it"
    return None


def _check_parents(path: Path, folder: Path, option: str) -> None:
    """Refuse a path where no file can be made in the folder, or the nearest one above it."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise ValueError(
            f"{option} {path} cannot be written: {folder} is a file; give another place"
        )
    try:
        # Only a trial shows it: permissions are no answer for root, or where the disk is read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(
            f"{option} {path} cannot be written: {reason} in {folder}; give a place that can be "
            "written to"
        ) from error
