"""Group a stream of sentences by user: flat files in, the store's sorted files out.

Memory holds one batch of sentences plus a few numbers per user, per distinct word and per sentence
of the batch; the rest stays in files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpriv.data.files.arrays import ArrayWriter, offsets, ranges, smallest_unsigned
from fedpriv.data.sentences.interning import Interner
from fedpriv.data.sentences.store import BATCH_SENTENCES, ELSEWHERE

COLUMNS = (
    "users", "title_users", "askers", "threads", "days", "num_tokens", "num_own_tokens", "num_tags",
    "num_sentence_tokens", "kinds", "words", "tags",
)  # fmt: skip
"""Names of the raw files: int32, in the order in which sentences were added."""

_PIECE = 1 << 20
_PICK = 1 << 12
_PICK_WORDS = 1 << 16  # words come in runs, one run a sentence


def group(raw: Path, directory: Path, interners: Mapping[str, Interner]) -> dict[str, int]:
    """Write the files that `fedpriv.data.sentences.store` describes.

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
    users, user_map = _sorted_names(interners["users"])
    (directory / "users.json").write_text(json.dumps(users), "utf-8")
    word_map = _write_names(directory / "words.txt", interners["words"])
    tag_map = _write_names(directory / "tags.txt", interners["tags"])
    thread_map = _write_names(directory / "threads.txt", interners["threads"])
    if (raw / "titles").is_file():
        _write_in_order(directory / "titles.txt", raw / "titles", thread_map)
    title_map = _title_map(interners["title_users"], users)
    sorter = _Sorter(raw, user_map)
    sorter.sort()
    (directory / "sentences").mkdir()
    np.save(directory / "sentences" / "user_offsets.npy", sorter.user_offsets)
    maps = _Maps(words=word_map, tags=tag_map, askers=title_map, threads=thread_map)
    num_tokens = _write(directory / "sentences", raw, sorter, maps)
    return {
        "users": len(users),
        "sentences": sorter.num_sentences,
        "tokens": num_tokens,
        "words": len(word_map),
        "tags": len(tag_map),
        "threads": len(thread_map),
        "most_tokens_in_a_sentence": sorter.most_tokens,
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Maps:
    """From raw numbers to those of the store."""

    words: np.ndarray
    tags: np.ndarray
    askers: np.ndarray
    threads: np.ndarray

    def users(self, numbers: np.ndarray) -> np.ndarray:
        """Return accounts by their numbers in the store; what is below 0 stays."""
        return np.where(numbers < 0, numbers, self.askers[np.maximum(numbers, 0)])


class _Sorter:
    """Counting sort of the sentences by user, stable, from file to file."""

    def __init__(self, raw: Path, user_map: np.ndarray) -> None:
        self._raw = raw
        self._user_map = user_map
        self.num_sentences = (raw / "users").stat().st_size // 4
        self.most_tokens = 0
        self.user_offsets = np.zeros(len(user_map) + 1, dtype=np.int64)

    def sort(self) -> None:
        """Write `order`, `word_starts` and `tag_starts` next to the raw files (int64)."""
        counts = np.zeros(len(self._user_map), dtype=np.int64)
        for start in range(0, self.num_sentences, _PIECE):
            counts += np.bincount(self._users(start), minlength=len(counts))
        self.user_offsets = offsets(counts)
        following = self.user_offsets[:-1].copy()
        # Written whole first: a map over a file with holes kills the process when the disk is full.
        with (self._raw / "order").open("xb") as file:
            for start in range(0, self.num_sentences, _PIECE):
                file.write(bytes(8 * min(_PIECE, self.num_sentences - start)))
        for start in range(0, self.num_sentences, _PIECE):
            users = self._users(start)
            order = np.argsort(users, kind="stable")
            number = np.bincount(users, minlength=len(counts))
            places = ranges(following, number)
            following += number
            target = np.memmap(self._raw / "order", np.int64, "r+", shape=self.num_sentences)
            target[places] = start + order
            target.flush()
        self._starts("num_tokens", "word_starts")
        self._starts("num_tags", "tag_starts")

    def _users(self, start: int) -> np.ndarray:
        return self._user_map[read(self._raw, "users", start, _PIECE)]

    def _starts(self, column: str, name: str) -> None:
        total = 0
        with (self._raw / name).open("xb") as file:
            for start in range(0, self.num_sentences, _PIECE):
                lengths = read(self._raw, column, start, _PIECE).astype(np.int64)
                ends = total + np.cumsum(lengths)
                (ends - lengths).tofile(file)
                total = int(ends[-1])
                if column == "num_tokens":
                    self.most_tokens = max(self.most_tokens, int(lengths.max()))


def read(
    raw: Path, column: str, start: int, number: int, dtype: type[np.signedinteger] = np.int32
) -> np.ndarray:
    """Return part of a raw file, in memory."""
    itemsize = np.dtype(dtype).itemsize
    return np.fromfile(raw / column, dtype, count=number, offset=start * itemsize)


def _write(
    directory: Path,
    raw: Path,
    sorter: _Sorter,
    maps: _Maps,
) -> int:
    narrow = smallest_unsigned(sorter.most_tokens)
    types = {
        "word_offsets": np.int64, "words": np.int32, "counts": narrow, "own_counts": narrow,
        "num_tokens": np.int32, "title_users": np.int32, "askers": np.int32, "threads": np.int32,
        "days": np.int32, "tag_offsets": np.int64, "tags": np.int32,
        "sequence_offsets": np.int64, "sequences": np.int32, "kinds": np.uint8,
    }  # fmt: skip
    all_tokens = 0
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(ArrayWriter(directory / f"{name}.npy", dtype))
            for name, dtype in types.items()
        }
        files["word_offsets"].append(np.zeros(1, dtype=np.int64))
        files["tag_offsets"].append(np.zeros(1, dtype=np.int64))
        files["sequence_offsets"].append(np.zeros(1, dtype=np.int64))
        for start in range(0, sorter.num_sentences, BATCH_SENTENCES):
            rows = read(raw, "order", start, BATCH_SENTENCES, np.int64)
            tokens, token_rows = _runs(raw, rows, "words", "word_starts", "num_tokens")
            num_tokens = _pick(raw, "num_tokens", rows, np.int32)
            place = ranges(np.zeros(len(rows), dtype=np.int64), num_tokens)
            own = place < _pick(raw, "num_own_tokens", rows, np.int32)[token_rows]
            words = maps.words[tokens]
            in_order = _pick(raw, "num_sentence_tokens", rows, np.int32)
            files["sequence_offsets"].append(files["sequences"].length + np.cumsum(in_order))
            files["sequences"].append(words[place < in_order[token_rows]])
            files["kinds"].append(_pick(raw, "kinds", rows, np.int32))
            lengths, words, counts, own_counts = _count(token_rows, words, own, len(rows))
            files["word_offsets"].append(files["words"].length + np.cumsum(lengths))
            files["words"].append(words)
            files["counts"].append(counts)
            files["own_counts"].append(own_counts)
            files["num_tokens"].append(num_tokens)
            for column in ("title_users", "askers"):
                files[column].append(maps.users(_pick(raw, column, rows, np.int32)))
            files["threads"].append(maps.threads[_pick(raw, "threads", rows, np.int32)])
            files["days"].append(_pick(raw, "days", rows, np.int32))
            tags, tag_rows = _runs(raw, rows, "tags", "tag_starts", "num_tags")
            every = np.ones(len(tags), dtype=bool)
            lengths, names, _, _ = _count(tag_rows, maps.tags[tags], every, len(rows))
            files["tag_offsets"].append(files["tags"].length + np.cumsum(lengths))
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


