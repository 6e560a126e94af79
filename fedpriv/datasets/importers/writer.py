"""Writer of a corpus: sentences grouped by user, their words, tags and threads by number."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from fedpriv.datasets.arrays import array_writers, offsets, ranges
from fedpriv.datasets.cache import new_folder
from fedpriv.datasets.stackexchange import manifest as manifests
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.sentence_store import (
    ELSEWHERE,
    HELD_USERS,
    KINDS,
    OWN,
    PostKind,
)
from fedpriv.datasets.stackexchange.vocabulary import most_counted
from fedpriv.output_paths import writing_to


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


def write_corpus(
    directory: Path | str,
    description: CorpusDescription,
    sentences: Iterable[Sentence],
    rosters: Sequence[RosterSpec],
    default_roster: str,
    *,
    dropped: Mapping[str, int] | None = None,
    published: Mapping[str, Mapping[str, int]] | None = None,
    held_users: Sequence[str] = (),
) -> Corpus:
    """Write one prepared corpus, or nothing at all, and open it.

    Sentences go through a database in the folder, so memory does not grow with their number.

    Args:
        directory: where it will be; must not exist yet, its parent is made.
        description: of the corpus, for its manifest.
        sentences: users in any order; sentences of one post in theirs.
        rosters: the rosters to make; one marked optional is noted and left out where the
            corpus is too small for it.
        default_roster: name of the roster used when none is asked for.
        dropped: numbers of records that were left out, by reason, for the manifest; read after
            the sentences, so that their source may count in it.
        published: counts of "words" and of "tags" that replace public users' choice, as TFF
            publishes them; they include rostered users, and the manifest says so.
        held_users: whom the data's source holds out, for the split as-published.

    Raises:
        ValueError: the directory exists; no sentence, or one without a token; a token, tag or
            thread that holds a line break; a roster that cannot be made, no default roster.
    """
    directory = Path(directory)
    if directory.exists():
        raise ValueError(f"{directory} exists already; give another place, or remove it")
    with writing_to(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(directory) as folder:
            raw = folder / "raw.sqlite"
            with closing(sqlite3.connect(raw, isolation_level=None)) as database:
                database.executescript(_TABLES)
                rows = _rows(database, sentences, titles_by_others=not description.own_text_only)
                database.executemany(_ADD, rows)
                totals = _write_sentences(database, folder)
                if not description.own_text_only:
                    _write_titles(database, folder)
            raw.unlink()
            if published is not None:
                sizes = {"words": description.max_words, "tags": description.max_tags}
                kept = {kind: most_counted(published[kind], size) for kind, size in sizes.items()}
                (folder / "published.json").write_text(json.dumps(kept), "utf-8")
            if held_users:
                (folder / HELD_USERS).write_text(json.dumps(sorted(held_users)), "utf-8")
            about = {
                **asdict(description),
                "totals": totals,
                "dropped": dict(sorted((dropped or {}).items())),
                "rosters": {},
                "rosters_left_out": {},
                "default_roster": default_roster,
                "files": manifests.describe_files(folder, folder),
                "version": manifests.VERSION,
            }
            _add_rosters(Corpus(folder, about), rosters)
    return Corpus.open(directory)


def _add_rosters(corpus: Corpus, specs: Sequence[RosterSpec]) -> None:
    for spec in specs:
        try:
            corpus.add_roster(spec)
        except ValueError as error:
            if not spec.optional:
                raise
            left_out = {**corpus.manifest["rosters_left_out"], spec.name: str(error)}
            corpus.manifest = {**corpus.manifest, "rosters_left_out": left_out}
    if corpus.default_roster not in corpus.rosters:
        raise ValueError(
            f"default roster {corpus.default_roster!r} is not among those made: {corpus.rosters}"
        )
    manifests.write(corpus.directory, corpus.manifest)


_NAMED = ("users", "threads", "words", "tags")
_NAMES_IN_MEMORY = 1 << 19  # of each kind
_BATCH = 10_000  # sentences in memory
_NAMES = "(number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL)"
_TABLES = f"""
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    {"".join(f"CREATE TABLE {kind} {_NAMES};" for kind in _NAMED)}
    CREATE TABLE titles (thread INTEGER PRIMARY KEY, title TEXT);
    CREATE TABLE sentences (
        user INTEGER, post INTEGER, asker, title_user, thread, day, kind, length, words, tags
    );
    BEGIN;
