"""Toeplitz strategies: banded, and buffered linear Toeplitz (BLT).

In every column c_0 = 1, c_1, c_2, ... stand below the diagonal.

A banded one keeps the last rows. Where its bands are no more than the rows between two of a user's,
the user's parts never add up, and the sensitivity is √k times a column's length, whatever the sign
of coefficients (Choquette-Choo et al. 2023, "Amplified Banded Matrix Factorization", Section 3).
Else a closed form holds only of coefficients that are not negative and never rise: the worst user
then takes part in rows 1, 1 + b, 1 + 2b, ... (Kalinin and Lampert 2024, Theorem 2; McMahan, Xu and
Zhang 2024 for buffered ones).

Coefficients are whole multiples of 2^-16, so that rows of whole numbers are made of the very ones
that sensitivities are computed from.

A buffered one has c_t = Σ_i outputs_i decays_i^(t-1), in memory of O(buffers): each buffer is an
exponentially weighted sum of earlier rows, so that a row costs as many buffers and not as many
earlier rows as there are coefficients (Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024,
Section 3; McMahan, Xu and Zhang, "A Hassle-free Algorithm for Strong Differential Privacy in
Federated Learning Systems", 2024, for users of several rows).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any

import numpy as np

from fedpriv.libraries import library
from fedpriv.mechanisms.correlated.noise import Fresh, Strategy
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.parts import PositiveInt
from fedpriv.ranges import Range, finite_float, positive_int
from fedpriv.rng import Key

SCALE = 16
"""Coefficients are whole multiples of 2^-SCALE."""
_LARGEST = 28  # log2 of the scale of fresh whole numbers: few are beyond double precision
_AHEAD = 8  # rows that are drawn at once
_FARTHEST = 39.0  # no rounded Gaussian is farther out: 1088 bits of its radius


def on_scale(values: np.ndarray) -> np.ndarray:
    """Return numbers rounded to the multiples of 2^-16 that coefficients may be, float64."""
    return np.rint(np.asarray(values, np.float64) * 2.0**SCALE) / 2.0**SCALE


def _multiple(name: str, value: Any, allowed: Range | None = None) -> float:
    """Return a number that a strategy's coefficients are made of.

    Raises:
        ValueError: If it is out of range, or no multiple of 2^-16 between -1 and 1.
    """
    number = finite_float(name, value, allowed)
    if abs(number) > 1.0 or number * 2.0**SCALE % 1.0:
        raise ValueError(
            f"{name} {number!r} is no multiple of 2^-{SCALE} between -1 and 1; round it"
        )
    return number


_Coefficient = Annotated[float, _multiple]
_Output = Annotated[float, partial(_multiple, allowed=Range.ABOVE_ZERO)]
_Decay = Annotated[float, partial(_multiple, allowed=Range.BETWEEN)]


def inverse_series(coefficients: np.ndarray, num_rows: int) -> np.ndarray:
    """Return the first coefficients of 1 / C(x), float64 `(num_rows,)`."""
    lfilter = library("scipy.signal").lfilter
    impulse = np.zeros(num_rows)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], np.asarray(coefficients[:num_rows], np.float64), impulse))


def column_sensitivity(coefficients: np.ndarray, participation: Participation) -> float:
    """Return the sensitivity of a Toeplitz strategy whose coefficients fall and are not negative.

    Args:
        coefficients: float64 `(T,)`, the first column.
        participation: The limit.

    Raises:
        ValueError: If a coefficient is negative, or above the one before it.
    """
    column = np.asarray(coefficients, np.float64)
    if column.min() < 0 or (np.diff(column) > 0).any():
        raise ValueError(
            "the worst user of a Toeplitz strategy is known where coefficients are not negative "
            "and never rise; let users' rows be farther apart than the bands"
        )
    moved = np.zeros(len(column))
    for number in range(participation.count):
        start = number * participation.min_separation
        if start < len(column):
            moved[start:] += column[: len(column) - start]
    return float(np.linalg.norm(moved))


class _Toeplitz(Strategy):
    """Base of Toeplitz strategies: all that follows from the first column of C."""

    __slots__ = ()

    @property
    @abstractmethod
    def reach(self) -> int:
        """Rows that one row's part reaches: parts of rows so far apart never add up."""

    @abstractmethod
    def column(self) -> np.ndarray:
        """Return c_0, c_1, ..., float64; those that are left out are 0."""

    def inverse(self) -> np.ndarray:
        """Return w, the first column of C⁻¹, float64 `(T,)`."""
        return inverse_series(self.column(), self.num_rows)

    def sensitivity(self, participation: Participation) -> float:
        """Return it exactly, but for bands that the end cuts off where a user's do not overlap.

        Those count in full there; of coefficients that overlap see `column_sensitivity`.

        Raises:
            ValueError: If rows of a user overlap and a coefficient is negative or rises.
        """
        one = self.one_row(participation)
        if one is not None:
            return one * float(np.sqrt(participation.count))
        column = np.zeros(self.num_rows)
        column[: self.reach] = self.column()
        return column_sensitivity(column, participation)

    def one_row(self, participation: Participation) -> float | None:
        """Return a column's length, where users' rows are at least its reach apart."""
        if participation.count > 1 and participation.min_separation < self.reach:
            return None
        return float(np.linalg.norm(self.column()))

    def farthest(self, scale: float) -> float:
        """Return how far from zero whole rows of C⁻¹ z can be, in steps of the grid.

        Every row is a sum of w_j (z_{t-j} + r_{t-j}), w the inverse series, with a rounding r of
        less than a step. What is subtracted from a fresh row is thus at most one such bound and a
        fresh row's more.

        Args:
            scale: Standard deviation of z in steps of the grid.

        Raises:
            ValueError: If that times 2^16, in whose steps it is summed, is beyond 63 bits: what
                comes out would be no linear map of the rows, and nothing is proved of it.
        """
        grown, one = _grown(self), _FARTHEST * scale + 1.0
        if not (1.0 + grown) * one < 2.0 ** (63 - SCALE):
            raise ValueError(
                f"rows grow to {grown:.3g} times fresh noise of {scale:.3g} steps of the grid, "
                "beyond whole numbers of 63 bits; give coefficients that fall, or less noise"
            )
        return grown * one

    def row_variance(self) -> np.ndarray:
        """Return the variance of each row's noise over z's, Σ_{j <= t} w_j², float64 `(T,)`."""
        return np.cumsum(self.inverse() ** 2)

    def prefix_variance(self) -> np.ndarray:
        """Return the same of each prefix sum: Σ_{j <= t} (w_0 + ... + w_j)²."""
        return np.cumsum(np.cumsum(self.inverse()) ** 2)

    def bits(self, scale: float) -> int:
        """Return by how many bits fresh whole numbers of this scale may be finer than the grid.

        So many that sums of bands are whole numbers of 63 bits, and fresh numbers of buffers whole
        in double precision.
        """
        return int(np.clip(np.floor(_LARGEST - np.log2(scale)), 0, SCALE))


