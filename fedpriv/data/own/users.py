"""Users whose examples lie in files of their node, and what a server has of them: ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedpriv.data.own.csv_files import CsvFile, CsvFolder
from fedpriv.data.own.ids import read_key, read_roster, user_id
from fedpriv.data.own.sqlite import SqliteTable
from fedpriv.data.own.table import Table

Examples = Callable[[Mapping[str, np.ndarray]], Any]
"""From one person's columns to that user's examples, such as a pair (x, y) of arrays."""

_CSV, _SQLITE = (".csv",), (".sqlite", ".sqlite3", ".db")
#: Of files that are read, in lower case.
SUFFIXES = (*_CSV, *_SQLITE)


@dataclass(frozen=True, slots=True)
class NodeData:
    """Where a node's own data lie, as its node-config says by `data` and `data-key`.

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


class UsersOnNodes(Mapping[str, Any]):
    """Users by id. Nobody but a round reads their examples, not even to see what form they have."""


class Elsewhere(UsersOnNodes):
    """The users of a roster as a server knows them: by id, and with no example."""

    def __init__(self, roster: tuple[str, ...]) -> None:
        self._roster = roster

    def __getitem__(self, user_id: str) -> Any:
        raise KeyError("a user's examples are on its node")

    def __iter__(self) -> Iterator[str]:
        return iter(self._roster)

    def __len__(self) -> int:
        return len(self._roster)


class OwnUsers(UsersOnNodes):
    """The users of a node's own files; a user's examples are read when they are asked for.

    Guarantees:
        * A bad row costs nobody else anything: it is the user that raises, and contributes zero.
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
            except Exception as error:  # of the own code too, which sees one person at a time
                kind = type(error).__name__
                yield str(error) if isinstance(error, ValueError) else f"{name_id}: {kind}"


def own_users(
    table: Table,
    examples: Examples,
    *,
    data: NodeData | None = None,
    roster: str | Path = "",
) -> UsersOnNodes:
    """Return a task's users: on a node those of its own files, on a server those of the roster.

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
        return OwnUsers(open_source(data.path, table), examples, key, data.path)
    if not str(roster):
        raise ValueError(
            "there is neither a roster nor a node's data: the server needs the file of all ids, "
            'and a node --node-config \'data="/path" data-key="/path"\''
        )
    return Elsewhere(read_roster(Path(roster)))


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
