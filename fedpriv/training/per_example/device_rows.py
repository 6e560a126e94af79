"""The loops of `fedpriv.kernels.sparse_rows` as torch operations, on a device.

A linear model's logits, norms and sums over chosen rows of a CSR matrix, in float64. Chosen rows
are padded with zeros to the longest of them, and added up by pairs of neighbours.

Guarantees:
    * What is computed of a row, or of a group of rows, depends on it alone, to the last bit: it is
      made of products and sums of two numbers, in an order that padding does not change. A matrix
      product's order may follow from the batch, and then one example would change what the others
      contribute.
    * Only the sums over a batch (`add_outer`, `add_groups`) are in an order that follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from fedpriv.training.devices import bytes_at_once
from fedpriv.training.per_example.sparse_sums import SparseRows

# Numbers that a step holds besides each one that it adds up: a factor, the product, half a sum.
_HELD = 4
# Bytes that stay in a processor's caches between one operation and the next.
_CACHED = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceRows(SparseRows):
    """Rows of a CSR matrix on a device, beside the arrays that they were made of.

    `rows[chosen]` multiplies as a matrix of these rows does (`@`, `.T @`), NumPy in and out.

    Attributes:
        device: Where they are.
    """

    device: torch.device
    _columns: Tensor = field(init=False, repr=False)
    _entries: Tensor = field(init=False, repr=False)
    _longest: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The last of each is what rows are padded with: zero, in a column of its own.
        columns = np.append(self.indices, np.int32(self.num_inputs))
        entries = np.append(self.values, np.float32(0.0))
        longest = int(np.diff(self.indptr).max(initial=1))
        object.__setattr__(self, "_columns", torch.from_numpy(columns).to(self.device))
        object.__setattr__(self, "_entries", torch.from_numpy(entries).to(self.device))
        object.__setattr__(self, "_longest", max(1, longest))

    @classmethod
    def on(cls, device: torch.device, rows: SparseRows) -> Self:
        """Return rows on a device."""
        return cls(
            indptr=rows.indptr,
            indices=rows.indices,
            values=rows.values,
            num_inputs=rows.num_inputs,
            device=device,
        )

    def __getitem__(self, chosen: np.ndarray) -> ChosenRows:
        return ChosenRows(rows=self, chosen=np.asarray(chosen, np.int64))

    def logits(self, chosen: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """Return `x @ kernel + bias` of some rows; see `SparseRows.logits`."""
        table, start = self._table(kernel), self._tensor(bias)
        found = np.empty((len(chosen), kernel.shape[1]))
        for part in self._parts(len(chosen), self._longest * kernel.shape[1]):
            columns, entries = self._padded(chosen[part])
            found[part] = (
                (folded(entries[:, :, None] * embedding(columns, table)) + start).cpu().numpy()
            )
        return found

    def squared_norms(
        self, chosen: np.ndarray, coefficients: np.ndarray, multiplier: np.ndarray
    ) -> np.ndarray:
        """Return squared norms of outer products; see `SparseRows.squared_norms`."""
        table = self._table(multiplier) if multiplier.size else None
        found = np.empty(len(chosen))
        for part in self._parts(len(chosen), self._longest * coefficients.shape[1]):
            columns, entries = self._padded(chosen[part])
            products = entries[:, :, None]
            if table is not None:
                products = products * embedding(columns, table)
            own = self._tensor(coefficients[part])
            # In this order no factor overflows before the whole does.
            found[part] = folded(own * (own * folded(products * products))).cpu().numpy()
        return found

    def add_outer(
        self,
        chosen: np.ndarray,
        coefficients: np.ndarray,
        multiplier: np.ndarray,
        total: np.ndarray,
    ) -> None:
        """Add a sum of outer products to a matrix; see `SparseRows.add_outer`."""
        sums = self._zeros(self.num_inputs, coefficients.shape[1])
        for part in self._parts(len(chosen), self.num_inputs):
            sums += self._dense(chosen[part]).T @ self._tensor(coefficients[part])
        self._add(sums, multiplier, total)

    def group_squared_norms(
        self,
        chosen: np.ndarray,
        starts: np.ndarray,
        coefficients: np.ndarray,
        offset: np.ndarray,
        multiplier: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return squared norms of groups, and the offset's; see `SparseRows.group_squared_norms`.

        Both are over all rows of the matrix, touched or not: nothing of the offset is left out.
        """
        groups = np.arange(len(starts) - 1)
        factor = self._tensor(multiplier) if multiplier.size else 1.0
        shift = self._tensor(offset) if offset.size else 0.0
        whole, public = np.zeros(len(groups)), np.zeros(len(groups))
        if offset.size:
            public[:] = float(_squares((self._tensor(offset) * factor)[None]))
        for part, sums in self._sums(chosen, starts, coefficients, groups):
            whole[part] = _squares((sums + shift) * factor).cpu().numpy()
        return whole, public

    def add_groups(
        self,
        chosen: np.ndarray,
        starts: np.ndarray,
        coefficients: np.ndarray,
        factors: np.ndarray,
        multiplier: np.ndarray,
        total: np.ndarray,
    ) -> None:
        """Add groups' sums, each times its factor, to a matrix; see `SparseRows.add_groups`."""
        kept = np.flatnonzero(factors)
        added = self._zeros(self.num_inputs, coefficients.shape[1])
        for part, sums in self._sums(chosen, starts, coefficients, kept):
            added += torch.tensordot(self._tensor(factors[kept[part]]), sums, dims=1)
        self._add(added, multiplier, total)

    def _sums(
        self, chosen: np.ndarray, starts: np.ndarray, coefficients: np.ndarray, groups: np.ndarray
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield which of the groups, and their sums, float64 `(some, num_inputs, num_classes)`.

        A group's members are added one after the other, whatever other groups there are.
        """
        num_classes, sizes = coefficients.shape[1], np.diff(starts)
        for part in self._parts(len(groups), self.num_inputs * num_classes):
            here = groups[part]
            sums = self._zeros(len(here), self.num_inputs, num_classes)
            for member in range(int(sizes[here].max(initial=0))):
                places = np.flatnonzero(sizes[here] > member)
                rows = starts[here[places]] + member
                own = self._tensor(coefficients[rows])[:, None, :]
                sums[self._tensor(places)] += self._dense(chosen[rows])[:, :, None] * own
            yield part, sums

    def _parts(self, number: int, size: int) -> Iterator[slice]:
        """Yield slices of `number` rows, or groups, of so many numbers each, that fit at once."""
        memory = bytes_at_once(self.device)
        if self.device.type == "cpu":
            memory = min(memory, _CACHED)
        step = max(1, memory // (8 * _HELD * size))
        for start in range(0, number, step):
            yield slice(start, min(start + step, number))

    def _padded(self, chosen: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return columns, int64, and entries, float64, of rows `(rows, longest of them)`."""
        starts = self.indptr[chosen]
        lengths = self.indptr[chosen + 1] - starts
        steps = torch.arange(max(1, int(lengths.max(initial=0))), device=self.device)
        at = self._tensor(starts)[:, None] + steps
        at = torch.where(steps < self._tensor(lengths)[:, None], at, len(self.indices))
        return self._columns[at].long(), self._entries[at].double()

    def _dense(self, chosen: np.ndarray) -> Tensor:
        """Return rows as a matrix, float64 `(rows, num_inputs)`."""
        columns, entries = self._padded(chosen)
        wide = self._zeros(len(chosen), self.num_inputs + 1)
        return wide.scatter_(1, columns, entries)[:, :-1]

    def _table(self, matrix: np.ndarray) -> Tensor:
        """Return a matrix with a row of zeros for what rows are padded with, float64."""
        wide = np.zeros((self.num_inputs + 1, matrix.shape[1]))
        wide[:-1] = matrix
        return torch.from_numpy(wide).to(self.device)

    def _tensor(self, array: np.ndarray) -> Tensor:
        """Return an array on the device, float64 where it is of floats."""
        wide = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
        return torch.from_numpy(wide).to(self.device)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def _add(self, sums: Tensor, multiplier: np.ndarray, total: np.ndarray) -> None:
        found = sums.cpu().numpy()
        total += found * multiplier if multiplier.size else found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRows:
    """Some rows of a matrix on a device, as a factor of products.

    Attributes:
        rows: The matrix.
        chosen: int64, which of its rows.
        transposed: Whether it stands for its transpose.
    """

    rows: DeviceRows
    chosen: np.ndarray
    transposed: bool = False

    @property
    def T(self) -> ChosenRows:
        """The transpose."""
        return ChosenRows(rows=self.rows, chosen=self.chosen, transposed=not self.transposed)

    def __matmul__(self, matrix: np.ndarray) -> np.ndarray:
        if not self.transposed:
            return self.rows.logits(self.chosen, matrix, np.zeros(matrix.shape[1]))
        total = np.zeros((self.rows.num_inputs, matrix.shape[1]))
        self.rows.add_outer(self.chosen, matrix, np.zeros((0, 0), np.float32), total)
        return total


def folded(parts: Tensor) -> Tensor:
    """Return the sum over the second axis, by pairs of neighbours.

    Zeros at its end change no bit.
    """
    while parts.shape[1] > 1:
        if parts.shape[1] % 2:
            parts = torch.cat([parts, torch.zeros_like(parts[:, :1])], dim=1)
        parts = parts[:, 0::2] + parts[:, 1::2]
    return parts[:, 0]


def _squares(matrices: Tensor) -> Tensor:
    """Return the squared norm of each matrix `(number, rows, columns)`, rows first."""
    return folded(folded(matrices * matrices))
