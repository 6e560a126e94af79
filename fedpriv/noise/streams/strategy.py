"""What a strategy is: the matrix C of C⁻¹ z, row by row, and what it does to error and sensitivity.

The rows of a run, x_1 ... x_T, are sums of bounded contributions. Correlated noise answers C x + z,
with z independent Gaussians, and gives the x back out of it: x + C⁻¹ z. Of that the sensitivity is
how far one user moves C x, with everything that the user contributes in all of its rows, and the
error is what is left of C⁻¹ z in the rows and in their prefix sums, which training follows.

References: Denisov, McMahan, Rush, Smith and Thakurta (2022), Theorem 2.1, for rows that are chosen
adaptively; Choquette-Choo, McMahan, Rush and Thakurta (2023) for users of several rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from fedpriv.noise.participation import Participation
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.tree import Tree

MOST_ROWS = {"tree": 100_000, "banded": 50_000, "blt": 3_000}
"""Rows that a tree may have, and that coefficients are made for.

The work grows with their square. For so many, with one user in every row, or the most bands, or
the most buffers and momentum, one core takes about a minute.
"""

Rows = dict[str, np.ndarray]
"""A row of noise by tensor: float32, or int64 on a grid; flat or of the template's shapes."""
Memory = Mapping[str, np.ndarray]
Fresh = Callable[[Key], Rows]
"""Draws independent Gaussians of a key: float32, or whole numbers in steps of 2^-bits."""


class Strategy(Protocol):
    """A strategy of so many rows.

    Guarantees:
        * What `next` returns as row t is row t of C⁻¹ z, z drawn by `fresh` from keys that are used
          for nothing else; in floating point, or rounded to whole numbers so that x + row is a
          rounding of the linear mechanism's own answer, but for a shift of `slack` at most.
        * `sensitivity` and the variances are of the very coefficients that rows are made with.
    """

    @property
    def name(self) -> str:
        """One word."""
        ...

    @property
    def num_rows(self) -> int:
        """T."""
        ...

    @property
    def description(self) -> str:
        """What it is, with its numbers, for plans and statements."""
        ...

    def sensitivity(self, participation: Participation) -> float:
        """Return how far one user of bounded contributions of length 1 moves C x, in l2.

        Raises:
            ValueError: If this strategy knows none for the limit.
        """
        ...

    def one_row(self, participation: Participation) -> float | None:
        """Return how far a user moves C x by one row, if its rows never add up; else None."""
        ...

    def row_variance(self) -> np.ndarray:
        """Return the variance of each row's noise over that of z, float64 `(T,)`."""
        ...

    def prefix_variance(self) -> np.ndarray:
        """Return the variance of the noise in each prefix sum over that of z, float64 `(T,)`."""
        ...

    def bits(self, scale: float) -> int:
        """Return by how many bits `fresh` is to be finer than the grid.

        Args:
            scale: Standard deviation of z over the grid's spacing.
        """
        ...

    def slack(self, scale: float, bits: int) -> float:
        """Return how far whole rows may be shifted, at most, in steps of the grid a coordinate."""
        ...

    def init(self, template: Tree) -> Memory:
        """Return the memory before row 1."""
        ...

    def next(
        self, memory: Memory, key: Key, fresh: Fresh, *, bits: int | None = None
    ) -> tuple[Rows, Memory]:
        """Return the next row and the memory after it; the memory is given up.

        Args:
            memory: From `init` or the last `next`.
            key: Of the run; the row's number is folded in here.
            fresh: As the type says.
            bits: None in floating point; else by how much `fresh` is finer than the grid.

        Raises:
            ValueError: If all rows are used up.
        """
        ...


def checked_rows(name: str, rows: int | None) -> int:
    """Return a strategy's number of rows.

    Raises:
        ValueError: If it is not a whole number above 0, or more than are accounted.
    """
    given = positive_int("num_rows", rows)
    if given > MOST_ROWS[name]:
        raise ValueError(
            f"{given:,} rounds are more than the {MOST_ROWS[name]:,} that {name} noise is "
            "accounted for here; give fewer rounds, or other noise"
        )
    return given


def row_of(memory: Memory, num_rows: int, name: str) -> int:
    """Return the number of the coming row, from 1.

    Raises:
        ValueError: If all rows are used up.
    """
    row = int(memory["row"]) + 1
    if row > num_rows:
        raise ValueError(f"{name} noise was made for {num_rows:,} rows; make a plan of more")
    return row
