"""Privatizers: noise for the sum of a round, the answer that is released, and what it costs.

A privatizer is more than noise: a noisy minimum is private only if nothing but its index leaves.
So it makes the last step, from the raw sum to the answer, and states the event of one answer when
everybody takes part; sampling makes that cheaper in `fedpriv.privacy.sampling`.

Noise is drawn before the sum is known, possibly on another thread while users train. Independent
noise is one draw from a key of the attempt. Noise that is correlated over rounds is a stream of
rows from one key of the run: they are made again from that key and the number of rows that the
ledger has, never from buffers on disk.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import isabstract
from typing import Any, Literal, NoReturn

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.event import Event
from fedpriv.parts import Part, PositiveInt
from fedpriv.rng import Key
from fedpriv.sums import BITS, PartialSum
from fedpriv.tree import Params, Tree

# |S + K| < 2^53: their sum below 2^52, and noise below 2^45.
_MOST_ON_GRID = 2 ** (52 - BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation(Part):
    """Limit on how often, and how close together, one user takes part in the rounds of a run.

    A sampler keeps it, and the sensitivity of correlated noise is computed for it.

    Attributes:
        most: In how many rows one user is at most.
        min_separation: b: two rows of one user are at least b apart. 1 allows every row.
        num_rows: Of how many rows in all; None where it does not matter.

    Raises:
        ValueError: If a number is not a whole one above 0.

    >>> Participation(most=50, min_separation=20, num_rows=100).count
    5
    """

    most: PositiveInt
    min_separation: PositiveInt = 1
    num_rows: PositiveInt | None = None

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


AfterCrash = Literal["retry", "discard", "replay"]
"""Treatment of an attempt that was charged, but whose answer was not released.

* "retry": it is lost; the next one is charged again, with a new cohort and new noise.
* "discard": its row is lost; its users count as having taken part, and the stream goes on with the
  next row. No row ever meets two sums. One charge, made with the first row, pays for all of a run.
* "replay": it is done again from the same secret state and gives the identical answer, which is
  therefore charged once.
