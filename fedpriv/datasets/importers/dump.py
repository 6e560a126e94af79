"""Import of a Stack Exchange `Posts.xml`, plain or compressed, in constant memory.

Both dialects in circulation are read: tags as `<a><b>` and as `|a|b|`, with and without
`ContentLicense` and other attributes, in any order. Rows may come in any order: a user's sentences
are ordered by their posts' ids. Characters that XML does not allow, as dumps have them in some
posts, are left out of their posts and counted. The XML is parsed by events through
defusedxml: no tree is built, so nothing grows, and a document type, an entity declaration or an
external reference is refused before it can expand.
"""

from __future__ import annotations

import datetime
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax import SAXException
from xml.sax.handler import ContentHandler

from defusedxml import DefusedXmlException
from defusedxml import sax as defused_sax

from fedpriv.datasets.importers.tokens import split_sentences, tff_tokens
from fedpriv.datasets.importers.writer import CorpusDescription, Sentence, write_corpus
from fedpriv.datasets.raw_files import open_plain, unpack_one
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec, hash64
from fedpriv.hashes import Progress, file_sha256

_CHUNK = 1 << 18
#: Bytes without the end of a row. A post's text has at most 30,000 signs; the parser holds a tag
#: until it ends, and looks at all of it again with every piece that comes.
_LONGEST = 1 << 22
_SEVEN_ZIP = b"7z\xbc\xaf\x27\x1c"
# Characters that XML 1.0 does not allow: controls as bytes and, in UTF-8, U+FFFE and U+FFFF.
_CONTROLS = bytes({*range(0x20)} - {0x9, 0xA, 0xD})
_NO_CHARACTERS = re.compile(rb"\xef\xbf[\xbe\xbf]")
_LEGAL = (range(0x20, 0xD800), range(0xE000, 0xFFFE), range(0x10000, 0x110000))
_REFERENCE = re.compile(rb"&#(?!xA;|xD;)(?:x([0-9a-fA-F]{1,60})|([0-9]{1,60}));")
_LONGEST_REFERENCE = 64
_TAGS = re.compile(r"[^<>|\s]+")