"""
_ADD = "INSERT INTO sentences VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def _rows(
    database: sqlite3.Connection, sentences: Iterable[Sentence], *, titles_by_others: bool
) -> Iterator[tuple[int | bytes, ...]]:
    """Yield the rows of a table of sentences; names have numbers, which the database keeps."""
    users, threads, words, tags = (
        lru_cache(_NAMES_IN_MEMORY)(partial(_number, database, kind)) for kind in _NAMED
    )
    for sentence in sentences:
        if not sentence.tokens:
            raise ValueError(f"user {sentence.user_id!r} has a sentence without tokens; skip it")
        title = sentence.title_tokens if sentence.own_title or titles_by_others else ()
        asker = OWN if sentence.own_title else ELSEWHERE
        if not sentence.own_title and sentence.title_user_id is not None:
            asker = users(sentence.title_user_id)
        thread = threads(sentence.thread_key)
        if titles_by_others:  # a thread has the title that its first sentence has
            first = " ".join(sentence.title_tokens)
            database.execute("INSERT OR IGNORE INTO titles VALUES (?, ?)", (thread, first))
        yield (
            users(sentence.user_id),
            -1 if sentence.post is None else sentence.post,
            asker,
            asker if title else OWN,
            thread,
            -1 if sentence.day is None else sentence.day,
            KINDS.index(sentence.kind),
            len(sentence.tokens),
            array("i", map(words, (*sentence.tokens, *title))).tobytes(),
            array("i", map(tags, sentence.tags)).tobytes(),
        )


def _number(database: sqlite3.Connection, kind: str, name: str) -> int:
    """Return the number of a name, from 1, in order of first appearance."""
    database.execute(f"INSERT OR IGNORE INTO {kind} (name) VALUES (?)", (name,))
    return database.execute(f"SELECT number FROM {kind} WHERE name = ?", (name,)).fetchone()[0]


def _write_sentences(database: sqlite3.Connection, folder: Path) -> dict[str, int]:
    """Write the files that `fedpriv.datasets.stackexchange.sentence_store` describes.

    Returns:
        Totals for the manifest.

    Raises:
        ValueError: there is no sentence.
    """
    database.execute("CREATE INDEX by_user ON sentences (user, post)")
    of_users = "FROM users CROSS JOIN sentences ON user = number"  # users are the outer loop
    counted = f"SELECT name, number, COUNT(*) {of_users} GROUP BY name"
    users = database.execute(counted).fetchall()
    if not users:
        raise ValueError("there is no sentence to write: is this the right file?")
    (folder / "users.json").write_text(json.dumps([name for name, *_ in users]), "utf-8")
    user_offsets = offsets(np.array([number for *_, number in users], np.int64))
    (folder / "sentences").mkdir()
    np.save(folder / "sentences" / "user_offsets.npy", user_offsets)
    places = {kind: _write_names(database, kind, folder) for kind in ("words", "tags", "threads")}
    accounts = _places(database, "users", array("i", [number for _, number, _ in users]))
    (most_tokens,) = database.execute("SELECT MAX(LENGTH(words)) / 4 FROM sentences").fetchone()
    narrow = np.min_scalar_type(most_tokens)
    dtypes = {
        "words": np.int32, "counts": narrow, "own_counts": narrow, "num_tokens": np.int32,
        "title_users": np.int32, "askers": np.int32, "threads": np.int32, "days": np.int32,
        "tags": np.int32, "sequences": np.int32, "kinds": np.uint8,
    }  # fmt: skip
    starts = ("word_offsets", "tag_offsets", "sequence_offsets")
    rows = database.execute(f"SELECT sentences.* {of_users} ORDER BY name, post, sentences.rowid")
    all_tokens = 0
    with array_writers(folder / "sentences", dtypes, offsets=starts) as files:
        while some := rows.fetchmany(_BATCH):
            *given, word_bytes, tag_bytes = zip(*some, strict=True)
            _, _, askers, title_users, threads, days, kinds, lengths = np.array(given, np.int32)
            words, word_rows, num_tokens = _entries(word_bytes, places["words"])
            place = ranges(np.zeros(len(some), np.int64), num_tokens)
            in_sentence = place < lengths[word_rows]
            own = in_sentence | (title_users == OWN)[word_rows]
            files["sequence_offsets"].append_ends(lengths)
            files["sequences"].append(words[in_sentence])
            distinct, items, counts, own_counts = _count(word_rows, words, own, len(some))
            files["word_offsets"].append_ends(distinct)
            files["words"].append(items)
            files["counts"].append(counts)
            files["own_counts"].append(own_counts)
            files["num_tokens"].append(num_tokens)
            for column, named in (("title_users", title_users), ("askers", askers)):
                known = accounts[np.maximum(named, 0)]
                files[column].append(np.where(named < 0, named, known))
            files["threads"].append(places["threads"][threads])
            files["days"].append(days)
            files["kinds"].append(kinds)
            tags, tag_rows, _ = _entries(tag_bytes, places["tags"])
            distinct, items, _, _ = _count(tag_rows, tags, np.ones(len(tags), bool), len(some))
            files["tag_offsets"].append_ends(distinct)
            files["tags"].append(items)
            all_tokens += len(words)
    return {
        "users": len(users),
        "sentences": int(user_offsets[-1]),
        "tokens": all_tokens,
        **{kind: int(np.count_nonzero(found >= 0)) for kind, found in places.items()},
        "most_tokens_in_a_sentence": most_tokens,
    }


def _write_names(database: sqlite3.Connection, kind: str, folder: Path) -> np.ndarray:
    """Write the names of a kind in sorted order, a line each; return the place of each number."""
    numbers = array("i")
    with (folder / f"{kind}.txt").open("x", encoding="utf-8", newline="\n") as lines:
        for number, name in database.execute(f"SELECT number, name FROM {kind} ORDER BY name"):
            if "\n" in name:
                raise ValueError(f"{name!r} holds a line break; split it before adding it")
            lines.write(name + "\n")
            numbers.append(number)
    return _places(database, kind, numbers)


def _write_titles(database: sqlite3.Connection, folder: Path) -> None:
    found = "SELECT title FROM threads JOIN titles ON thread = number ORDER BY name"
    with (folder / "titles.txt").open("x", encoding="utf-8", newline="\n") as lines:
        lines.writelines(f"{title}\n" for (title,) in database.execute(found))


def _places(database: sqlite3.Connection, kind: str, numbers: array[int]) -> np.ndarray:
    """Return the place of each number of a kind in a list of some, int32; else ELSEWHERE."""
    (last,) = database.execute(f"SELECT COALESCE(MAX(number), 0) FROM {kind}").fetchone()
    places = np.full(last + 1, ELSEWHERE, np.int32)
    places[numbers] = np.arange(len(numbers))
    return places


def _entries(
    packed: Sequence[bytes], places: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the places of packed numbers, the row each belongs to, and how many a row has."""
    lengths = np.array([len(one) // 4 for one in packed], np.int64)
    numbers = np.frombuffer(b"".join(packed), np.int32)
    return places[numbers], np.repeat(np.arange(len(packed)), lengths), lengths


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
