"""How often one user may be in the rows of a run, and how far apart: what its price rests on."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.ranges import positive_int


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """A limit that a sampler keeps, and that the sensitivity of correlated noise is computed for.

    Attributes:
        most: In how many rows one user is at most.
        min_separation: b: two rows of one user, i and j, have |i - j| >= b. 1 allows every row.
        num_rows: Of how many rows in all; None where it does not matter.

    Raises:
        ValueError: If a number is not a whole one above 0.

    >>> Participation(most=50, min_separation=20, num_rows=100).count
    5
    """

    most: int
    min_separation: int = 1
    num_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("most", "min_separation"):
            object.__setattr__(self, name, positive_int(name, getattr(self, name)))
        if self.num_rows is not None:
            object.__setattr__(self, "num_rows", positive_int("num_rows", self.num_rows))

    @property
    def count(self) -> int:
        """In how many rows one user can be: `most`, or fewer where no more have room."""
        if self.num_rows is None:
            return self.most
        return min(self.most, -(-self.num_rows // self.min_separation))

    def covers(self, other: Participation) -> bool:
        """Return whether everything that another limit allows is allowed by this one."""
        rows, theirs = self.num_rows, other.num_rows
        longer = rows is not None and (theirs is None or theirs > rows)
        apart = other.min_separation >= self.min_separation or other.count == 1
        return not longer and apart and other.count <= self.count

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count:,} times"
        apart = "" if self.count == 1 else f", at least {self.min_separation:,} rows apart"
        rows = "" if self.num_rows is None else f" in {self.num_rows:,} rows"
        return f"at most {times}{rows}{apart}"