def _sorted_names(interner: Interner) -> tuple[list[str], np.ndarray]:
    mapping = np.empty(len(interner), dtype=np.int32)
    names = []
    for position, (name, number) in enumerate(interner.sorted_pairs()):
        mapping[number] = position
        names.append(name)
    return names, mapping


def _write_names(path: Path, interner: Interner) -> np.ndarray:
    mapping = np.empty(len(interner), dtype=np.int32)
    with path.open("x", encoding="utf-8", newline="\n") as file:
        for position, (name, number) in enumerate(interner.sorted_pairs()):
            if "\n" in name:
                raise ValueError(f"{name!r} holds a line break; split it before adding it")
            mapping[number] = position
            file.write(name + "\n")
    return mapping


def _write_in_order(path: Path, raw: Path, mapping: np.ndarray) -> None:
    """Write the lines of a raw file in the order of their numbers in the store."""
    with raw.open("rb") as lines:
        starts = offsets(np.fromiter(map(len, lines), np.int64, len(mapping)))
        with path.open("xb") as file:
            for number in np.argsort(mapping).tolist():
                lines.seek(int(starts[number]))
                file.write(lines.readline())


def _title_map(interner: Interner, users: list[str]) -> np.ndarray:
    positions = {user: position for position, user in enumerate(users)}
    mapping = np.full(max(len(interner), 1), ELSEWHERE, dtype=np.int32)
    for name, number in interner.sorted_pairs():
        mapping[number] = positions.get(name, ELSEWHERE)
    return mapping
