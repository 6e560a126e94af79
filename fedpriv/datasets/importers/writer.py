"""Writer of a corpus: numbers strings, groups sentences by user, and writes the mapped files."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np

from fedpriv.datasets.arrays import array_writers, offsets, ranges
from fedpriv.datasets.stackexchange import manifest as manifests
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.sentence_store import (
    BATCH_SENTENCES,
    ELSEWHERE,
    HELD_USERS,
    KINDS,
    OWN,
    PostKind,
)
from fedpriv.datasets.stackexchange.vocabulary import most_counted
from fedpriv.output_paths import keep_private, writing_to


class Interner:
    """Gives each distinct string a number from 0 in order of first appearance.

    All pairs live in an SQLite file; a dictionary in front answers the common ones. When the
    dictionary is full it is emptied, and words that are used again come back from the file.
    """

    def __init__(self, path: Path, *, cache_size: int = 1_000_000) -> None:
        """Open an empty file at `path`; `cache_size` strings are kept in memory."""
        self._cache_size = cache_size
        self._known: dict[str, int] = {}
        self._pending: list[tuple[str, int]] = []
        self._complete = True  # the dictionary still holds every string seen
        self._next = 0
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("PRAGMA journal_mode = OFF")
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute("CREATE TABLE strings (text TEXT PRIMARY KEY, number) WITHOUT ROWID")

    def __len__(self) -> int:
        return self._next

    def numbers(self, texts: Sequence[str]) -> list[int]:
        """Return the number of each string, giving new ones to strings not seen before."""
        known = self._known
        try:
            return [known[text] for text in texts]
        except KeyError:
            return [self.number(text) for text in texts]

    def number(self, text: str) -> int:
        """Return the number of one string."""
        found = self._known.get(text)
        if found is not None:
            return found
        if not self._complete:
            found = self._look_up(text)
        if found is None:
            found = self._next
            self._next += 1
            self._pending.append((text, found))
        self._known[text] = found
        if len(self._pending) >= 50_000:
            self._flush()
        if len(self._known) >= self._cache_size:
            self._flush()
            self._known.clear()
            self._complete = False
        return found

    def sorted_pairs(self) -> Iterator[tuple[str, int]]:
        """Yield (string, number) in sorted order of the strings."""
        self._flush()
        yield from self._file.execute("SELECT text, number FROM strings ORDER BY text")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _look_up(self, text: str) -> int | None:
        # Strings not yet written are always in the dictionary: it is emptied after a flush only.
        row = self._file.execute("SELECT number FROM strings WHERE text = ?", (text,)).fetchone()
        return None if row is None else row[0]

    def _flush(self) -> None:
        if self._pending:
            self._file.execute("BEGIN")
            self._file.executemany("INSERT INTO strings VALUES (?, ?)", self._pending)
            self._file.execute("COMMIT")
            self._pending.clear()


COLUMNS = (
    "users", "title_users", "askers", "threads", "days", "num_tokens", "num_own_tokens", "num_tags",
    "num_sentence_tokens", "kinds", "posts", "words", "tags",
)  # fmt: skip
"""Names of the raw files: int32, in the order in which sentences were added."""

_PIECE = 1 << 20
_PICK = 1 << 12
_PICK_WORDS = 1 << 16  # words come in runs, one run a sentence


def group(raw: Path, directory: Path, interners: Mapping[str, Interner]) -> dict[str, int]:
    """Write the files that `fedpriv.datasets.stackexchange.sentence_store` describes.

    Args:
        raw: directory of the raw files, and of "titles", a line a thread, if they are kept.
        directory: the corpus directory to write into.
        interners: "users", "title_users", "threads", "words" and "tags": names of the raw numbers.

    Returns:
        Totals for the manifest.

    Raises:
        ValueError: there is no sentence.
    """
    if not len(interners["users"]):
        raise ValueError("there is no sentence to write: is this the right file?")
    users: list[str] = []
    user_map = _sorted_numbers(interners["users"], users.append)
    (directory / "users.json").write_text(json.dumps(users), "utf-8")
    maps = {
        kind: _write_names(directory / f"{kind}.txt", interners[kind])
        for kind in ("words", "tags", "threads")
    }
    if (raw / "titles").is_file():
        _write_in_order(directory / "titles.txt", raw / "titles", maps["threads"])
    positions = {user: position for position, user in enumerate(users)}
    accounts = np.full(max(len(interners["title_users"]), 1), ELSEWHERE, dtype=np.int32)
    for name, number in interners["title_users"].sorted_pairs():
        accounts[number] = positions.get(name, ELSEWHERE)
    user_offsets = _sort_by_user(raw, user_map)
    num_sentences = int(user_offsets[-1])
    most_tokens = _write_starts(raw, "num_tokens", "word_starts", num_sentences)
    _write_starts(raw, "num_tags", "tag_starts", num_sentences)
    (directory / "sentences").mkdir()
    np.save(directory / "sentences" / "user_offsets.npy", user_offsets)
    num_tokens = _write_sentences(
        directory / "sentences", raw, num_sentences, most_tokens, {**maps, "accounts": accounts}
    )
    return {
        "users": len(users),
        "sentences": num_sentences,
        "tokens": num_tokens,
        **{kind: len(numbers) for kind, numbers in maps.items()},
        "most_tokens_in_a_sentence": most_tokens,
    }


def _sort_by_user(raw: Path, user_map: np.ndarray) -> np.ndarray:
    """Write `order` (int64) next to the raw files, by a stable counting sort from file to file.

    A user's sentences are in the order of their posts' numbers, and those of a post as they came.

    Returns:
        int64 (users + 1,), the first sentence of each user.
    """
    total = (raw / "users").stat().st_size // 4
    counts = np.zeros(len(user_map), dtype=np.int64)
    for start in range(0, total, _PIECE):
        counts += np.bincount(user_map[read(raw, "users", start, _PIECE)], minlength=len(counts))
    user_offsets = offsets(counts)
    following = user_offsets[:-1].copy()
    # Written whole first: a map over a file with holes kills the process when the disk is full.
    with (raw / "order").open("xb") as file:
        for start in range(0, total, _PIECE):
            file.write(bytes(8 * min(_PIECE, total - start)))
    for start in range(0, total, _PIECE):
        users = user_map[read(raw, "users", start, _PIECE)]
        number = np.bincount(users, minlength=len(counts))
        places = ranges(following, number)
        following += number
        target = np.memmap(raw / "order", np.int64, "r+", shape=total)
        target[places] = start + np.argsort(users, kind="stable")
        target.flush()
    edges = np.flatnonzero(np.diff(user_offsets[:-1] // _PIECE, prepend=-1, append=-1))
    for first, last in pairwise(edges.tolist()):  # whole users
        begin, end = int(user_offsets[first]), int(user_offsets[last])
        target = np.memmap(raw / "order", np.int64, "r+", shape=total)
        rows = np.array(target[begin:end])
        users = np.repeat(np.arange(first, last), counts[first:last])
        target[begin:end] = rows[np.lexsort((_pick(raw, "posts", rows, np.int32), users))]
        target.flush()
    return user_offsets


def _write_starts(raw: Path, column: str, name: str, total: int) -> int:
    """Write where each sentence's run starts (int64), and return the length of the longest."""
    most = before = 0
    with (raw / name).open("xb") as file:
        for start in range(0, total, _PIECE):
            lengths = read(raw, column, start, _PIECE).astype(np.int64)
            ends = before + np.cumsum(lengths)
            (ends - lengths).tofile(file)
            before, most = int(ends[-1]), max(most, int(lengths.max()))
    return most


