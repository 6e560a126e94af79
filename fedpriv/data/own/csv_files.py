"""A node's own people in CSV: a folder with one file a person, or one file with a user column."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedpriv.data.own.ids import normalised
from fedpriv.data.own.table import BadRowError, Table


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
            name = normalised(file.stem)
            if name in self._files:
                raise ValueError(f"two files of {folder} are of one person; put them together")
            self._files[name] = file

    @property
    def names(self) -> tuple[str, ...]:
        """Whose files there are."""
        return tuple(self._files)

    @property
    def problems(self) -> tuple[str, ...]:
        """Rows of which nobody knows whose they are: none, a file is of one person."""
        return ()

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """Return the columns of a person's rows, in the order of the file.

        Raises:
            BadRowError: With the file and the line of what cannot be taken.
        """
        file = self._files[name]
        return self._table.parsed(
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
        """Who is in the file."""
        return tuple(self._of)

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """Return the columns of a person's rows, in the order of the file.

        Raises:
            BadRowError: With the file and the line of what cannot be taken.
        """
        return self._table.parsed(self._of[name])


def _rows(
    file: Path, table: Table, problems: list[str] | None
) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield where a row is, whose it is, and its values.

    Args:
        file: To be read.
        table: What a row is.
        problems: Takes rows that are nobody's, which are then left out; None reads no user column,
            and raises for a row of another length.

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
                where, said = f"{file}, line {lines.line_num}", ""
                if len(row) != len(header):
                    said = f"{where}: {len(row)} values under {len(header)} columns"
                    if problems is None:
                        raise BadRowError(said)
                values = [] if said else [row[place] for place in places]
                user = "" if problems is None or said else normalised(values.pop(0))
                if problems is not None and not user:
                    problems.append(said or f"{where}: column {table.user!r} is empty")
                    continue
                yield where, user, values
    except csv.Error as error:
        raise BadRowError(f"{file}: {error}") from None
    except UnicodeDecodeError:
        raise BadRowError(f"{file}: no text in UTF-8") from None
    except OSError as error:
        raise BadRowError(f"{file}: {error.strerror}") from None