class Dump:
    """A dump file that can be read more than once; see `open_dump`."""

    def __init__(self, path: Path, named: Path) -> None:
        """Wrap a file that is not a 7z archive; messages speak of `named`."""
        self._path = path
        self.named = named
        #: How many characters that XML does not allow `rows` left out, in its last pass.
        self.num_illegal = 0
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
        handler, pending = _Rows(self.named), 0
        self.num_illegal = 0
        parser: Any = defused_sax.make_parser()
        parser.forbid_dtd = True
        parser.setContentHandler(handler)
        try:
            with open_plain(self._path, self.named) as (packed, plain):
                for chunk in self._allowed(iter(partial(plain.read, _CHUNK), b"")):
                    seen = handler.elements
                    parser.feed(chunk)
                    pending = pending + len(chunk) if handler.elements == seen else 0
                    if pending > _LONGEST:
                        raise ValueError(
                            f"{self.named}: row {handler.rows + 1:,} (line "
                            f"{parser.getLineNumber():,}) is longer "
                            f"than {_LONGEST:,} bytes, which no post is; the file is damaged or "
                            "was made to exhaust memory: download it again"
                        )
                    yield from handler.take()
                    if progress:
                        progress(packed.tell(), self.num_bytes)
                parser.close()
                yield from handler.take()
        except (SAXException, DefusedXmlException) as error:
            line = parser.getLineNumber()
            raise ValueError(
                f"{self.named}: the XML breaks off or is damaged at line {line} "
                f"({error.args[0] if error.args else error}); download it again"
            ) from error

    def _allowed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the file without characters that XML does not allow, by which no parser goes on."""

        def allowed(found: re.Match[bytes]) -> bytes:
            hexadecimal, decimal = found.groups()
            number = int(hexadecimal, 16) if hexadecimal else int(decimal)
            if number in (0x9, 0xA, 0xD) or any(number in some for some in _LEGAL):
                return found[0]
            self.num_illegal += 1
            return b""

        held, wide = b"", None
        for piece in pieces:
            if wide is None:  # UTF-16, half of whose bytes are NUL
                wide = b"\0" in piece[:4] or piece[:2] in (b"\xff\xfe", b"\xfe\xff")
            if wide:
                yield piece
                continue
            plain = piece.translate(None, _CONTROLS)
            self.num_illegal += len(piece) - len(plain)
            plain = held + plain
            # A reference, or U+FFFE, may go on in the next piece.
            end = max(plain.rfind(b"&", -_LONGEST_REFERENCE), plain.rfind(b"\xef", -2))
            end = end if end >= 0 and b";" not in plain[end:] else len(plain)
            held = plain[end:]
            plain, number = _NO_CHARACTERS.subn(b"", plain[:end])
            self.num_illegal += number
            yield _REFERENCE.sub(allowed, plain)
        yield held


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

    def __init__(self, named: Path) -> None:
        super().__init__()
        self._named, self._depth = named, 0
        self.elements = self.rows = 0
        self._found: list[Mapping[str, str]] = []

    def startElement(self, name: str, attrs: Any) -> None:
        if self._depth == 0 and name != "posts":
            raise ValueError(
                f"{self._named}: the outermost element is <{name}>, not <posts>: this is another "
                "file of the dump (or another format); give Posts.xml"
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


QUESTION, ANSWER = "1", "2"
_EPOCH = datetime.date(1970, 1, 1)
_COMMUNITY = "-1"  # the site's own account, which owns what many people wrote

_NO_OWNER = "posts without OwnerUserId"
_SITE_OWNED = "posts owned by the site's own account"
_OTHER_TYPES = "posts that are neither question nor answer"
_NO_TEXT = "posts without a sentence"
_ILLEGAL = "characters that XML does not allow, and not their posts"

_SUFFIXES = re.compile(r"(?:\.(?:xml|gz|bz2|xz|7z))+$|[.-]Posts(?=\.|$)", re.IGNORECASE)


def import_stackexchange(
    dump: Path | str,
    directory: Path | str,
    *,
    name: str | None = None,
    own_text_only: bool = False,
    split_seed: int = 0,
    max_words: int = 10_000,
    max_tags: int = 500,
    licence: str | None = None,
    credit: str | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Import a dump and make its two rosters.

    `<name>-all`, the default: users whose hashed id falls outside a fixed 10 %. `<name>-400`: the
    400 users with most sentences, at least 100 each; left out where the site is too small.

    Args:
        dump: `Posts.xml`, plain, `.gz`, `.bz2` or `.xz`, or a `.7z` that holds it.
        directory: where the corpus will be; must not exist yet.
        name: the corpus' name; None takes it from the file's name.
        own_text_only: drop question titles that another account wrote. Labels still come from
            the question's tags.
        split_seed: seed of the 80/20 split of each user's examples.
        max_words: size of the vocabulary.
        max_tags: size of the tag list.
        licence: the text's licence; None takes what the posts say (`ContentLicense`).
        credit: whom to credit; None names the site's contributors.
        progress: called with (bytes done, bytes to do) over both passes.

    Raises:
        ValueError: not a `Posts.xml`, cut short, damaged, without usable posts, or the directory
            exists. Nothing is left behind.
    """
    dump, directory = Path(dump), Path(directory)
    name = site_name(dump) if name is None else name
    directory.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{directory.name}.reading-"
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=directory.parent) as scratch,
        open_dump(dump, Path(scratch)) as opened,
    ):
        questions = _Questions(Path(scratch) / "questions.sqlite")
        try:
            questions.add_all(opened, _part(progress, 0))
            about = CorpusDescription(
                name=name,
                synthetic=False,
                source={
                    "kind": "Stack Exchange dump",
                    "file": dump.name,
                    "sha256": file_sha256(dump),
                    "posts": sum(questions.post_types.values()),
                    "questions": questions.post_types[QUESTION],
                    "answers": questions.post_types[ANSWER],
                    "accounts": len(questions.accounts),
                    "tags": len(questions.tags),
                },
                licence=licence or questions.licence(),
                credit=credit or f"the contributors of {name}, a Stack Exchange site",
                own_text_only=own_text_only,
                split_seed=split_seed,
                max_words=max_words,
                max_tags=max_tags,
                knows_askers=True,
            )
            dropped: Counter[str] = Counter()
            sentences = _sentences(opened, questions, dropped, _part(progress, 1))
            return write_corpus(
                directory, about, sentences, rosters(name), f"{name}-all", dropped=dropped
            )
        finally:
            questions.close()


def rosters(name: str) -> tuple[RosterSpec, RosterSpec]:
    """Return the two rosters that every Stack Exchange corpus gets."""
    return (
        RosterSpec(name=f"{name}-all", rule="all-but-public-tenth"),
        RosterSpec(
            name=f"{name}-400", rule="most-sentences", size=400, min_sentences=100, optional=True
        ),
    )


def site_name(dump: Path) -> str:
    """Return a corpus name from a dump's file name.

    >>> site_name(Path("onstartups.Posts.xml.xz")), site_name(Path("cooking/Posts.xml"))
    ('onstartups', 'cooking')
    >>> site_name(Path("law.stackexchange.com.7z")), site_name(Path("stackoverflow.com-Posts.7z"))
    ('law', 'stackoverflow-com')
    """
    stem = _SUFFIXES.sub("", dump.name)
    if stem.lower() in ("posts", ""):
        stem = dump.absolute().parent.name
    stem = re.sub(r"[^a-z0-9]+", "-", stem.lower().removesuffix(".stackexchange.com")).strip("-")
    return stem[:80] or "stackexchange"


