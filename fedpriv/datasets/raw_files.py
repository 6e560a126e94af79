"""Search for raw files of a data set, and readers: packed or not, checked, of bounded size."""

from __future__ import annotations

import bz2
import gzip
import io
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
from fedpriv.libraries import need

_CHUNK = 1 << 20
_MEMORY_LIMIT = 1 << 30  # an .xz may ask its reader for a dictionary of 4 GiB
_DAMAGE = (OSError, zlib.error, lzma.LZMAError, tarfile.TarError)


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
    places = _places(name)
    where, given = ", ".join(map(str, places)), os.environ.get("FEDPRIV_DATA")
    if not given:
        where += " (FEDPRIV_DATA is not set)"
    elif not Path(given).expanduser().is_dir():
        where += f" (FEDPRIV_DATA is {given}, which is no folder)"
    if argument is not None:
        path = Path(argument).expanduser()
        if not path.exists():
            raise ValueError(f"{name}: there is no file or folder {path}; {get}")
        where, places = str(argument), [path, path / name, path / "downloads" / name]
        if path.is_file():
            known = ", ".join(file for choice in choices for file in choice)
            places, choices = [path.parent], [c for c in choices if path.name in c][:1]
            if not choices:
                raise ValueError(f"{name}: {path} has none of the names it is known by ({known})")
    missing = ""
    for place in places:
        for choice in choices:
            absent = [file for file in choice if not (place / file).is_file()]
            if not absent:
                return tuple(place / file for file in choice)
            if len(absent) < len(choice) and not missing:
                missing = f" ({place} has a part of them, but not {', '.join(absent)})"
    raise ValueError(f"the files of {name} are not in {where}{missing}; {get}")


def _places(name: str) -> list[Path]:
    given = Path(os.environ.get("FEDPRIV_DATA", "")).expanduser()
    local, shared = [], []
    for folder in data_folders():
        if folder == given:
            local = [folder, folder / name, folder / "downloads" / name]
        else:
            shared += [folder / name, folder]
    return [*local, cache_dir() / "downloads" / name, *shared]


def file_checksums(paths: Sequence[Path], progress: Progress | None = None) -> dict[str, str]:
    """Return the SHA-256 of files by name; remembered in the cache while the files stay."""
    return {path.name: remembered_sha256(path, cache_dir(), progress) for path in paths}


class _Xz(io.RawIOBase):
    """Plain bytes of an .xz or .lzma file, whose decoder, unlike `lzma.open`'s, has a limit."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._decoder = lzma.LZMADecompressor(memlimit=_MEMORY_LIMIT)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = b""
        while not piece:
            if not self._decoder.eof:
                more = self._packed.read(_CHUNK) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not more:
                    raise EOFError
            else:  # another stream may follow, after padding
                more = self._decoder.unused_data.lstrip(b"\0")
                while not more and (piece := self._packed.read(_CHUNK)):
                    more = piece.lstrip(b"\0")
                if not more:
                    return 0
                self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_LIMIT)
            piece = self._decoder.decompress(more, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


_OPENERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda packed: gzip.GzipFile(fileobj=packed),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lambda packed: io.BufferedReader(_Xz(packed), _CHUNK),
    b"\x5d\x00\x00": lambda packed: io.BufferedReader(_Xz(packed), _CHUNK),
}


@contextmanager
def open_plain(path: Path, named: Path | None = None) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a file that may be packed as .gz, .bz2, .xz or .lzma, recognised by its content.

    Gives the file itself, whose position says how far reading is, and its plain bytes. Messages
    name `named` where it is given.

    Raises:
        ValueError: Within the block, if it turns out to be truncated or damaged; names the file.
    """
    with path.open("rb") as packed:
        magic = packed.read(6)
        packed.seek(0)
        opener = next((o for start, o in _OPENERS.items() if magic.startswith(start)), None)
        with damage_of(named or path):
            yield packed, packed if opener is None else opener(packed)


@contextmanager
def damage_of(path: Path, *errors: type[BaseException]) -> Iterator[None]:
    """Turn what unpackers raise, and the errors named, into a `ValueError` that names the file."""
    try:
        yield
    except EOFError:
        raise ValueError(f"{path} is truncated; fetch it again") from None
    except (*_DAMAGE, *errors) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not the content
            raise
        raise ValueError(
            f"{path} is damaged or not what its name says ({error}); fetch it again"
        ) from None


