"""Unpacks an .xz or legacy .lzma file to a plain one: checked, streamed, bounded."""

from __future__ import annotations

import errno
import lzma
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

Progress = Callable[[int, int], None]
"""Called as (how far it is, how far it goes; 0 when not known); a new length is a new stage."""

_CHUNK = 1 << 20
_MEMORY_LIMIT = 1 << 30  # an .xz may ask its reader for a dictionary of 4 GiB
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
        with target.open("xb") as out:
            for piece, consumed in _pieces(source):
                if written < len(starts_with):
                    expected = starts_with[written : written + len(piece)]
                    if not piece.startswith(expected):
                        raise ValueError(_wrong(source, starts_with))
                if shutil.disk_usage(target.parent).free < len(piece) + _KEEP_FREE:
                    raise OSError(errno.ENOSPC, "the disk is nearly full")
                out.write(piece)
                written += len(piece)
                if progress is not None:
                    progress(consumed, total)
        if written < len(starts_with):
            raise ValueError(_wrong(source, starts_with))
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


def _wrong(source: Path, starts_with: bytes) -> str:
    return f"{source} does not unpack to a file that begins with {starts_with!r}: a wrong file?"


def _pieces(source: Path) -> Iterator[tuple[bytes, int]]:
    """Yield (plain bytes, compressed bytes read so far), stream after stream."""
    decoder = lzma.LZMADecompressor(memlimit=_MEMORY_LIMIT)
    pending = b""
    consumed = 0
    try:
        with source.open("rb") as file:
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
                # At most 4 MiB come out at a time, so a bomb fills the disk check, not memory.
                piece = decoder.decompress(pending, 4 * _CHUNK)
                pending = decoder.unused_data if decoder.eof else b""
                yield piece, consumed
    except lzma.LZMAError as error:
        raise ValueError(
            f"{source} is damaged, or not an .xz or .lzma file, near byte {consumed:,} "
            f"({str(error).lower()}); fetch it again"
        ) from None
    if not decoder.eof:
        raise ValueError(f"{source} is truncated after {consumed:,} bytes; fetch it again")