def read(
    raw: Path, column: str, start: int, number: int, dtype: type[np.signedinteger] = np.int32
) -> np.ndarray:
    """Return part of a raw file, in memory."""
    itemsize = np.dtype(dtype).itemsize
    return np.fromfile(raw / column, dtype, count=number, offset=start * itemsize)


def _write_sentences(
    directory: Path,
    raw: Path,
    num_sentences: int,
    most_tokens: int,
    maps: Mapping[str, np.ndarray],
) -> int:
    """Write the columns of sentences in the order of users; return how many tokens there are.

    `maps` are from raw numbers to those of the store; what is below 0 is no account and stays.
    """
    narrow = np.min_scalar_type(most_tokens)
    dtypes = {
        "words": np.int32, "counts": narrow, "own_counts": narrow, "num_tokens": np.int32,
        "title_users": np.int32, "askers": np.int32, "threads": np.int32, "days": np.int32,
        "tags": np.int32, "sequences": np.int32, "kinds": np.uint8,
    }  # fmt: skip
    all_tokens = 0
    starts = ("word_offsets", "tag_offsets", "sequence_offsets")
    with array_writers(directory, dtypes, offsets=starts) as files:
        for start in range(0, num_sentences, BATCH_SENTENCES):
            rows = read(raw, "order", start, BATCH_SENTENCES, np.int64)
            tokens, token_rows = _runs(raw, rows, "words", "word_starts", "num_tokens")
            num_tokens = _pick(raw, "num_tokens", rows, np.int32)
            place = ranges(np.zeros(len(rows), dtype=np.int64), num_tokens)
            own = place < _pick(raw, "num_own_tokens", rows, np.int32)[token_rows]
            words = maps["words"][tokens]
            in_order = _pick(raw, "num_sentence_tokens", rows, np.int32)
            files["sequence_offsets"].append_ends(in_order)
            files["sequences"].append(words[place < in_order[token_rows]])
            lengths, words, counts, own_counts = _count(token_rows, words, own, len(rows))
            files["word_offsets"].append_ends(lengths)
            files["words"].append(words)
            files["counts"].append(counts)
            files["own_counts"].append(own_counts)
            files["num_tokens"].append(num_tokens)
            for column in ("title_users", "askers"):
                accounts = _pick(raw, column, rows, np.int32)
                known = maps["accounts"][np.maximum(accounts, 0)]
                files[column].append(np.where(accounts < 0, accounts, known))
            files["threads"].append(maps["threads"][_pick(raw, "threads", rows, np.int32)])
            for column in ("days", "kinds"):
                files[column].append(_pick(raw, column, rows, np.int32))
            tags, tag_rows = _runs(raw, rows, "tags", "tag_starts", "num_tags")
            every = np.ones(len(tags), dtype=bool)
            lengths, names, _, _ = _count(tag_rows, maps["tags"][tags], every, len(rows))
            files["tag_offsets"].append_ends(lengths)
            files["tags"].append(names)
            all_tokens += len(tokens)
    return all_tokens


