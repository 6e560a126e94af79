"""Stream the rows of a Stack Exchange `Posts.xml`, plain or compressed, in constant memory.

Both dialects in circulation are read: tags as `<a><b>` and as `|a|b|`, with and without
`ContentLicense` and other attributes, in any order. The XML is parsed by events through
defusedxml: no tree is built, so nothing grows, and a document type, an entity declaration or an
external reference is refused before it can expand.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from xml.sax import SAXException
from xml.sax.handler import ContentHandler

from defusedxml import sax as defused_sax

from fedpriv.data.files.seven_zip import unpack_one

Progress = Callable[[int, int], None]

_CHUNK = 1 << 18
#: Bytes without the end of a row. A post's text has at most 30,000 signs; the parser holds a tag
#: until it ends, and looks at all of it again with every piece that comes.
_LONGEST = 1 << 22
_OPENERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_SEVEN_ZIP = b"7z\xbc\xaf\x27\x1c"
_TAGS = re.compile(r"[^<>|\s]+")
_BROKEN = (EOFError, OSError, lzma.LZMAError, zlib.error)


class Dump:
    """A dump file that can be read more than once; see `open_dump`."""

    def __init__(self, path: Path, named: Path) -> None:
        """Wrap a file that is not a 7z archive; messages speak of `named`."""
        self._path = path
        self.named = named
        self.num_bytes = path.stat().st_size
        if not self.num_bytes:
            raise ValueError(f"{named} is empty; download it again")

    def rows(self, progress: Progress | None = None) -> Iterator[Mapping[str, str]]:
        """Yield the attributes of every `row` element.

        Args:
            progress: called with (bytes read, bytes of the file) after each piece.

        Raises:
            ValueError: not a `Posts.xml`, cut short, damaged, with entities, or with a row that no
                post is as long as; says where.
        """
        handler = _Rows()
        parser: Any = defused_sax.make_parser()
        parser.forbid_dtd = True
        parser.setContentHandler(handler)
        try:
            with self._path.open("rb") as raw, _decompressed(raw) as stream:
                seen, pending = 0, 0
                while chunk := stream.read(_CHUNK):
                    parser.feed(chunk)
                    pending = pending + len(chunk) if handler.elements == seen else 0
                    seen = handler.elements
                    if pending > _LONGEST:
                        raise ValueError(
                            f"row {handler.rows + 1:,} (line {parser.getLineNumber():,}) is longer "
                            f"than {_LONGEST:,} bytes, which no post is; the file is damaged or "
                            "was made to exhaust memory: download it again"
                        )
                    yield from handler.take()
                    if progress:
                        progress(raw.tell(), self.num_bytes)
                parser.close()
                yield from handler.take()
        except SAXException as error:
            line = parser.getLineNumber()
            raise ValueError(
                f"{self.named}: the XML breaks off or is damaged at line {line} "
                f"({error.args[0] if error.args else error}); download it again"
            ) from error
        except _BROKEN as error:
            raise ValueError(
                f"{self.named} is cut short or damaged ({error}); download it again"
            ) from error
        except ValueError as error:
            raise ValueError(f"{self.named}: {error}") from error


@contextmanager
def open_dump(path: Path, scratch: Path) -> Iterator[Dump]:
    """Open a dump: `Posts.xml`, plain, `.gz`, `.bz2` or `.xz`, or a `.7z` that holds one.

    The kind is recognised by the first bytes, not by the name. A `.7z` is unpacked into `scratch`,
    because that format cannot be read as a stream.

    Raises:
        ValueError: no such file, an archive without a `Posts.xml`, a damaged archive.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give the path of a Posts.xml or its archive")
    with path.open("rb") as file:
        magic = file.read(6)
    if magic != _SEVEN_ZIP:
        yield Dump(path, path)
        return
    unpacked = unpack_one(path, scratch, "Posts.xml")
    try:
        yield Dump(unpacked, path)
    finally:
        unpacked.unlink(missing_ok=True)


def split_tags(text: str) -> list[str]:
    """Return the tags of a question, in either dialect.

    >>> split_tags("<legal><c++>"), split_tags("|legal|c++|"), split_tags("")
    (['legal', 'c++'], ['legal', 'c++'], [])
    """
    return _TAGS.findall(text)


class _Rows(ContentHandler):
    """Collects the rows of one piece of the file."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self.elements = self.rows = 0
        self._found: list[Mapping[str, str]] = []

    def startElement(self, name: str, attrs: Any) -> None:
        if self._depth == 0 and name != "posts":
            raise ValueError(
                f"the outermost element is <{name}>, not <posts>: this is another file of the "
                "dump (or another format); give Posts.xml"
            )
        self._depth += 1
        self.elements += 1
        if name == "row":
            self.rows += 1
            self._found.append(dict(attrs))

    def endElement(self, name: str) -> None:
        self._depth -= 1

    def take(self) -> list[Mapping[str, str]]:
        """Hand over what was collected."""
        found, self._found = self._found, []
        return found


@contextmanager
def _decompressed(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    magic = raw.read(6)
    raw.seek(0)
    for prefix, opener in _OPENERS.items():
        if magic.startswith(prefix):
            with opener(raw) as stream:
                yield stream
            return
    yield raw
