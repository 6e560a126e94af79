"""Finds the raw files of a data set, and reads them: packed or not, checked, of bounded size."""

from __future__ import annotations

import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedpriv.data.files.cache import cache_dir, remembered_sha256
from fedpriv.data.files.folders import data_folders
from fedpriv.data.files.unpack import Progress

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
        get: How a person gets the files, said when there are none.

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


def checksums(paths: Sequence[Path], progress: Progress | None = None) -> dict[str, str]:
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
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_LIMIT)
        while not decoder.eof:
            pending = raw.read(_CHUNK) if decoder.needs_input else b""
            if decoder.needs_input and not pending:
                raise EOFError
            yield decoder.decompress(pending, 4 * _CHUNK)
        if (decoder.unused_data + raw.read(_CHUNK)).strip(b"\x00"):
            raise ValueError(f"{path} is followed by something else; fetch it again")
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
