r"""Data sets by user in tables with a user column: CSV, SQLite, Parquet, Hugging Face `datasets`.

The files are your own, or somebody's whose licence is theirs to state. Anyone who has the row of a
person with several ids has several users: give them one id first.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     file = Path(folder) / "visits.csv"
...     _ = file.write_text("patient,age,returned\nann,40,1\nbob,50,0\nann,41,0\n")
...     table = Table(user="patient", columns={"age": float, "returned": int})
...     users = read_table(file, table, lambda row: (row["age"][:, None], row["returned"]))
>>> {user: y.tolist() for user, (_, y) in users.items()}
{'ann': [1, 0], 'bob': [0]}
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.local_data import (
    BadRowError,
    Examples,
    MissingColumnError,
    Table,
    open_source,
)
from fedpriv.datasets.partitions import split_by_ids
from fedpriv.libraries import library, need

_PARQUET = (".parquet", ".pq")


def read_table(path: str | os.PathLike[str], table: Table, examples: Examples) -> dict[str, Any]:
    """Return each user's examples, made of the columns of that user's rows.

    A CSV file has one header line, commas and UTF-8, and a row a line unless `table` declares line
    breaks; of a folder of them each is of the person in its name. Parquet (`.parquet`, by the extra
    `data`) has plain columns. Rows keep their order.

    Args:
        path: A CSV, SQLite or Parquet file, or a folder of CSV files.
        table: The user column, and what is read of a row.
        examples: From arrays by column, a row each, to one user's examples, such as (x, y).

    Returns:
        By the names in the user column, sorted, as `ModuleTask(users=...)` takes them.

    Raises:
        ValueError: For a file that is not there or of another kind, a missing column, or a value
            that is empty or not of its column's kind; names file and row, and not the value. For
            Parquet, if the extra `data` is not installed.
    """
    path = Path(path)
    if path.suffix.lower() in _PARQUET:
        return _read_parquet(path, table, examples)
    try:
        source = open_source(path, table)
    except MissingColumnError as error:
        raise ValueError(error.listing()) from None
    if source.problems:
        raise BadRowError(source.problems[0])
    if not source.rows:
        raise ValueError(f"{path} has no row; give a file with some")
    return {user: examples(table.parse(source.rows[user]())) for user in sorted(source.rows)}


def _read_parquet(path: Path, table: Table, examples: Examples) -> dict[str, Any]:
    need("pyarrow", "data", "a Parquet file")
    pyarrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    if not path.is_file():
        raise ValueError(f"{path} is not there; give a Parquet file")
    wanted = [table.user, *table.columns]
    try:
        there = parquet.read_schema(path).names
        if missing := [column for column in wanted if column not in there]:
            raise ValueError(f"{path} has no column {missing[0]!r}; it has {', '.join(there[:8])}")
        read = parquet.read_table(path, columns=wanted)
        columns = {column: read.column(column).to_pylist() for column in wanted}
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(f"{path} is truncated, damaged or no Parquet file ({first})") from None
    return _by_user(columns, table, examples, lambda row: f"{path}, row {row + 1:,}")


def _by_user(
    columns: Mapping[str, Sequence[Any]],
    table: Table,
    examples: Examples,
    where: Callable[[int], str],
) -> dict[str, Any]:
    ids = columns[table.user]
    if not ids:
        raise ValueError(f"{where(0)}: there is none; give a file with some")
    found: dict[str, Any] = {}
    by_user = split_by_ids(ids, lambda row: f"{where(row)}: column {table.user!r}")
    for user, rows in by_user.items():
        own = ((where(row), [columns[name][row] for name in table.columns]) for row in rows)
        found[user] = examples(table.parse(own))
    return found


class HuggingFaceUsers(Mapping[str, Any]):
    """Users of a Hugging Face data set by a user column; rows are read when they are asked for.

    The data set is one that `datasets.load_dataset` or `load_from_disk` returned (of one split,
    not streamed); its card states where it comes from and its licence. Only the user column is read
    whole. `datasets` itself is not imported here: any object with `column_names`, whose `[name]` is
    a column and `[list of rows]` a dict of columns, will do.

    Args:
        dataset: The data set.
        user: The column that says whose a row is.
        examples: From arrays by column, a row each, to one user's examples, such as (x, y). Pillow
            images are arrays of their pixels.

    Raises:
        ValueError: If it is no such data set, has no such column, or a row names no user.
    """

    def __init__(self, dataset: Any, *, user: str, examples: Examples) -> None:
        names = getattr(dataset, "column_names", None)
        if not isinstance(names, list) or not hasattr(dataset, "__len__"):
            raise ValueError(
                f"a {type(dataset).__name__} is no data set of one split; give one, such as "
                "load_dataset(..., split='train'), not streamed"
            )
        if user not in names:
            raise ValueError(
                f"the data set has no column {user!r}; it has {', '.join(map(str, names[:8]))}"
            )
        self._rows = split_by_ids(
            dataset[user], lambda row: f"row {row + 1:,} of the data set: column {user!r}"
        )
        if not self._rows:
            raise ValueError("the data set has no row; give one with some")
        self._dataset, self._examples = dataset, examples
        self._names = [name for name in names if name != user]

    def __getitem__(self, user_id: str) -> Any:
        rows = self._dataset[self._rows[user_id].tolist()]
        return self._examples({name: _column(rows[name]) for name in self._names})

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, user_id: object) -> bool:
        return user_id in self._rows


def _column(values: Sequence[Any]) -> np.ndarray:
    """Return a column as an array; texts, and rows of several lengths, as one of objects.

    >>> _column(["short", "and a long one"]).dtype, _column([[1], [2]]).shape
    (dtype('O'), (2, 1))
    """
    with suppress(ValueError):  # of several shapes
        if not any(isinstance(value, str) for value in values):
            return np.asarray([np.asarray(value) for value in values])
    found = np.empty(len(values), object)
    found[:] = list(values)
    return found