@lru_cache(maxsize=32)
def _grown(strategy: _Toeplitz) -> float:
    """Return the sum of the inverse series' absolute values."""
    return float(np.abs(strategy.inverse()).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Banded(_Toeplitz):
    """Banded Toeplitz strategy: `bands` diagonals, memory of as many rows.

    Attributes:
        coefficients: c_0 = 1, c_1, ...; one a band, multiples of 2^-16.
        num_rows: T.
        how: How they were chosen, in a word.

    Raises:
        ValueError: If the first is not 1, or one is no multiple of 2^-16, or there are more of them
            than rows.
    """

    coefficients: tuple[_Coefficient, ...]
    num_rows: PositiveInt
    how: str = "given"

    def check(self) -> None:
        """Refuse coefficients that are not of such a strategy."""
        rows, given = self.num_rows, self.coefficients
        if not given or given[0] != 1.0:
            raise ValueError(f"coefficients {given!r} must begin with 1")
        if len(given) > rows:
            raise ValueError(f"{len(given)} bands are more than the {rows} rows; give fewer bands")

    name = "banded"

    @property
    def bands(self) -> int:
        """Number of diagonals that are not zero."""
        return len(self.coefficients)

    @property
    def description(self) -> str:
        """Description for plans and statements."""
        shown = ", ".join(f"{value:.4g}" for value in self.coefficients[:3])
        rest = ", ..." if self.bands > 3 else ""
        return f"{self.bands} {self.how} bands ({shown}{rest})"

    @property
    def reach(self) -> int:
        """The bands."""
        return self.bands

    def column(self) -> np.ndarray:
        """Return the coefficients, float64 `(bands,)`."""
        return np.array(self.coefficients)

    def slack(self, scale: float, bits: int) -> float:
        """Return the rounding of the sum of bands to the finer grid; none where that holds it.

        Raises:
            ValueError: As of `farthest`.
        """
        self.farthest(scale)
        return 0.0 if bits >= SCALE or self.bands == 1 else 2.0 ** -(bits + 1)

    def rows(self, key: Key, fresh: Fresh, *, bits: int | None = None) -> Iterator[np.ndarray]:
        """Yield z_t - Σ c_k e_{t-k}; several rows at once cost little more than one."""
        from fedpriv.kernels.streams import band_rows, band_rows_whole

        weights = np.array(self.coefficients[1:])
        whole = np.rint(weights * 2.0**SCALE).astype(np.int64)
        most = _AHEAD if self.bands > 1 else 1
        ring = np.empty((0, 0))  # the rows that are drawn ahead, and the earlier ones
        for first in range(1, self.num_rows + 1, most):
            ahead = range(first, min(first + most, self.num_rows + 1))
            for row in ahead:
                drawn = fresh(key.fold(row)).reshape(-1)
                if row == 1:
                    ring = np.zeros((self.bands - 1 + _AHEAD, drawn.size), drawn.dtype)
                ring[row % len(ring)] = drawn
            if bits is None:
                band_rows(ring, weights, first, len(ahead))
            else:
                band_rows_whole(ring, whole, first, len(ahead), bits, SCALE)
            for row in ahead:
                yield ring[row % len(ring)].copy()


def square_root_coefficients(bands: int) -> np.ndarray:
    """Return the first coefficients of (1 - x)^(-1/2), float64: C = A^(1/2) of prefix sums A.

    Of one participation it is near optimal (Fichtenberger, Henzinger and Upadhyay 2023).
    """
    k = np.arange(1, positive_int("bands", bands))
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered(_Toeplitz):
    """Buffered linear Toeplitz (BLT) strategy.

    Attributes:
        outputs: One a buffer, above 0, of a sum of at most 1.
        decays: One a buffer, in (0, 1); both are multiples of 2^-16.
        num_rows: T.

    Raises:
        ValueError: If there are not as many of both, or one is out of range: only then are
            coefficients not negative, and never rise, as the closed sensitivity needs.
    """

    outputs: tuple[_Output, ...]
    decays: tuple[_Decay, ...]
    num_rows: PositiveInt

    def check(self) -> None:
        """Refuse buffers whose coefficients would be negative, or rise."""
        if len(self.outputs) != len(self.decays):
            raise ValueError(
                f"{len(self.outputs)} outputs for {len(self.decays)} decays; give as many of both"
            )
        if sum(self.outputs) > 1.0:
            raise ValueError(
                f"outputs {self.outputs} add up to more than 1, and coefficients would rise; "
                "lower them"
            )

    name = "blt"

    @property
    def buffers(self) -> int:
        """Number of buffers."""
        return len(self.outputs)

    @property
    def description(self) -> str:
        """Description for plans and statements."""
        if not self.buffers:
            return "no buffers"
        pairs = zip(self.outputs, self.decays, strict=True)
        shown = ", ".join(f"{output:.4g} of {decay:.6g}" for output, decay in pairs)
        return f"{self.buffers} buffers ({shown})"

    @property
    def reach(self) -> int:
        """All rows, where there is a buffer; else 1."""
        return self.num_rows if self.buffers else 1

    def column(self) -> np.ndarray:
        """Return c_0, ..., c_{T-1}, float64."""
        return blt_column(np.array(self.outputs), np.array(self.decays), self.num_rows)

    def slack(self, scale: float, bits: int) -> float:
        """Return what rounding of buffers, and of their sum to the finer grid, comes to at most.

        A buffer is at most 1 / (1 - decay) of the farthest row. Each step of it is rounded twice,
        and forgets at its decay.

        Raises:
            ValueError: As of `farthest`.
        """
        if not self.buffers:
            return 2.0 ** -(bits + 1)
        decays, outputs = np.array(self.decays), np.array(self.outputs)
        held = self.farthest(scale) / (1.0 - decays)
        lost = 2.0**-51 * held / (1.0 - decays)
        total = float(np.sum(outputs * (lost + 2.0**-52 * self.buffers * held)))
        return total + 2.0 ** -(bits + 1)

    def rows(self, key: Key, fresh: Fresh, *, bits: int | None = None) -> Iterator[np.ndarray]:
        """Yield z_t less the outputs of the buffers."""
        from fedpriv.kernels.streams import buffer_row, buffer_row_whole

        held = np.empty((0, 0))
        outputs, decays = np.array(self.outputs), np.array(self.decays)
        for row in range(1, self.num_rows + 1):
            drawn = fresh(key.fold(row)).reshape(-1)
            if row == 1:
                held = np.zeros((self.buffers, drawn.size), np.float32 if bits is None else float)
            if bits is None:
                buffer_row(drawn, held, outputs, decays)
            elif self.buffers:
                buffer_row_whole(drawn, held, outputs, decays, bits)
            else:
                drawn = (drawn + ((1 << bits) >> 1)) >> bits  # to whole steps, half up
            yield drawn


def blt_column(outputs: np.ndarray, decays: np.ndarray, num_rows: int) -> np.ndarray:
    """Return 1, Σ outputs, Σ outputs decays, Σ outputs decays², ..., float64 `(num_rows,)`."""
    column = np.ones(num_rows)
    if num_rows > 1:
        column[1:] = decays[None, :] ** np.arange(num_rows - 1)[:, None] @ outputs
    return column
