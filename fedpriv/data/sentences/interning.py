"""Number strings in memory that does not grow with how many there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path


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
