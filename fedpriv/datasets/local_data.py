"""Local users: the people in a node's CSV or SQLite files, and their examples."""

from __future__ import annotations

import csv
import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.user_ids import name_of, no_name, read_key, read_roster, user_id

# Texts as objects: an array of np.str_ takes the longest one's memory for each.
_DTYPES = {float: np.float64, int: np.int64, str: np.object_}
_CSV, _SQLITE = (".csv",), (".sqlite", ".sqlite3", ".db")
#: Of files that are read, in lower case.
SUFFIXES = (*_CSV, *_SQLITE)
_WORDS = {float: "finite number", int: "whole number", str: "text"}
_FITS: Mapping[Any, Callable[[Any], bool]] = {
    float: math.isfinite,
    int: lambda number: -(2**63) <= number < 2**63,
    str: lambda text: bool(text) and _is_utf8(text),
}
_MOST_COLUMNS = 8  # that a message lists
_SURROGATES = re.compile("[\ud800-\udfff]")  # what bytes that are not UTF-8 are read as


Row = tuple[str, Sequence[Any]]
"""Place of a row, for messages, and its values in the order of a table's columns."""


class BadRowError(ValueError):
    """Error of a malformed row: names its place and column, and never its value."""


class MissingColumnError(BadRowError):
    """Error of a CSV file that lacks a column.

    Attributes:
        columns: What its first line has instead. Of a file without a header these are a person's
            values: they are no part of the message, which a server may get.
    """

    def __init__(self, message: str, columns: Sequence[str]) -> None:
        super().__init__(message)
        self.columns = tuple(columns)

    def listing(self) -> str:
        """Return the message with the columns, for who has the file."""
        return f"{self}; it has {', '.join(self.columns[:_MOST_COLUMNS]) or 'none'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns of the rows of a node's people.

    Attributes:
        columns: What is read, by name: `float`, `int` or `str`, as arrays of float64, int64 or
            Python's strings (dtype object). An empty value is none of them.
        user: The column that says whose a row is; of a folder with one file a person, none is read.
        name: The table of an SQLite file; "" where it has only one.
        allowed: What a column may hold, by its name: a set of values, such as `{0, 1}`, or the
            least and the most of numbers, such as `(0, 130)`. Others are of no row.
        line_breaks: Whether a quoted value of a CSV file may have line breaks. Without, a row is a
            line, and no quote of one person's reaches another's row; with them, quotes must be
            right: what one that is not closed reaches is read as its own value.
    """

    columns: Mapping[str, type]
    user: str = "user"
    name: str = ""
    allowed: Mapping[str, Set[Any] | tuple[float, float]] = field(default_factory=dict)
    line_breaks: bool = False

    def __post_init__(self) -> None:
        for column, given in self.allowed.items():
            kind = self.columns.get(column)
            if kind is None:
                raise ValueError(f"allowed: column {column!r} is not among the columns")
            if isinstance(given, tuple):
                fits = kind is not str and len(given) == 2 and given[0] <= given[1]
            else:
                fits = isinstance(given, Set) and bool(given)
            if not fits:
                raise ValueError(
                    f"column {column!r}: {given!r} is neither a set of values nor the least and "
                    "the most of numbers; give one, such as {0, 1} or (0, 130)"
                )
        for column, kind in self.columns.items():
            if kind not in _DTYPES:
                raise ValueError(f"column {column!r} is of {kind!r}; say float, int or str")
        if self.user in self.columns:
            raise ValueError(
                f"column {self.user!r} says whose a row is; leave it out of the columns"
            )

    def parse(self, rows: Iterable[Row]) -> dict[str, np.ndarray]:
        """Return the columns of one person's rows.

        Args:
            rows: Where each is, for messages, and its values in the order of `columns`.

        Returns:
            By column, float64, int64 or objects (of `str`) `(rows,)`.

        Raises:
            BadRowError: For the first value that is not of its column's kind, or not allowed.
        """
        found: dict[str, list[Any]] = {column: [] for column in self.columns}
        for where, values in rows:
            for (column, kind), value in zip(self.columns.items(), values, strict=True):
                found[column].append(_value(kind, value, column, where, self.allowed.get(column)))
        return {
            column: np.array(values, _DTYPES[self.columns[column]])
            for column, values in found.items()
        }


def _is_utf8(text: str) -> bool:
    return _SURROGATES.search(text) is None


def _value(
    kind: Callable[[Any], Any],
    given: Any,
    column: str,
    where: str,
    allowed: Set[Any] | tuple[float, float] | None,
) -> Any:
    unfit = (
        given in (None, "") or isinstance(given, bytes) or (kind is int and type(given) is float)
    )
    unfit = unfit or (kind is not str and isinstance(given, str) and "_" in given)
    if not unfit:
        with suppress(ValueError, OverflowError):
            value = kind(given)
            if _FITS[kind](value) and _is_allowed(value, allowed):
                return value
    raise BadRowError(f"{where}: column {column!r} holds no {_WORDS[kind]}{_described(allowed)}")


def _is_allowed(value: Any, allowed: Set[Any] | tuple[float, float] | None) -> bool:
    if isinstance(allowed, tuple):
        return allowed[0] <= value <= allowed[1]
    return allowed is None or value in allowed


def _described(allowed: Set[Any] | tuple[float, float] | None) -> str:
    if isinstance(allowed, tuple):
        return f" from {allowed[0]:g} to {allowed[1]:g}"
    return "" if allowed is None else f" of {', '.join(sorted(map(repr, allowed)))}"


@dataclass(frozen=True, slots=True)
class Source:
    """People of a node's files.

    Attributes:
        rows: By a person's name, what reads that person's rows; it raises `BadRowError`, with the
            file and line, where they cannot be read.
        problems: Rows, and files of a folder, that name no person, and rows that are no CSV.
    """

    rows: Mapping[str, Callable[[], Iterable[Row]]]
    problems: tuple[str, ...] = ()


def open_source(path: Path, table: Table) -> Source:
    """Return the people of a folder of CSV files, a CSV file or an SQLite file.

    A folder has one file `NAME.csv` a person, read when it is asked for; others in it are not
    looked at, and the user column is not read. A CSV file is read whole, once. An SQLite file is
    opened for reading only, and for each person again, since processes that are forked off must not
    share a connection; an index on the user column makes that fast.

    A row of CSV is a line, or several where a quoted value has them and `table` says that it may.
    A line whose quotes are not closed as CSV has it is a bad row alone, and what follows is read
    as if it were not there.

    Raises:
        ValueError: If it is neither, or lacks a table or a column, or has a column twice.
    """
    if path.is_dir():
        return _open_folder(path, table)
    if not path.is_file():
        raise ValueError(
            f"{path} is not there; give a folder of CSV files, or a CSV or SQLite file"
        )
    if path.suffix.lower() in _CSV:
        return _open_csv(path, table)
    if path.suffix.lower() in _SQLITE:
        return _open_sqlite(path, table)
    raise ValueError(
        f"{path} ends in none of {', '.join(SUFFIXES)}; give a folder of CSV files, or a "
        "CSV or SQLite file"
    )


def _open_folder(folder: Path, table: Table) -> Source:
    rows: dict[str, Callable[[], Iterable[Row]]] = {}
    problems = []
    for file in sorted(folder.glob("*.csv")):
        name = name_of(file.stem)
        if name in rows:
            raise ValueError(f"two files of {folder} are of one person; put them together")
        if name:
            rows[name] = partial(_rows_of_file, file, table)
        else:
            problems.append(f"{os.fsencode(file)}: its name names no one")
    return Source(rows, tuple(problems))


def _rows_of_file(file: Path, table: Table) -> Iterator[Row]:
    for where, values, problem in _csv_rows(file, list(table.columns), table.line_breaks):
        if problem:
            raise BadRowError(problem)
        yield where, values


def _open_csv(file: Path, table: Table) -> Source:
    found: dict[str, list[Row]] = {}
    problems = []
    rows = _csv_rows(file, [table.user, *table.columns], table.line_breaks)
    for where, (user, *values), problem in rows:
        if name := name_of(user):
            found.setdefault(name, []).append((where, values))
        else:
            problems.append(problem or f"{where}: column {table.user!r} names no one")
    return Source({name: partial(iter, rows) for name, rows in found.items()}, tuple(problems))


def _csv_rows(
    file: Path, wanted: list[str], line_breaks: bool
) -> Iterator[tuple[str, list[str], str]]:
    """Yield where each row is, its values of the columns wanted, and what is wrong with it.

    A bad row, also one of another length than the header, has empty values.

    Raises:
        BadRowError: If the header lacks a column or has it twice, or the file cannot be read.
    """
    try:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            lines = _csv_lines(text, line_breaks)
            _, header, _ = next(lines, (1, [], ""))
            for column in wanted:
                if column not in header:
                    raise MissingColumnError(f"{file}, line 1: no column {column!r}", header)
                if header.count(column) > 1:
                    raise BadRowError(f"{file}, line 1: two columns {column!r}")
            places = [header.index(column) for column in wanted]
            for number, row, problem in lines:
                where = f"{file}, line {number}"
                if problem:
                    yield where, [""] * len(wanted), f"{where}: {problem}"
                elif row:
                    yield where, [row[place] for place in places], ""
    except OSError as error:
        raise BadRowError(f"{file}: {error.strerror}") from None


_UNCLOSED = "unexpected end of data"  # as `csv` says it of quotes


def _csv_lines(text: Iterator[str], line_breaks: bool) -> Iterator[tuple[int, list[str], str]]:
    """Yield each row's last line, its values, and what is wrong with it: the header, then others.

    Where quotes are wrong, the first line alone is a bad row, and what follows is read again. With
    line breaks a row of another length than the header is one bad row, however many lines it has:
    its text makes no other row.
    """
    csv.field_size_limit(2**31 - 1)  # of the process: the default, 2^17, is less than long texts
    number, length = 0, 0
    again: list[str] = []
    while line := again.pop() if again else next(text, ""):
        taken = [line]

        def lines(taken: list[str] = taken) -> Iterator[str]:
            yield taken[0]
            while line_breaks and (more := again.pop() if again else next(text, "")):
                taken.append(more)
                yield more

        row, problem = [], ""
        try:
            row = next(csv.reader(lines(), strict=True))
        except csv.Error as error:
            problem = str(error)
            if problem == _UNCLOSED and not line_breaks:
                problem = "a quote is not closed on its line, and line_breaks are not declared"
            again.extend(reversed(taken[1:]))
            del taken[1:]
        length = length or len(row)
        if row and len(row) != length:
            problem = f"{len(row)} values under {length} columns"
        number += len(taken)
        yield number, row, problem


_MOST_AT_ONCE = 500  # spellings of one name in a question, of the 999 that SQLite takes


def _open_sqlite(file: Path, table: Table) -> Source:
    with _database(file) as db:
        found = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        names = [str(name) for (name,) in db.execute(found) if not name.startswith("sqlite_")]
        wanted = table.name or (names[0] if len(names) == 1 else "")
        if wanted not in names:
            raise ValueError(
                f"{file} has the tables {', '.join(sorted(names)) or '(none)'} and no "
                f"{wanted or 'only one'}; say which by name"
            )
        quoted, user = _quoted(wanted), _quoted(table.user)
        there = [str(row[1]) for row in db.execute(f"PRAGMA table_info({quoted})")]
        for column in (table.user, *table.columns):
            if column not in there:
                raise ValueError(
                    f"table {wanted!r} of {file} has no column {column!r}; it has "
                    f"{', '.join(there)}"
                )
        row_id = "rowid"
        try:
            db.execute(f"SELECT rowid FROM {quoted} LIMIT 1").fetchall()
        except sqlite3.OperationalError:  # a view, whose rows are in no order
            row_id = "0"
        spelt: dict[str, list[str | int]] = {}
        problems: tuple[str, ...] = ()
        for (name,) in db.execute(f"SELECT DISTINCT {user} FROM {quoted} ORDER BY 1"):
            if person := name_of(name):
                spelt.setdefault(person, []).append(name)
            else:
                problems = (f"{file}: rows whose {table.user!r} {no_name(name)}",)
    columns = ", ".join([row_id, *map(_quoted, table.columns)])
    query = f"SELECT {columns} FROM {quoted} WHERE {user} IN"
    return Source(
        {name: partial(_rows_of_names, file, query, names) for name, names in spelt.items()},
        problems,
    )


def _rows_of_names(file: Path, query: str, spelt: list[str | int]) -> list[Row]:
    if len(spelt) > _MOST_AT_ONCE:
        raise BadRowError(f"{file}: a name is spelt in {len(spelt)} ways")
    with _database(file) as db:
        rows = db.execute(f"{query} ({', '.join('?' * len(spelt))}) ORDER BY 1", spelt).fetchall()
    return [(f"{file}, row {row[0]}", row[1:]) for row in rows]


@contextmanager
def _database(file: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as db:
            db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
            yield db
    except sqlite3.Error as error:
        raise BadRowError(f"{file}: {type(error).__name__} of SQLite{_advice(file)}") from None


def _advice(file: Path) -> str:
    with suppress(OSError), file.open("rb") as start:
        if start.read(20)[18:] == b"\2\2":  # as SQLite's file format has it
            return (
                "; it is in WAL mode, in which SQLite writes in its folder to read it: where it "
                "may not, PRAGMA journal_mode=DELETE first"
            )
    return ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


Examples = Callable[[Mapping[str, np.ndarray]], Any]
"""From one person's columns to that user's examples, such as a pair (x, y) of arrays."""


@dataclass(frozen=True, slots=True)
class NodeData:
    """Place of a node's local data, from `data` and `data-key` of its node-config.

    Attributes:
        path: A folder of CSV files (one a person), a CSV file, or an SQLite file.
        key: The file of the key that ids are made with.
    """

    path: Path
    key: Path


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

    def __init__(self, data: NodeData, table: Table, examples: Examples) -> None:
        key, source = read_key(data.key), open_source(data.path, table)
        self._table, self._examples, self._unnamed = table, examples, source.problems
        self._rows = {user_id(key, name): rows for name, rows in source.rows.items()}
        if not self._rows:
            first = f" ({source.problems[0]})" if source.problems else ""
            raise ValueError(
                f"{data.path} holds no one's data{first}; give the files of this node's people"
            )

    def __getitem__(self, user_id: str) -> Any:
        return self._examples(self._table.parse(self._rows[user_id]()))

    def __contains__(self, user_id: object) -> bool:
        return user_id in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def problems(self) -> Iterator[str]:
        """Read everybody, and yield what cannot be taken: file, line and column, a line each.

        For the operator of the node: names of files may be names of people.
        """
        yield from self._unnamed
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
        return LocalUsers(data, table, examples)
    if not str(roster):
        raise ValueError(
            "there is neither a roster nor a node's data: the server needs the file of all ids, "
            'and a node --node-config \'data="/path" data-key="/path"\''
        )
    return RemoteUsers(read_roster(Path(roster)))