def read_file(path: Path, *, at_most: int, progress: Progress | None = None) -> bytes:
    """Return the plain bytes of a file that may be packed, see `open_plain`.

    Args:
        path: The file.
        at_most: More plain bytes than this are refused, and never held.
        progress: Called with the bytes read of the file and their total.

    Raises:
        ValueError: If it is truncated, damaged, or larger than it may be.
    """
    content, total = bytearray(), path.stat().st_size
    with open_plain(path) as (packed, plain):
        while piece := plain.read(_CHUNK):
            content += piece
            if len(content) > at_most:
                raise ValueError(
                    f"{path} holds more than {at_most:,} bytes; this is not the file it should be"
                )
            if progress is not None:
                progress(packed.tell(), total)
    return bytes(content)


def read_lines(
    path: Path, *, longest: int, progress: Progress | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) of a text file that may be packed; any size.

    Raises:
        ValueError: If it is truncated or damaged, or a line has more than `longest` bytes.
    """
    total = path.stat().st_size
    with open_plain(path) as (packed, plain):
        for number, line in enumerate(iter(lambda: plain.readline(longest + 1), b""), start=1):
            if len(line) > longest:
                raise ValueError(f"{path}, line {number:,}: has more than {longest:,} bytes")
            if progress is not None and number % 1000 == 0:
                progress(packed.tell(), total)
            yield number, line


def tar_members(
    path: Path,
    wanted: Callable[[str], bool],
    *,
    at_most: int,
    progress: Progress | None = None,
) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the wanted plain files of a .tar that may be packed, in its order.

    Nothing is written, so names that point elsewhere do no harm.

    Raises:
        ValueError: If the archive is truncated or damaged, or a file in it has more than `at_most`
            bytes.
    """
    total = path.stat().st_size
    # Unpacked apart from tarfile, whose own stream takes an archive cut between two members for a
    # complete one: here the end and the checksum of the whole are read.
    with open_plain(path) as (packed, plain):
        with tarfile.open(fileobj=plain, mode="r|") as archive:
            for number, member in enumerate(archive):
                if progress is not None and number % 500 == 0:
                    progress(packed.tell(), total)
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


def unpack_one(path: Path, scratch: Path, named: str) -> Path:
    """Unpack a .7z archive's one member of this name, in whatever folder; return its place.

    Args:
        path: The archive.
        scratch: An existing folder of the caller's own; the file lies below it.
        named: The last part of the member's name, in any case.

    Guarantees:
        * Nothing outside `scratch` is read, written or removed: names that are absolute or lead
          upwards, links and devices are refused, and what was unpacked is looked at again.

    Raises:
        ValueError: If there is not exactly one such member, it is no ordinary file, it leads out
            of the archive, there is no room for it, or the archive is damaged; or if py7zr is not
            installed.
    """
    need("py7zr", "data", "a 7z archive")
    import py7zr  # slow to import, and rarely needed
    from py7zr.exceptions import ArchiveError

    with damage_of(path, ArchiveError), py7zr.SevenZipFile(path) as archive:
        wanted: list[tuple[Any, PurePosixPath]] = [
            (member, place)
            for member in archive.files
            if not member.is_directory
            and (place := PurePosixPath(member.filename.replace("\\", "/"))).name.lower()
            == named.lower()
        ]
        if len(wanted) != 1:  # two of the very same name count as two
            raise ValueError(f"{path} holds {len(wanted)} files named {named}, not one")
        member, place = wanted[0]
        # A colon: a drive of Windows. Backslashes lead upwards there too.
        if place.is_absolute() or ".." in place.parts or ":" in place.parts[0]:
            raise ValueError(
                f"{path} holds {member.filename!r}, a name that leads out of the archive; do not "
                "use this file, download it from where it is published"
            )
        odd = (
            member.is_symlink or member.is_junction or member.st_fmt not in (None, 0, stat.S_IFREG)
        )
        if not odd:
            if member.uncompressed > shutil.disk_usage(scratch).free:
                raise ValueError(
                    f"{path} unpacks to {member.uncompressed} bytes; {scratch} has no room for them"
                )
            archive.extract(scratch, targets=[member.filename])
            unpacked = scratch / member.filename
            unpacked.parent.resolve().relative_to(scratch.resolve())
            odd = not stat.S_ISREG(unpacked.lstat().st_mode)
        if odd:
            raise ValueError(
                f"{path} holds {member.filename!r} as a link or a device, not as a file; do not "
                "use this archive, download it from where it is published"
            )
    unpacked.chmod(0o600)  # whatever the archive says of its mode
    return unpacked
