"""Correlated noise (the matrix mechanism): strategies C, and the privatizer that adds C⁻¹ z.

The rounds' sums of a run, x_1 ... x_T, are of bounded contributions. Correlated noise answers
C x + z, with z independent Gaussians, and gives the x back out of it: x + C⁻¹ z. Row t is what
round t gets. The sensitivity is how far one user moves C x, with everything that the user
contributes in all of its rows, and the error is what is left of C⁻¹ z in the rows and in their
prefix sums, which training follows.

References: Denisov, McMahan, Rush, Smith and Thakurta (2022), Theorem 2.1, for rows that are chosen
adaptively; Choquette-Choo, McMahan, Rush and Thakurta (2023) for users of several rows.
"""

# pyright: reportIncompatibleVariableOverride=false
# (this noise always has a limit of participation, which is None of other noise)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.gaussian import gaussian
from fedpriv.mechanisms.privatizer import Participation, Privatizer
from fedpriv.mechanisms.rounded_gaussian import check_scale, grid_noise
from fedpriv.parts import Part, PositiveFloat
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.tree import Params, Tree

MOST_ROWS = {"tree": 100_000, "banded": 50_000, "blt": 3_000}
"""Rows that a tree may have, and that coefficients are made for.

The work grows with their square. For so many, with one user in every row, or the most bands, or
the most buffers and momentum, one core takes about a minute.
"""

Fresh = Callable[[Key], np.ndarray]
"""Draws independent Gaussians of a key: float32, or int64 in steps of 2^-bits of the grid's."""


class Strategy(Part, ABC):
    """Base of lower-triangular strategy matrices C of a matrix mechanism, for `num_rows` rounds.

    Attributes:
        name: One word.
        num_rows: T.

    Guarantees:
        * What `rows` yields as row t is row t of C⁻¹ z, z drawn by `fresh` from keys that are used
          for nothing else; in floating point, or rounded to whole numbers so that x + row is a
          rounding of the linear mechanism's own answer, but for a shift of `slack` at most.
        * `sensitivity` and the variances are of the very coefficients that rows are made with.
    """

    __slots__ = ()
    name: ClassVar[str]
    num_rows: int

    @property
    @abstractmethod
    def description(self) -> str:
        """Description with its numbers, for plans and statements."""

    @abstractmethod
    def sensitivity(self, participation: Participation) -> float:
        """Return how far one user of bounded contributions of length 1 moves C x, in l2.

        Raises:
            ValueError: If this strategy knows none for the limit.
        """

    def one_row(self, participation: Participation) -> float | None:
        """Return how far a user moves C x by one row, if its rows never add up; else None."""
        return None

    @abstractmethod
    def row_variance(self) -> np.ndarray:
        """Return the variance of each row's noise over z's, float64 `(T,)`."""

    @abstractmethod
    def prefix_variance(self) -> np.ndarray:
        """Return the variance of each prefix sum's noise over z's, float64 `(T,)`."""

    def bits(self, scale: float) -> int:
        """Return by how many bits `fresh` is to be finer than the grid.

        Args:
            scale: Standard deviation of z over the grid's spacing.
        """
        return 0

    def slack(self, scale: float, bits: int) -> float:
        """Return how far whole rows may be shifted, at most, in steps of the grid a coordinate."""
        return 0.0

    @abstractmethod
    def rows(self, key: Key, fresh: Fresh, *, bits: int | None = None) -> Iterator[np.ndarray]:
        """Yield the rows of one tensor in order, as many as there are, flat or of its shape.

        Args:
            key: Of the run; a row's number is folded in here.
            fresh: As the type says.
            bits: None in floating point; else by how much `fresh` is finer than the grid.
        """


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


