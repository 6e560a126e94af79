"""What a row of a node's own data is: whose, and which columns of which kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_DTYPES = {float: np.float64, int: np.int64, str: np.str_}
_WORDS = {float: "finite number", int: "whole number", str: "text"}


class BadRowError(ValueError):
    """A row that cannot be taken: says where it is and which column, and never what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of a node's own people.

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

    def parsed(self, rows: Iterable[tuple[str, Sequence[Any]]]) -> dict[str, np.ndarray]:
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