def _runs(
    raw: Path, rows: np.ndarray, column: str, starts: str, lengths: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of the given sentences, and the row each belongs to."""
    number = _pick(raw, lengths, rows, np.int32)
    entries = ranges(_pick(raw, starts, rows, np.int64), number)
    return _pick(raw, column, entries, np.int32), np.repeat(np.arange(len(rows)), number)


def _pick(raw: Path, column: str, entries: np.ndarray, dtype: type) -> np.ndarray:
    # Entries lie anywhere in the file, and each may bring in 64 KiB of it. A fresh map for every
    # few entries drops those pages again, so memory does not follow the size of the file.
    piece = _PICK_WORDS if column == "words" else _PICK
    found = np.empty(len(entries), dtype=dtype)
    for start in range(0, len(entries), piece):
        some = slice(start, start + piece)
        found[some] = np.memmap(raw / column, dtype, "r")[entries[some]]
    return found


def _count(
    rows: np.ndarray, items: np.ndarray, own: np.ndarray, num_rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return, row by row, the distinct items in order: (row lengths, items, counts, own counts)."""
    size = int(items.max(initial=0)) + 1
    keys = np.sort((rows * size + items) * 2 + own)
    pairs = keys >> 1
    first = np.flatnonzero(np.diff(pairs, prepend=-1))
    counts = np.diff(first, append=len(keys))
    own_counts = np.add.reduceat(keys & 1, first) if len(first) else counts
    distinct_rows, distinct_items = np.divmod(pairs[first], size)
    return np.bincount(distinct_rows, minlength=num_rows), distinct_items, counts, own_counts


def _sorted_numbers(interner: Interner, take: Callable[[str], object]) -> np.ndarray:
    """Give every string in sorted order, and return the place of each by its raw number, int32."""
    mapping = np.empty(len(interner), dtype=np.int32)
    for position, (name, number) in enumerate(interner.sorted_pairs()):
        mapping[number] = position
        take(name)
    return mapping


def _write_names(path: Path, interner: Interner) -> np.ndarray:
    with path.open("x", encoding="utf-8", newline="\n") as file:

        def write(name: str) -> None:
            if "\n" in name:
                raise ValueError(f"{name!r} holds a line break; split it before adding it")
            file.write(name + "\n")

        return _sorted_numbers(interner, write)


def _write_in_order(path: Path, raw: Path, mapping: np.ndarray) -> None:
    """Write the lines of a raw file in the order of their numbers in the store."""
    with raw.open("rb") as lines:
        starts = offsets(np.fromiter(map(len, lines), np.int64, len(mapping)))
        with path.open("xb") as file:
            for number in np.argsort(mapping).tolist():
                lines.seek(int(starts[number]))
                file.write(lines.readline())


_BUFFER = 1 << 18  # numbers held for a file before they are written


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence of one user: the unit an example is made of.

    Attributes:
        user_id: the account the example belongs to.
        tokens: the sentence's tokens, in order; at least one.
        title_tokens: tokens of the title the post carries.
        tags: the post's tags, in any order; repeats count once.
        own_title: whether `user_id` wrote that title.
        title_user_id: who wrote it when somebody else did; None when that is not known.
        thread: key of the question that the post asks or answers; what shares it is never on
            both sides of a split by thread. None takes the title and the tags.
        day: days from 1970 to when the thread was begun; None where that is not known.
        kind: of the post it is in, "question" or "answer"; None where that is not known.
        post: number of that post: a user's sentences are ordered by it, whatever order they are
            added in. Below 2^31; None keeps the order in which they are added.
    """

    user_id: str
    tokens: Sequence[str]
    title_tokens: Sequence[str]
    tags: Sequence[str]
    own_title: bool = True
    title_user_id: str | None = None
    thread: str | None = None
    day: int | None = None
    kind: PostKind | None = None
    post: int | None = None

    @property
    def thread_key(self) -> str:
        """The thread's key; of title and tags where the source names none."""
        if self.thread is not None:
            return self.thread
        return titled_thread(" ".join(self.title_tokens), " ".join(sorted(self.tags)))


def titled_thread(title: str, tags: str) -> str:
    """Return the key of a thread that has no id: a hash of its title and tags, 32 hex digits."""
    return hashlib.sha256(f"{title}\0{tags}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusDescription:
    """Name, origin and sizes of a corpus, as its manifest has them.

    Attributes:
        name: name of the corpus.
        synthetic: whether the text was made by a generator.
        source: JSON-able facts about where the data came from.
        licence: licence of the text.
        credit: whom to credit for it.
        own_text_only: drop titles that another account wrote.
        split_seed: seed of the 80/20 split of each user's examples.
        max_words: size of the vocabulary.
        max_tags: size of the tag list.
        knows_askers: whether every sentence whose title is not its user's own names who asked;
            `title_user_id` None then says that no account did.

    Raises:
        ValueError: a size is not positive.
    """

    name: str
    synthetic: bool
    source: Mapping[str, object]
    licence: str
    credit: str
    own_text_only: bool = False
    split_seed: int = 0
    max_words: int = 10_000
    max_tags: int = 500
    knows_askers: bool = False

    def __post_init__(self) -> None:
        if self.max_words < 1 or self.max_tags < 1:
            raise ValueError(
                f"max_words {self.max_words} and max_tags {self.max_tags} must be at least 1"
            )


class CorpusWriter:
    """Collects sentences and writes one prepared corpus directory, or nothing at all.

    Use it as a context manager; leaving the block without `finish`, or by an error, removes
    everything that was written:

        with CorpusWriter(directory, CorpusDescription(...)) as writer:
            for sentence in sentences:
                writer.add(sentence)
            corpus = writer.finish([RosterSpec(...)], default_roster="site-all")
    """

    def __init__(
        self,
        directory: Path | str,
        description: CorpusDescription,
        *,
        held_users: Sequence[str] = (),
    ) -> None:
        """Start a corpus.

        Args:
            directory: where it will be; must not exist yet, its parent is made.
            description: of the corpus, for its manifest.
            held_users: whom the data's source holds out, for the split as-published.

        Raises:
            ValueError: the directory exists.
        """
        self._target = Path(directory)
        if self._target.exists():
            raise ValueError(f"{directory} exists already; give another place, or remove it")
        self._description = description
        self._held_users = sorted(held_users)
        self._dropped: Counter[str] = Counter()
        self._state = "new"

    def __enter__(self) -> CorpusWriter:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{self._target.name}.partial-"
        self._partial = Path(tempfile.mkdtemp(prefix=prefix, dir=self._target.parent))
        self._raw = self._partial / "raw"
        self._raw.mkdir()
        self._buffers = {column: array("i") for column in COLUMNS}
        self._files = {column: (self._raw / column).open("xb") for column in COLUMNS}
        if (
            not self._description.own_text_only
        ):  # titles that somebody else wrote are kept nowhere then
            self._files["titles"] = (self._raw / "titles").open("xb")
        self._interners = {
            kind: Interner(self._raw / f"{kind}.sqlite")
            for kind in ("users", "title_users", "threads", "words", "tags")
        }
        self._state = "open"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with writing_to(self._target):
            try:
                self._close()
                if error is not None:
                    raise error
            finally:
                shutil.rmtree(self._partial, ignore_errors=True)

    def add(self, sentence: Sentence) -> None:
        """Append one sentence; users may come in any order, sentences of one post keep theirs.

        Raises:
            ValueError: no token, or a token, tag or id that holds a line break.
        """
        if not sentence.tokens:
            raise ValueError(f"user {sentence.user_id!r} has a sentence without tokens; skip it")
        foreign = bool(sentence.title_tokens) and not sentence.own_title
        title = () if foreign and self._description.own_text_only else sentence.title_tokens
        buffers, interners = self._buffers, self._interners
        buffers["users"].append(interners["users"].number(sentence.user_id))
        buffers["words"].extend(interners["words"].numbers(sentence.tokens))
        buffers["words"].extend(interners["words"].numbers(title))
        tags = interners["tags"].numbers(sentence.tags)
        buffers["tags"].extend(tags)
        buffers["num_tags"].append(len(tags))
        num_tokens = len(sentence.tokens) + len(title)
        buffers["num_tokens"].append(num_tokens)
        buffers["num_sentence_tokens"].append(len(sentence.tokens))
        buffers["kinds"].append(KINDS.index(sentence.kind))
        buffers["posts"].append(-1 if sentence.post is None else sentence.post)
        buffers["num_own_tokens"].append(len(sentence.tokens) if foreign else num_tokens)
        buffers["title_users"].append(self._title_user(sentence, foreign and bool(title)))
        buffers["askers"].append(self._title_user(sentence, not sentence.own_title))
        buffers["threads"].append(self._thread(sentence))
        buffers["days"].append(-1 if sentence.day is None else sentence.day)
        if len(buffers["words"]) >= _BUFFER:
            self._flush()

    def drop(self, reason: str, number: int = 1) -> None:
        """Count records that the importer left out, by reason, for the manifest."""
        self._dropped[reason] += number

    def finish(
        self,
        rosters: Sequence[RosterSpec],
        default_roster: str,
        published: Mapping[str, Mapping[str, int]] | None = None,
    ) -> Corpus:
        """Group by user, make the rosters' views, move into place and open.

        Args:
            rosters: the rosters to make; one marked optional is noted and left out where the
                corpus is too small for it.
            default_roster: name of the roster used when none is asked for.
            published: counts of "words" and of "tags" that replace public users' choice, as TFF
                publishes them; they include rostered users, and the manifest says so.

        Raises:
            ValueError: no sentence, a roster that cannot be made, no default roster.
        """
        if self._state != "open":
            raise ValueError("finish is called once, inside the writer's `with` block")
        self._flush()
        for file in self._files.values():
            file.close()
        totals = group(self._raw, self._partial, self._interners)
        self._close()
        shutil.rmtree(self._raw)
        if published is not None:
            sizes = {"words": self._description.max_words, "tags": self._description.max_tags}
            kept = {kind: most_counted(published[kind], size) for kind, size in sizes.items()}
            (self._partial / "published.json").write_text(json.dumps(kept), "utf-8")
        if self._held_users:
            (self._partial / HELD_USERS).write_text(json.dumps(self._held_users), "utf-8")
        corpus = self._with_rosters(rosters, totals, default_roster)
        keep_private(self._partial)
        try:
            self._partial.rename(self._target)
        except OSError as error:
            raise ValueError(f"{self._target} appeared while it was being written") from error
        return Corpus.open(corpus.directory)

    def _with_rosters(
        self, specs: Sequence[RosterSpec], totals: dict[str, int], default_roster: str
    ) -> Corpus:
        first = {
            **asdict(self._description),
            "totals": totals,
            "dropped": dict(sorted(self._dropped.items())),
            "rosters": {},
            "rosters_left_out": {},
            "default_roster": default_roster,
            "files": manifests.describe_files(self._partial, self._partial),
            "version": manifests.VERSION,
        }
        corpus = Corpus(self._partial, first)
        for spec in specs:
            try:
                corpus.add_roster(spec)
            except ValueError as error:
                if not spec.optional:
                    raise
                left_out = {**corpus.manifest["rosters_left_out"], spec.name: str(error)}
                corpus.manifest = {**corpus.manifest, "rosters_left_out": left_out}
        if default_roster not in corpus.rosters:
            raise ValueError(
                f"default roster {default_roster!r} is not among those made: {corpus.rosters}"
            )
        manifests.write(self._partial, corpus.manifest)
        return Corpus(self._target, corpus.manifest)

    def _thread(self, sentence: Sentence) -> int:
        """Return the thread's number; a thread has the title that its first sentence has."""
        threads = self._interners["threads"]
        new = len(threads)
        number = threads.number(sentence.thread_key)
        if number == new and "titles" in self._files:
            self._files["titles"].write(" ".join(sentence.title_tokens).encode() + b"\n")
        return number

    def _title_user(self, sentence: Sentence, foreign: bool) -> int:
        if not foreign:
            return OWN
        author = sentence.title_user_id
        return ELSEWHERE if author is None else self._interners["title_users"].number(author)

    def _flush(self) -> None:
        for column, buffer in self._buffers.items():
            buffer.tofile(self._files[column])
            del buffer[:]

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        for interner in self._interners.values():
            interner.close()
        self._state = "closed"
