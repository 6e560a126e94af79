"""Local users: the people in a node's CSV or SQLite files, and their examples."""

from __future__ import annotations

import csv
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedpriv.datasets.user_ids import normalise_name, read_key, read_roster, user_id

_DTYPES = {float: np.float64, int: np.int64, str: np.str_}
_WORDS = {float: "finite number", int: "whole number", str: "text"}


class BadRowError(ValueError):
    """Error of a malformed row: names its place and column, and never its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns of the rows of a node's people.

    Attributes:
        columns: What is read, by name: `float`, `int` or `str`. An empty value is none of them.
        user: The column that says whose a row is; of a folder with one file a person, none is read.
        name: The table of an SQLite file; "" where it has only one.
    """

    columns: Mapping[str, type]
    user: str = "user"
    name: str = ""

    def __post_init__(self) -> None:
        for column, kind in self.columns.items():
            if kind not in _DTYPES:
                raise ValueError(f"column {column!r} is of {kind!r}; say float, int or str")
        if self.user in self.columns:
            raise ValueError(
                f"column {self.user!r} says whose a row is; leave it out of the columns"
            )

    def parse(self, rows: Iterable[tuple[str, Sequence[Any]]]) -> dict[str, np.ndarray]:
        """Return the columns of one person's rows.

        Args:
            rows: Where each is, for messages, and its values in the order of `columns`.

        Returns:
            By column, float64, int64 or text `(rows,)`.

        Raises:
            BadRowError: For the first value that is not of its column's kind.
        """
        found: dict[str, list[Any]] = {column: [] for column in self.columns}
        for where, values in rows:
            for (column, kind), value in zip(self.columns.items(), values, strict=True):
                found[column].append(_value(kind, value, column, where))
        return {
            column: np.array(values, _DTYPES[self.columns[column]])
            for column, values in found.items()
        }


def _value(kind: type, given: Any, column: str, where: str) -> Any:
    value: Any = None
    numeric = kind is not str and isinstance(given, str)
    if not (given is None or given == "" or isinstance(given, bytes) or (numeric and "_" in given)):
        try:
            value = kind(given)
        except (ValueError, OverflowError):
            value = None
    if kind is int and (value is None or isinstance(given, float) or not -(2**63) <= value < 2**63):
        value = None
    if value is None or (kind is float and not math.isfinite(value)):
        raise BadRowError(f"{where}: column {column!r} holds no {_WORDS[kind]}")
    return value


class CsvFolder:
    """A folder with one file `NAME.csv` a person. Nothing of a file is read before it is asked for.

    Args:
        folder: The folder; other files in it are not looked at.
        table: What a row is; its `user` is not read.

    Raises:
        ValueError: If two files are of one name.
    """

    def __init__(self, folder: Path, table: Table) -> None:
        self._table, self._files = table, {}
        for file in sorted(folder.glob("*.csv")):
            name = normalise_name(file.stem)
            if name in self._files:
                raise ValueError(f"two files of {folder} are of one person; put them together")
            self._files[name] = file

    @property
    def names(self) -> tuple[str, ...]:
        """The people, by their files' names."""
        return tuple(self._files)

    @property
    def problems(self) -> tuple[str, ...]:
        """Rows that name no person: none, since a file is of one person."""
        return ()

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """Return the columns of a person's rows, in the order of the file.

        Raises:
            BadRowError: With the file and the line of what cannot be taken.
        """
        file = self._files[name]
        return self._table.parse(
            (where, values) for where, _, values in _rows(file, self._table, None)
        )


class CsvFile:
    """One file with a column that says whose a row is. It is read whole, once.

    Args:
        file: The file.
        table: What a row is.

    Raises:
        BadRowError: If its header lacks a column, or it is no text in UTF-8.
    """

    def __init__(self, file: Path, table: Table) -> None:
        self._table = table
        self._of: dict[str, list[tuple[str, Sequence[str]]]] = {}
        problems = []
        for where, user, values in _rows(file, table, problems):
            self._of.setdefault(user, []).append((where, values))
        self.problems = tuple(problems)

    @property
    def names(self) -> tuple[str, ...]:
        """The people in the file."""
        return tuple(self._of)

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """Return the columns of a person's rows, in the order of the file.

        Raises:
            BadRowError: With the file and the line of what cannot be taken.
        """
        return self._table.parse(self._of[name])