@dataclass(frozen=True, kw_only=True)
class Correlated(Privatizer):
    """Matrix-mechanism noise C⁻¹ z: each round takes back part of the noise of earlier rounds.

    Attributes:
        noise_multiplier: Standard deviation of z over the sensitivity of one row's sum.
        strategy: C.
        participation: In which rows one user may be, which a sampler has to see to.

    Guarantees:
        * All rows together are one Gaussian mechanism of noise multiplier
          `noise_multiplier / strategy.sensitivity(participation)`, for one user who contributes
          zero or not in all of its rows, whatever earlier rows made of the params on which later
          ones are computed (Denisov et al. 2022, Theorem 2.1). In real arithmetic where rows are
          drawn on the sum's grid; else as far as floating point is that.
        * On a grid the exact mechanism answers the linear map of the whole rows, but for a shift by
          the strategy's `slack` a coordinate, which depends on the noise and so on the neighbour:
          z is drawn with as much more standard deviation as that may move.

    Raises:
        ValueError: If a number is out of range, or the strategy knows no sensitivity, or was made
            for another number of rows than the limit.
    """

    noise_multiplier: PositiveFloat
    strategy: Strategy
    participation: Participation = field()  # else the base's value would be its default
    after_crash = "discard"
    on_grid = True

    def check(self) -> None:
        """Refuse a limit for another number of rows, or one that the strategy does not know."""
        rows = self.participation.num_rows
        if rows is not None and rows != self.strategy.num_rows:
            raise ValueError(
                f"participation is limited for {rows:,} rows and the strategy has "
                f"{self.strategy.num_rows:,}; give both the same"
            )
        if rows is None:
            limit = replace(self.participation, num_rows=self.strategy.num_rows)
            object.__setattr__(self, "participation", limit)
        self.sensitivity  # noqa: B018 - refuses here what has none

    @property
    def name(self) -> str:  # type: ignore[override]
        """The strategy's."""
        return self.strategy.name

    @cached_property
    def sensitivity(self) -> float:
        """Largest l2 change of C x by one user whose contributions have length 1."""
        return self.strategy.sensitivity(self.participation)

    @property
    def event(self) -> Event:
        """One Gaussian mechanism of all rows, charged with the first."""
        return Event(kind="gaussian", noise_multiplier=self.noise_multiplier / self.sensitivity)

    @property
    def one_row(self) -> float | None:
        """Noise multiplier over how far one row moves C x, where rows never add up."""
        alone = self.strategy.one_row(self.participation)
        return None if alone is None else self.noise_multiplier / alone

    def scaled(self, noise_multiplier: float) -> Correlated:
        """Return rows of the same strategy that cost a Gaussian of this noise multiplier."""
        return replace(self, noise_multiplier=noise_multiplier * self.sensitivity)

    @property
    def description(self) -> str:
        """Description for plans and statements."""
        return (
            f"noise of {self.strategy.description} and standard deviation "
            f"{self.noise_multiplier:.6g} over one row's sensitivity before they are combined, for "
            f"users who take part {self.participation}, whose rows together move it by "
            f"{self.sensitivity:.6g}"
        )

    def row_rmse(self) -> float:
        """Return the root mean square of a row's noise, over the sensitivity of one row's sum."""
        return self.noise_multiplier * math.sqrt(float(np.mean(self.strategy.row_variance())))

    def prefix_rmse(self) -> float:
        """Return the root mean square of the noise in a prefix sum, in the same units."""
        return self.noise_multiplier * math.sqrt(float(np.mean(self.strategy.prefix_variance())))

    def draws(
        self, *, template: Tree, sensitivity: float, key: Key, granularity: float | None = None
    ) -> Iterator[Params]:
        """Yield the rows; on a grid they are made of exactly rounded Gaussians.

        Raises:
            ValueError: If the standard deviation is out of the range that float32, or a grid,
                carries; or after the last row.
        """
        bits: int | None = None
        draw = partial(gaussian, stddev=self.noise_multiplier * sensitivity)
        if granularity is not None:
            stddev, bits = self._on_grid(template, sensitivity, granularity)
            draw = partial(grid_noise, stddev=stddev, granularity=granularity * 2.0**-bits)

        def rows(name: str) -> Iterator[np.ndarray]:
            own = {name: template[name]}
            return self.strategy.rows(key, lambda drawn: draw(drawn, own)[name], bits=bits)

        names = sorted(template)
        for arrays in zip(*map(rows, names), strict=True):
            row = zip(names, arrays, strict=True)
            yield {name: array.reshape(template[name].shape) for name, array in row}
        raise ValueError(
            f"{self.name} noise was made for {self.strategy.num_rows:,} rows; make a plan of more"
        )

    def _on_grid(self, template: Tree, sensitivity: float, granularity: float) -> tuple[float, int]:
        """Return the standard deviation of z, and by how many bits finer than the grid it is drawn.

        Two neighbours' rows are shifted by at most `slack` each, so 2 slack √(d T) besides the
        sensitivity of all rows. Where one row of a user is priced alone its part of that has to
        cover the rows that it moves, no more than those before the next: as many rows are paid for
        as they would be if the last had all of its own.
        """
        least = self.noise_multiplier * sensitivity
        check_scale(least, granularity)
        # Twice as much is enough for `bits` and `slack`, which only fall and rise with the scale.
        bits = self.strategy.bits(2.0 * least / granularity)
        slack = self.strategy.slack(2.0 * least / granularity, bits)
        size = sum(math.prod(array.shape) for array in template.values())
        rows, limit = self.strategy.num_rows, self.participation
        if limit.count > 1:
            rows = max(rows, limit.count * limit.min_separation)
        shift = 2.0 * slack * math.sqrt(size * rows) / self.sensitivity
        stddev = self.noise_multiplier * (sensitivity + shift * granularity)
        if stddev > 2.0 * least:
            raise ValueError(
                f"{self.name} noise of {stddev / granularity:.3g} steps of a grid of "
                f"{granularity!r} is more than it carries exactly; lower the noise multiplier, or "
                "the number of rows"
            )
        return stddev, bits