"""


class DrawUsedError(RuntimeError):
    """A draw was to be added to a second sum."""


class Draw:
    """What was drawn for one sum. It is used up by it, prints as nothing, and does not copy.

    A process that is forked off has no use of it: it would be added to two sums.

    Args:
        drawn: What a privatizer's `draws` yielded.
        owner: The mechanism that it was drawn for.
    """

    __slots__ = ("_held", "_owner", "_process")

    def __init__(self, drawn: Any, owner: object) -> None:
        self._held, self._owner, self._process = [drawn], owner, os.getpid()

    def take(self, total: PartialSum, owner: object) -> Any:
        """Return what was drawn, for this sum and for no other.

        Args:
            total: The sum.
            owner: The mechanism that releases it.

        Raises:
            DrawUsedError: From the second time on, and in another process.
            ValueError: If another mechanism drew it, or noise has other names or shapes than the
                sum.
        """
        if owner is not self._owner:
            raise ValueError("this noise was drawn by another mechanism; draw it by this one")
        try:
            if os.getpid() != self._process:
                raise IndexError
            drawn = self._held.pop()  # atomic: of two threads one gets it
        except IndexError:
            raise DrawUsedError(
                "this noise was added to a sum already: the difference of two sums under one "
                "noise has none; draw once for each sum"
            ) from None
        if hasattr(drawn, "items"):  # arrays by name
            _check_fits(total, drawn)
        return drawn

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a draw neither copies nor travels: it is added to one sum")


def _check_fits(total: PartialSum, noise: Params) -> None:
    """Refuse noise of other names or shapes: what it does not reach would go out bare."""
    found = {name: tuple(array.shape) for name, array in noise.items()}
    expected = {name: tuple(tensor.shape) for name, tensor in total.total.items()}
    if found != expected:
        raise ValueError(f"noise drawn for {found} does not fit a sum of {expected}")


def noised_mean(total: PartialSum, noise: Params, share: float) -> dict[str, np.ndarray]:
    """Return (total + noise) * share, dense float32 tensors.

    Of a sum on a grid it is float32((S + K) granularity share), of S + K, which is whole, and of
    nothing else. Float32 noise is rounded to the grid for it. It has gaps all the same, which
    betray sums; int64 noise, which was drawn on the grid, has none.

    Args:
        total: The raw sum.
        noise: Tensors of its names and shapes: float32, or int64 in steps of the sum's own grid.
        share: One over the denominator.

    Raises:
        ValueError: If the noise was drawn on a grid and the sum has none, or it has other names or
            shapes; or if the sum is of more users than float64 adds up as whole numbers.
    """
    from fedpriv.kernels.sums import release_whole

    _check_fits(total, noise)
    grid, mean = total.granularity, dict[str, np.ndarray]()
    if grid is not None and total.num_users > _MOST_ON_GRID:
        raise ValueError(
            f"{total.num_users} users are more than {_MOST_ON_GRID}, whose sum and noise float64 "
            "holds as whole numbers; draw a smaller cohort"
        )
    for name, tensor in total.total.items():
        dense, own = tree.to_dense_tensor(tensor), noise[name]
        is_whole = own.dtype == np.int64
        if grid is None:
            if is_whole:
                raise ValueError("noise on a grid cannot be added to a sum of floats")
            mean[name] = (np.add(dense, own, dtype=np.float64) * share).astype(np.float32)
            continue
        mean[name] = np.empty(dense.shape, np.float32)
        release_whole(
            np.ascontiguousarray(dense).reshape(-1),
            np.ascontiguousarray(own).reshape(-1),
            1.0 if is_whole else grid,
            grid * share,
            mean[name].reshape(-1),
        )
    return mean


def check_priced(made: type, *methods: str) -> None:
    """Refuse a class whose `event` is the price of other methods than it has.

    Args:
        made: The class.
        methods: Names of what decides the price.

    Raises:
        TypeError: If one of them comes from a class before the one that `event` comes from.
    """

    def place(name: str) -> int:
        """Return the number of classes before the one that defines a name."""
        return next(n for n, one in enumerate(made.__mro__) if name in vars(one))

    changed = [name for name in methods if hasattr(made, name) and place(name) < place("event")]
    if changed and not isabstract(made):
        raise TypeError(
            f"{made.__name__} has other {' and '.join(changed)} than the class whose event it "
            "inherits; define its event too"
        )


class Privatizer(Part, ABC):
    """Base of what turns raw sums into answers that may be released.

    Attributes:
        name: One word, which plans and statements call it by.
        after_crash: What becomes of a charged attempt that a crash ended.
        on_grid: Whether `draws` also takes `granularity`, the spacing of a grid, and then draws
            int64 numbers of its steps. Added to a sum on the grid and rounded to nothing else, they
            cost what `event` says in real arithmetic: no gap of floating point shows the sum.
        participation: Of rows that are charged once: in how many of them one neighbour's records
            may be, which the sampler has to see to; None for all.
        takes: Kinds of bound for which `event` holds, of contributions that are bounded each alone;
            empty for all, and for micro-batches.

    Guarantees:
        * An answer of sums that one neighbour moves by at most `sensitivity` (l2) costs `event`.
    """

    __slots__ = ()
    name: str
    after_crash: AfterCrash = "retry"
    on_grid: bool = False
    participation: Participation | None = None
    takes: tuple[type[Any], ...] = ()

    def __init_subclass__(cls) -> None:
        """Refuse a class that draws, releases or is charged otherwise at its base's price."""
        super().__init_subclass__()
        check_priced(cls, "draws", "release", "after_crash", "takes")

    @property
    @abstractmethod
    def event(self) -> Event:
        """Event of an answer when everybody takes part; of all rows where they are charged once."""

    @property
    def charged_once(self) -> bool:
        """Whether one charge pays for all rows of a run."""
        return self.after_crash == "discard"

    @property
    def one_row(self) -> float | None:
        """σ of one row of a neighbour, which a sampler may amplify; None of other noise.

        Rows that are charged once have it if a neighbour's parts of different rows never add up, as
        long as they are `participation.min_separation` apart.
        """
        return None

    @property
    def description(self) -> str:
        """Description for plans and statements."""
        return type(self).__name__

    def scaled(self, noise_multiplier: float) -> Privatizer:
        """Return the same with as much noise as costs a Gaussian of this noise multiplier.

        Raises:
            ValueError: If its noise is no Gaussian's.
        """
        raise ValueError(
            f"target_epsilon calibrates Gaussian noise only; give the noise of {self.name!r} itself"
        )

    def draws(self, *, template: Tree, sensitivity: float, key: Key) -> Iterator[Any]:
        """Yield what is added to sums: one draw, or row after row of noise charged for a whole run.

        Args:
            template: Names and shapes of the sums.
            sensitivity: How far one neighbour moves one of them, in l2, rounding included.
            key: Used here only: of one attempt, or of the run where it is charged once. Equal keys
                give equal draws.

        Raises:
            ValueError: If it is of a plan that is accounted and not run, or has no more rows.
        """
        raise ValueError(f"{self.name!r} draws nothing: it can be accounted, and not be run")

    def release(self, total: PartialSum, drawn: Any, share: float) -> Any:
        """Return the answer, by default the noised mean; the sum and the noise are given up.

        Args:
            total: The raw sum. It must not be kept, returned or logged.
            drawn: From `draws`; used up.
            share: One over the fixed, public denominator.
        """
        return noised_mean(total, drawn, share)