def _rows(
    file: Path, table: Table, problems: list[str] | None
) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield where a row is, whose it is, and its values.

    Args:
        file: To be read.
        table: What a row is.
        problems: Takes rows that name no person, which are then left out; None reads no user
            column, and raises for a row of another length.

    Raises:
        BadRowError: If the header lacks a column, the file is no text, or as above.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            lines = csv.reader(text, strict=True)
            header = next(lines, [])
            wanted = [*([] if problems is None else [table.user]), *table.columns]
            if missing := [column for column in wanted if column not in header]:
                raise BadRowError(f"{file}, line 1: no column {missing[0]!r}")
            places = [header.index(column) for column in wanted]
            for row in lines:
                if not row:
                    continue
                where, problem = f"{file}, line {lines.line_num}", ""
                if len(row) != len(header):
                    problem = f"{where}: {len(row)} values under {len(header)} columns"
                    if problems is None:
                        raise BadRowError(problem)
                values = [] if problem else [row[place] for place in places]
                user = "" if problems is None or problem else normalise_name(values.pop(0))
                if problems is not None and not user:
                    problems.append(problem or f"{where}: column {table.user!r} is empty")
                    continue
                yield where, user, values
    except csv.Error as error:
        raise BadRowError(f"{file}: {error}") from None
    except UnicodeDecodeError:
        raise BadRowError(f"{file}: no text in UTF-8") from None
    except OSError as error:
        raise BadRowError(f"{file}: {error.strerror}") from None


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
                if isinstance(name, (str, int)) and normalise_name(str(name)):
                    self._spelt.setdefault(normalise_name(str(name)), []).append(name)
                else:
                    problems.append(f"{file}: rows whose {table.user!r} names no one")
        self.problems = tuple(dict.fromkeys(problems))

    @property
    def names(self) -> tuple[str, ...]:
        """The people in the table."""
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
        return self._table.parse((f"{self._file}, row {row[0]}", row[1:]) for row in rows)

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


Examples = Callable[[Mapping[str, np.ndarray]], Any]
"""From one person's columns to that user's examples, such as a pair (x, y) of arrays."""

_CSV, _SQLITE = (".csv",), (".sqlite", ".sqlite3", ".db")
#: Of files that are read, in lower case.
SUFFIXES = (*_CSV, *_SQLITE)


@dataclass(frozen=True, slots=True)
class NodeData:
    """Place of a node's local data, from `data` and `data-key` of its node-config.

    Attributes:
        path: A folder of CSV files (one a person), a CSV file, or an SQLite file.
        key: The file of the key that ids are made with.
    """

    path: Path
    key: Path


class _Source(Protocol):
    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def problems(self) -> tuple[str, ...]: ...

    def columns(self, name: str) -> dict[str, np.ndarray]: ...


class NodeUsers(Mapping[str, Any]):
    """Users by id whose examples are read in rounds alone, not even to see their format."""


class RemoteUsers(NodeUsers):
    """Users of a roster on a server, which has their ids and no example."""

    def __init__(self, roster: tuple[str, ...]) -> None:
        self._roster = roster

    def __getitem__(self, user_id: str) -> Any:
        raise KeyError("a user's examples are on its node")

    def __iter__(self) -> Iterator[str]:
        return iter(self._roster)

    def __len__(self) -> int:
        return len(self._roster)


class LocalUsers(NodeUsers):
    """Users of a node's local files; a user's examples are read when they are asked for.

    Guarantees:
        * A bad row affects its own user alone, who raises and contributes zero.
        * What is raised names a file and a line, and no value.
    """

    def __init__(self, source: _Source, examples: Examples, key: bytes, path: Path) -> None:
        self._source, self._examples = source, examples
        self._name_of = {user_id(key, name): name for name in source.names}
        if not self._name_of:
            raise ValueError(f"{path} holds no one's data; give the files of this node's people")

    def __getitem__(self, user_id: str) -> Any:
        return self._examples(self._source.columns(self._name_of[user_id]))

    def __contains__(self, user_id: object) -> bool:
        return user_id in self._name_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._name_of)

    def __len__(self) -> int:
        return len(self._name_of)

    def problems(self) -> Iterator[str]:
        """Read everybody, and yield what cannot be taken: file, line and column, a line each.

        For the operator of the node: names of files may be names of people.
        """
        yield from self._source.problems
        for name_id in self:
            try:
                self[name_id]
            except Exception as error:  # of user-defined code too, which sees one person at a time
                kind = type(error).__name__
                yield str(error) if isinstance(error, ValueError) else f"{name_id}: {kind}"


def local_users(
    table: Table,
    examples: Examples,
    *,
    data: NodeData | None = None,
    roster: str | Path = "",
) -> NodeUsers:
    """Return a task's users: on a node those of its local files, on a server those of the roster.

    Args:
        table: What a row is.
        examples: Makes one user's examples of its columns.
        data: Where this node's data lie; None on a server.
        roster: The file of all ids, one a line; read where there are no data.

    Raises:
        ValueError: If neither is given, a file is not there, or lacks a column.
        PermissionError: If others may read the key.
    """
    if data is not None:
        key = read_key(data.key)
        return LocalUsers(open_source(data.path, table), examples, key, data.path)
    if not str(roster):
        raise ValueError(
            "there is neither a roster nor a node's data: the server needs the file of all ids, "
            'and a node --node-config \'data="/path" data-key="/path"\''
        )
    return RemoteUsers(read_roster(Path(roster)))


def open_source(path: Path, table: Table) -> _Source:
    """Return what reads a folder of CSV files, a CSV file or an SQLite file.

    Raises:
        ValueError: If it is neither, or lacks a table or a column.
    """
    if path.is_dir():
        return CsvFolder(path, table)
    if not path.is_file():
        raise ValueError(
            f"{path} is not there; give a folder of CSV files, or a CSV or SQLite file"
        )
    if path.suffix.lower() in _CSV:
        return CsvFile(path, table)
    if path.suffix.lower() in _SQLITE:
        return SqliteTable(path, table)
    raise ValueError(
        f"{path} ends in none of {', '.join(SUFFIXES)}; give a folder of CSV files, or a "
        "CSV or SQLite file"
    )
