"""Search for raw files of a data set, and readers: packed or not, checked, of bounded size."""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from fedpriv.datasets.cache import cache_dir, data_folders, remembered_sha256
from fedpriv.hashes import Progress

_CHUNK = 1 << 20
_MEMORY_LIMIT = 1 << 30  # an .xz may ask its reader for a dictionary of 4 GiB


def find_files(
    name: str,
    choices: Sequence[Sequence[str]],
    argument: str | os.PathLike[str] | None = None,
    *,
    get: str,
) -> tuple[Path, ...]:
    """Return the files of a data set.

    Places, in this order: `argument` alone if it is given; the folder `FEDPRIV_DATA`; the
    downloads in the cache; a folder `../shared/data` next to the checkout or the working directory.
    In each place, the folder itself and one called `name` in it are looked at.

    Args:
        name: Of the data set, as `fedpriv data fetch` has it.
        choices: The forms it comes in, best first; each the files that make it up.
        argument: A folder, or one of the files.
        get: Instructions for getting the files, for the message when there are none.

    Raises:
        ValueError: If the files are not there, or some of them are missing.
    """
    if argument is not None:
        path = Path(argument).expanduser()
        if not path.exists():
            raise ValueError(f"{name}: there is no file or folder {path}; {get}")
        if path.is_file():
            mine = [choice for choice in choices if path.name in choice]
            if not mine:
                known = ", ".join(file for choice in choices for file in choice)
                raise ValueError(f"{name}: {path} has none of the names it is known by ({known})")
            return _complete(name, path.parent, mine[:1], get)
        places = [path, path / name, path / "downloads" / name]
    else:
        places = _places(name)
    missing = ""
    for place in places:
        for choice in choices:
            absent = [file for file in choice if not (place / file).is_file()]
            if not absent:
                return tuple(place / file for file in choice)
            if len(absent) < len(choice) and not missing:
                missing = f" ({place} has a part of them, but not {', '.join(absent)})"
    where = str(argument) if argument is not None else "FEDPRIV_DATA, the cache or ../shared/data"
    raise ValueError(f"the files of {name} are not in {where}{missing}; {get}")


def file_checksums(paths: Sequence[Path], progress: Progress | None = None) -> dict[str, str]:
    """Return the SHA-256 of files by name; remembered in the cache while the files stay."""
    return {path.name: remembered_sha256(path, cache_dir(), progress) for path in paths}


def read_file(path: Path, *, at_most: int, progress: Progress | None = None) -> bytes:
    """Return the plain bytes of a file that may be packed as .gz or .xz, recognised by its content.

    Args:
        path: The file.
        at_most: More plain bytes than this are refused, and never held.
        progress: Called with the bytes read of the file and their total.

    Raises:
        ValueError: If it is truncated, damaged, or larger than it may be.
    """
    pieces: list[bytes] = []
    length = 0
    total = path.stat().st_size
    with path.open("rb") as raw, _readable(path):
        for piece in _plain(raw, path):
            length += len(piece)
            if length > at_most:
                raise ValueError(
                    f"{path} holds more than {at_most:,} bytes; this is not the file it should be"
                )
            pieces.append(piece)
            if progress is not None:
                progress(raw.tell(), total)
    return b"".join(pieces)


