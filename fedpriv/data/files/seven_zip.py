"""Unpack one file of a `.7z`, whose names are whatever the one who packed it wrote."""

from __future__ import annotations

import lzma
import shutil
import stat
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

_BROKEN = (EOFError, OSError, lzma.LZMAError, zlib.error)


def unpack_one(path: Path, scratch: Path, named: str) -> Path:
    """Unpack the one member of this name, in whatever folder of the archive, and return its place.

    Args:
        path: The archive.
        scratch: An existing folder of the caller's own; the file lies below it.
        named: The last part of the member's name, in any case.

    Guarantees:
        * Nothing outside `scratch` is read, written or removed: names that are absolute or lead
          upwards, links and devices are refused, and what was unpacked is looked at again.

    Raises:
        ValueError: If there is not exactly one such member, it is no ordinary file, it leads out
            of the archive, there is no room for it, or the archive is damaged.
    """
    import py7zr  # slow to import, and rarely needed
    from py7zr.exceptions import ArchiveError

    def is_wanted(member: Any) -> bool:
        last = member.filename.replace("\\", "/").rpartition("/")[2]
        return not member.is_directory and last.lower() == named.lower()

    try:
        with py7zr.SevenZipFile(path) as archive:
            member = _the_one(path, archive.files, is_wanted, named)
            size = member.uncompressed
            if size > shutil.disk_usage(scratch).free:
                raise ValueError(f"{path} unpacks to {size} bytes; {scratch} has no room for them")
            archive.extract(scratch, targets=[member.filename])
        unpacked = scratch / member.filename
        unpacked.parent.resolve().relative_to(scratch.resolve())
        if not stat.S_ISREG(unpacked.lstat().st_mode):
            raise ValueError(_not_a_file(path, member.filename))
        unpacked.chmod(0o600)  # whatever the archive says of its mode
    except (ArchiveError, *_BROKEN) as error:
        raise ValueError(f"{path} is cut short or damaged ({error}); download it again") from error
    return unpacked


def _the_one(path: Path, members: Any, is_wanted: Callable[[Any], bool], named: str) -> Any:
    wanted = [member for member in members if is_wanted(member)]
    if len(wanted) != 1:  # two of the very same name count as two
        raise ValueError(f"{path} holds {len(wanted)} files named {named}, not one")
    (member,) = wanted
    parts = PurePosixPath(member.filename.replace("\\", "/")).parts
    # A colon: a drive of Windows. Backslashes lead upwards there too.
    if parts[0].startswith("/") or ".." in parts or ":" in parts[0]:
        raise ValueError(
            f"{path} holds {member.filename!r}, a name that leads out of the archive; do not use "
            "this file, download it from where it is published"
        )
    if member.is_symlink or member.is_junction or member.st_fmt not in (None, 0, stat.S_IFREG):
        raise ValueError(_not_a_file(path, member.filename))
    return member


def _not_a_file(path: Path, name: str) -> str:
    return (
        f"{path} holds {name!r} as a link or a device, not as a file; do not use this archive, "
        "download it from where it is published"
    )
