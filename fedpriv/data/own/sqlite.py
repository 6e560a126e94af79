"""A node's own people in a table of an SQLite file, read person by person."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from fedpriv.data.own.ids import normalised
from fedpriv.data.own.table import BadRowError, Table

_MOST_AT_ONCE = 500  # spellings of one name in a question, of the 999 that SQLite takes


class SqliteTable:
    """A table with a column that says whose a row is; an index on that column makes it fast.

    The file is opened for reading only, and for each question anew: a process that is forked off
    must not share a connection.

    Args:
        file: The database.
        table: What a row is.

    Raises:
        ValueError: If it is no database, or has no such table or column.
    """

    def __init__(self, file: Path, table: Table) -> None:
        self._file, self._table = file, table
        with self._open() as db:
            found = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            names = [str(name) for (name,) in db.execute(found) if not name.startswith("sqlite_")]
            wanted = table.name or (names[0] if len(names) == 1 else "")
            if wanted not in names:
                raise ValueError(
                    f"{file} has the tables {', '.join(sorted(names)) or '(none)'} and no "
                    f"{wanted or 'only one'}; say which by name"
                )
            self._name = _quoted(wanted)
            there = [str(row[1]) for row in db.execute(f"PRAGMA table_info({self._name})")]
            for column in (table.user, *table.columns):
                if column not in there:
                    raise ValueError(
                        f"table {wanted!r} of {file} has no column {column!r}; it has "
                        f"{', '.join(there)}"
                    )
            self._row = _row_ids(db, self._name)
            self._spelt: dict[str, list[str | int]] = {}
            problems = []
            user = _quoted(table.user)
            for (name,) in db.execute(f"SELECT DISTINCT {user} FROM {self._name} ORDER BY 1"):
                if isinstance(name, (str, int)) and normalised(str(name)):
                    self._spelt.setdefault(normalised(str(name)), []).append(name)
                else:
                    problems.append(f"{file}: rows whose {table.user!r} names no one")
        self.problems = tuple(dict.fromkeys(problems))

    @property
    def names(self) -> tuple[str, ...]:
        """Who is in the table."""
        return tuple(self._spelt)

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """Return the columns of a person's rows, in the order of the table.

        Raises:
            BadRowError: With the file and the row of what cannot be taken.
        """
        spelt = self._spelt[name]
        if len(spelt) > _MOST_AT_ONCE:
            raise BadRowError(f"{self._file}: a name is spelt in {len(spelt)} ways")
        columns = ", ".join(_quoted(column) for column in self._table.columns)
        marks = ", ".join("?" * len(spelt))
        asked = (
            f"SELECT {self._row}, {columns} FROM {self._name} "
            f"WHERE {_quoted(self._table.user)} IN ({marks}) ORDER BY 1"
        )
        with self._open() as db:
            rows = db.execute(asked, spelt).fetchall()
        return self._table.parsed((f"{self._file}, row {row[0]}", row[1:]) for row in rows)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        where = f"{self._file.resolve().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(where, uri=True)) as db:
                yield db
        except sqlite3.Error as error:
            raise BadRowError(f"{self._file}: {type(error).__name__} of SQLite") from None


def _row_ids(db: sqlite3.Connection, name: str) -> str:
    """Return what counts a table's rows; a view's are in no order of their own."""
    try:
        db.execute(f"SELECT rowid FROM {name} LIMIT 1").fetchall()
    except sqlite3.OperationalError:
        return "0"
    return "rowid"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