def read_lines(
    path: Path, *, longest: int, progress: Progress | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) of a text file that may be packed as .gz; any size.

    Raises:
        ValueError: If it is truncated or damaged, or a line has more than `longest` bytes.
    """
    total = path.stat().st_size
    with path.open("rb") as raw, _readable(path):
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = gzip.GzipFile(fileobj=raw) if packed else raw
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            if len(line) > longest:
                raise ValueError(f"{path}, line {number:,}: has more than {longest:,} bytes")
            if progress is not None and number % 1000 == 0:
                progress(raw.tell(), total)
            yield number, line


def tar_members(
    path: Path,
    wanted: Callable[[str], bool],
    *,
    at_most: int,
    progress: Progress | None = None,
) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the wanted plain files of a .tar.gz, in its order.

    Nothing is written, so names that point elsewhere do no harm.

    Raises:
        ValueError: If the archive is truncated or damaged, or a file in it has more than `at_most`
            bytes.
    """
    total = path.stat().st_size
    # Unpacked by gzip itself, which checks the end and the checksum of the whole; tarfile's own
    # stream takes an archive cut between two members for a complete one.
    with path.open("rb") as raw, _readable(path), gzip.GzipFile(fileobj=raw) as plain:
        with tarfile.open(fileobj=plain, mode="r|") as archive:
            for number, member in enumerate(archive):
                if progress is not None and number % 500 == 0:
                    progress(raw.tell(), total)
                if not (member.isfile() and wanted(member.name)):
                    continue
                if member.size > at_most:
                    raise ValueError(
                        f"{path}: {member.name} has {member.size:,} bytes, more than {at_most:,}; "
                        "this is not the archive it should be"
                    )
                content = archive.extractfile(member)
                if content is not None:
                    yield member.name, content.read()
        while plain.read(_CHUNK):
            pass
        if progress is not None:
            progress(total, total)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what the unpackers raise into a ValueError that names the file."""
    try:
        yield
    except EOFError:
        raise ValueError(f"{path} is truncated; fetch it again") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise ValueError(
            f"{path} is damaged or not what its name says ({error}); fetch it again"
        ) from None


def _plain(raw: BinaryIO, path: Path) -> Iterator[bytes]:
    magic = raw.read(6)
    raw.seek(0)
    if magic[:2] == b"\x1f\x8b":
        packed = gzip.GzipFile(fileobj=raw)
        while piece := packed.read(_CHUNK):
            yield piece
    elif magic == b"\xfd7zXZ\x00":
        for piece, _ in _unpacked_pieces(raw, path):
            yield piece
    else:
        while piece := raw.read(_CHUNK):
            yield piece


def _places(name: str) -> list[Path]:
    given = os.environ.get("FEDPRIV_DATA")
    folders = data_folders()
    # data_folders begins with FEDPRIV_DATA where that is a folder; the cache comes next.
    first = 1 if given and Path(given).expanduser().is_dir() else 0
    own = [place for f in folders[:first] for place in (f, f / name, f / "downloads" / name)]
    return [
        *own,
        cache_dir() / "downloads" / name,
        *(place for f in folders[first:] for place in (f / name, f)),
    ]


def _complete(
    name: str, folder: Path, choices: Sequence[Sequence[str]], get: str
) -> tuple[Path, ...]:
    absent = [file for file in choices[0] if not (folder / file).is_file()]
    if absent:
        raise ValueError(f"{name}: {', '.join(absent)} is missing in {folder}; {get}")
    return tuple(folder / file for file in choices[0])


_KEEP_FREE = 64 << 20


def unpack(
    source: Path,
    target: Path,
    *,
    starts_with: bytes,
    progress: Progress | None = None,
) -> None:
    """Unpack `source` into the new file `target`, or leave nothing there and say why.

    Memory does not depend on the size of either file.

    Args:
        source: An .xz or .lzma file, recognised by its content, not by its name.
        target: Where the plain bytes go; it must not exist.
        starts_with: Bytes the plain file must begin with, so that a wrong file is refused before
            gigabytes of it are written.
        progress: Called with the compressed bytes read and their total, about once a megabyte.

    Raises:
        ValueError: If the file is truncated, damaged, followed by something else, does not unpack
            to `starts_with`, or does not fit on the disk of `target`.
    """
    total = source.stat().st_size
    written = 0
    try:
        with source.open("rb") as file, target.open("xb") as out:
            for piece, consumed in _unpacked_pieces(file, source):
                if written < len(starts_with):
                    expected = starts_with[written : written + len(piece)]
                    if not piece.startswith(expected):
                        raise ValueError(_wrong_start(source, starts_with))
                if shutil.disk_usage(target.parent).free < len(piece) + _KEEP_FREE:
                    raise OSError(errno.ENOSPC, "the disk is nearly full")
                out.write(piece)
                written += len(piece)
                if progress is not None:
                    progress(consumed, total)
        if written < len(starts_with):
            raise ValueError(_wrong_start(source, starts_with))
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ValueError(
            f"no room in {target.parent} to unpack {source}: {written:,} bytes were written from "
            f"{total:,} compressed ones; free some space there, or set TMPDIR to a larger disk"
        ) from None
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _wrong_start(source: Path, starts_with: bytes) -> str:
    return f"{source} does not unpack to a file that begins with {starts_with!r}: a wrong file?"


def _unpacked_pieces(file: BinaryIO, source: Path) -> Iterator[tuple[bytes, int]]:
    """Yield (plain bytes, compressed bytes read so far) of an .xz or .lzma, stream after stream."""
    decoder = lzma.LZMADecompressor(memlimit=_MEMORY_LIMIT)
    pending, consumed, streams = b"", 0, 0
    try:
        while True:
            if not pending and (decoder.eof or decoder.needs_input):
                pending = file.read(_CHUNK)
                consumed += len(pending)
                if not pending:
                    break
            if decoder.eof:
                pending = pending.lstrip(b"\x00")  # the padding that .xz allows
                if not pending:
                    continue
                decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_LIMIT)
                streams += 1
            # At most 4 MiB come out at a time, so a bomb fills the disk check, not memory.
            piece = decoder.decompress(pending, 4 * _CHUNK)
            pending = decoder.unused_data if decoder.eof else b""
            yield piece, consumed
    except lzma.LZMAError as error:
        what = "followed by something else" if streams else "not an .xz or .lzma file"
        raise ValueError(
            f"{source} is damaged, or {what}, near byte {consumed:,} ({str(error).lower()}); fetch "
            "it again"
        ) from None
    if not decoder.eof:
        also = ", or followed by something else" if streams else ""
        raise ValueError(f"{source} is truncated after {consumed:,} bytes{also}; fetch it again")


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
