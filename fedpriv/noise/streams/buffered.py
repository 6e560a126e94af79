"""Buffered linear Toeplitz strategies (BLT): c_t = Σ_i outputs_i decays_i^(t-1), memory O(buffers).

Each buffer is an exponentially weighted sum of earlier rows, so that a row costs as many buffers
and not as many earlier rows as there are coefficients.

References: Dvijotham, McMahan, Pillutla, Steinke and Thakurta (2024), Section 3, for the form;
McMahan, Xu and Zhang, "A Hassle-free Algorithm for Strong Differential Privacy in Federated
Learning Systems" (2024), for users of several rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv.noise.participation import Participation
from fedpriv.noise.streams.strategy import Fresh, Memory, Rows, row_of
from fedpriv.noise.streams.toeplitz import (
    column_sensitivity,
    farthest_row,
    finer_bits,
    inverse_series,
    on_scale,
    rounded_down,
)
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """A buffered linear Toeplitz strategy.

    Attributes:
        outputs: One a buffer, above 0, of a sum of at most 1.
        decays: One a buffer, in (0, 1); both are multiples of 2^-16.
        num_rows: T.

    Raises:
        ValueError: If there are not as many of both, or one is out of range: only then are
            coefficients not negative, and never rise, as the closed sensitivity needs.
    """

    outputs: tuple[float, ...]
    decays: tuple[float, ...]
    num_rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_rows", positive_int("num_rows", self.num_rows))
        for name in ("outputs", "decays"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if len(self.outputs) != len(self.decays):
            raise ValueError(
                f"{len(self.outputs)} outputs for {len(self.decays)} decays; give as many of both"
            )
        for name, values in (("output", self.outputs), ("decay", self.decays)):
            for value in values:
                if not 0.0 < value < 1.0 + (name == "output") * 1e-12 or value != on_scale(
                    np.array(value)
                ):
                    raise ValueError(
                        f"{name} {value!r} is no multiple of 2^-16 above 0 and below 1; round it"
                    )
        if sum(self.outputs) > 1.0:
            raise ValueError(
                f"outputs {self.outputs} add up to more than 1, and coefficients would rise; "
                "lower them"
            )

    @property
    def name(self) -> str:
        """Its name."""
        return "blt"

    @property
    def buffers(self) -> int:
        """How many there are."""
        return len(self.outputs)

    @property
    def description(self) -> str:
        """What it is."""
        if not self.buffers:
            return "no buffers"
        pairs = zip(self.outputs, self.decays, strict=True)
        shown = ", ".join(f"{output:.4g} of {decay:.6g}" for output, decay in pairs)
        return f"{self.buffers} buffers ({shown})"

    def column(self) -> np.ndarray:
        """Return c_0, ..., c_{T-1}, float64."""
        return blt_column(np.array(self.outputs), np.array(self.decays), self.num_rows)

    def sensitivity(self, participation: Participation) -> float:
        """Return it by the closed form of coefficients that fall; see `column_sensitivity`."""
        return column_sensitivity(self.column(), participation)

    def one_row(self, participation: Participation) -> float | None:
        """Return a column's length where a user has one row, or there is no buffer; else None."""
        if participation.count > 1 and self.buffers:
            return None
        return float(np.linalg.norm(self.column()))

    def row_variance(self) -> np.ndarray:
        """Return Σ_{j <= t} w_j², w the inverse series."""
        return np.cumsum(inverse_series(self.column(), self.num_rows) ** 2)

    def prefix_variance(self) -> np.ndarray:
        """Return Σ_{j <= t} (w_0 + ... + w_j)²."""
        return np.cumsum(np.cumsum(inverse_series(self.column(), self.num_rows)) ** 2)

    def bits(self, scale: float) -> int:
        """Return so many that fresh numbers are whole in double precision."""
        return finer_bits(scale)

    def slack(self, scale: float, bits: int) -> float:
        """Return what rounding of buffers, and of their sum to the finer grid, comes to at most.

        A buffer is at most 1 / (1 - decay) of the farthest row. Each step of it is rounded twice,
        and forgets at its decay.

        Raises:
            ValueError: As of `farthest_row`.
        """
        if not self.buffers:
            return 2.0 ** -(bits + 1)
        largest = farthest_row(tuple(self.column().tolist()), self.num_rows, scale)
        decays, outputs = np.array(self.decays), np.array(self.outputs)
        held = largest / (1.0 - decays)
        lost = 2.0**-51 * held / (1.0 - decays)
        total = float(np.sum(outputs * (lost + 2.0**-52 * self.buffers * held)))
        return total + 2.0 ** -(bits + 1)

    def init(self, template: Tree) -> Memory:
        """Return empty buffers."""
        return {"row": np.zeros((), np.int64)}

    def next(
        self, memory: Memory, key: Key, fresh: Fresh, *, bits: int | None = None
    ) -> tuple[Rows, Memory]:
        """Return z_t less the outputs of the buffers."""
        from fedpriv.kernels.streams import buffer_row, buffer_row_whole

        row = row_of(memory, self.num_rows, self.name)
        drawn = fresh(key.fold(row))
        kept: dict[str, np.ndarray] = {**memory, "row": np.array(row)}
        outputs, decays = np.array(self.outputs), np.array(self.decays)
        for name in sorted(drawn):
            flat = drawn[name].reshape(-1)
            held = kept.get(f"buffers/{name}")
            if held is None:
                held = np.zeros((self.buffers, flat.size), np.float32 if bits is None else float)
            if bits is None:
                buffer_row(flat, held, outputs, decays)
            elif self.buffers:
                buffer_row_whole(flat, held, outputs, decays, bits)
            else:
                flat[:] = rounded_down(flat, bits)
            kept[f"buffers/{name}"] = held
        return drawn, kept


def blt_column(outputs: np.ndarray, decays: np.ndarray, num_rows: int) -> np.ndarray:
    """Return 1, Σ outputs, Σ outputs decays, Σ outputs decays², ..., float64 `(num_rows,)`."""
    column = np.ones(num_rows)
    if num_rows > 1:
        column[1:] = decays[None, :] ** np.arange(num_rows - 1)[:, None] @ outputs
    return column