class _Questions:
    """Titles, tags and owners of the questions, in an SQLite file; facts about the dump."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("PRAGMA journal_mode = OFF")
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute(
            "CREATE TABLE questions (id TEXT PRIMARY KEY NOT NULL, owner, title, tags, day)"
        )
        self.post_types: Counter[str] = Counter()
        self.accounts: set[str] = set()
        self.tags: set[str] = set()
        self._licences: set[str] = set()

    def add_all(self, dump: Dump, progress: Progress | None) -> None:
        """Make the first pass over the dump; `executemany` pulls it row by row."""
        insert = "INSERT INTO questions VALUES (?, ?, ?, ?, ?)"
        self._file.execute("BEGIN")
        try:
            self._file.executemany(insert, self._questions(dump.rows(progress)))
        except sqlite3.IntegrityError as error:
            raise ValueError(
                f"{dump.named} has two questions with the same Id (or one without any); "
                "give one site's dump at a time"
            ) from error
        self._file.execute("COMMIT")
        if not self.post_types[QUESTION] and not self.post_types[ANSWER]:
            raise ValueError(
                f"{dump.named} holds neither questions nor answers; give a Posts.xml that does"
            )

    def _questions(self, rows: Iterator[Mapping[str, str]]) -> Iterator[tuple]:
        for row in rows:
            kind = row.get("PostTypeId", "")
            self.post_types[kind] += 1
            if owner := row.get("OwnerUserId"):
                self.accounts.add(owner)
            if licence := row.get("ContentLicense"):
                self._licences.add(licence)
            if kind == QUESTION:
                tags = row.get("Tags", "")
                self.tags.update(split_tags(tags))
                title, day = row.get("Title", ""), _day(row.get("CreationDate"))
                yield row.get("Id"), row.get("OwnerUserId"), title, tags, day

    def find(self, number: str) -> tuple[str | None, str, str, int | None] | None:
        """Return (owner, title, tags, day) of a question, or None."""
        query = "SELECT owner, title, tags, day FROM questions WHERE id = ?"
        return self._file.execute(query, (number,)).fetchone()

    def licence(self) -> str:
        """Return what the posts say about their licence."""
        if self._licences:
            return ", ".join(sorted(self._licences))
        return "CC BY-SA 3.0 (assumed: the dump's posts name no licence)"

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _sentences(
    dump: Dump, questions: _Questions, dropped: Counter[str], progress: Progress | None
) -> Iterator[Sentence]:
    """Make the second pass over the dump: yield sentences, and count what is left out."""
    for row in dump.rows(progress):
        kind, owner = row.get("PostTypeId", ""), row.get("OwnerUserId")
        if kind not in (QUESTION, ANSWER):
            dropped[_OTHER_TYPES] += 1
        elif not owner:
            dropped[_NO_OWNER] += 1
        elif owner == _COMMUNITY:
            dropped[_SITE_OWNED] += 1
        elif parts := split_sentences(row.get("Body", "")):
            yield from _of_post(row, owner, kind, questions, parts)
        else:
            dropped[_NO_TEXT] += 1
    if dump.num_illegal:
        dropped[_ILLEGAL] += dump.num_illegal


def _of_post(
    row: Mapping[str, str], owner: str, kind: str, questions: _Questions, parts: list[list[str]]
) -> Iterator[Sentence]:
    # An answer whose question is missing has neither title nor tags, hence no label; its words
    # still count where its author is public.
    # It keeps its thread, whatever is left of that.
    thread = row["Id"] if kind == QUESTION else row.get("ParentId", "")
    author, title, tags, day = questions.find(thread) or (None, "", "", None)
    number = row.get("Id", "")
    post = int(number) if re.fullmatch("[0-9]{1,9}", number) else hash64("post", number) >> 34
    title_tokens, tag_list = tff_tokens(title), split_tags(tags)
    for tokens in parts:
        yield Sentence(
            user_id=owner,
            tokens=tokens,
            title_tokens=title_tokens,
            tags=tag_list,
            own_title=author == owner,
            title_user_id=author,
            thread=thread or f"post {row.get('Id', '')}",
            day=day,
            kind="question" if kind == QUESTION else "answer",
            post=post,
        )


def _day(date: str | None) -> int | None:
    """Return the days from 1970 to a date such as 2010-01-31T10:00:00.000; None if it is none."""
    try:
        return (datetime.date.fromisoformat((date or "")[:10]) - _EPOCH).days
    except ValueError:
        return None


def _part(progress: Progress | None, number: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, 2 * total)
