"""The loops of `fedpriv.kernels.sparse_rows` as torch operations, on a device.

A linear model's logits, norms and sums over chosen rows of a CSR matrix, in float64. There are two
ways, and the number of columns, of examples and the device say which is taken, never a batch:

* few columns: matrix products of dense rows, block by block, each block of the same number of rows
  (the last is filled with zeros);
* many columns, or a device whose products fail `product_width`: rows padded with zeros to the
  longest of them, and added up by pairs of neighbours.

Guarantees:
    * What is computed of a row, or of a group of rows, depends on it alone, to the last bit. Pairs
      are added in an order that padding does not change. A matrix product's order may follow from
      its shape and from where in it a row stands, and then one example would change what the
      others contribute: so the shape is fixed, and whether the place or the neighbours of a row
      move its bits is tried on synthetic rows before the first product of every shape.
    * Only the sums over a batch (`add_outer`, `add_groups`, products by `rows[chosen]`) are in an
      order that follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import embedding

from fedpriv.training.devices import bytes_at_once
from fedpriv.training.per_example.sparse_sums import SparseRows

# Numbers that a step holds besides each one that it adds up: a factor, the product, half a sum.
_HELD = 4
# Bytes that stay in a processor's caches between one operation and the next.
_CACHED = 4 << 20
# Up to so many columns rows are multiplied as dense ones.
_MOST_COLUMNS = 4096
# Numbers in the rows of a product: few waste little where batches are small, and many fill a GPU.
_BLOCK = {"cpu": 1 << 14, "cuda": 1 << 19}
# A product by a matrix of three columns, say, may be done by another kernel at its lower end; of
# four it is not.
_WIDTHS = (1, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceRows(SparseRows):
    """Rows of a CSR matrix on a device, with the arrays that they were made of.

    `rows[chosen]` multiplies as a matrix of these rows does (`@`, `.T @`), NumPy in and out.

    Attributes:
        device: Where they are.
    """

    device: torch.device
    _columns: Tensor = field(init=False, repr=False)
    _entries: Tensor = field(init=False, repr=False)
    _longest: int = field(init=False, repr=False)
    _starts: np.ndarray = field(init=False, repr=False)
    _whole: Tensor | None = field(init=False, repr=False)
    _squares: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The last of each is what rows are padded with: zero, in a column of its own.
        columns = np.append(self.indices, np.int32(self.num_inputs))
        entries = np.append(self.values, np.float32(0.0))
        longest = int(np.diff(self.indptr).max(initial=1))
        object.__setattr__(self, "_columns", torch.from_numpy(columns).to(self.device))
        object.__setattr__(self, "_entries", torch.from_numpy(entries).to(self.device))
        object.__setattr__(self, "_longest", max(1, longest))
        # One more row than there are, without entries: what blocks are filled with.
        object.__setattr__(self, "_starts", np.append(self.indptr, self.indptr[-1]))
        shape, whole = (self.num_examples + 1, self.num_inputs), None
        size = shape[0] * shape[1] / bytes_at_once(self.device)
        if self._is_narrow and 4 * size <= 1.0:
            dense = sparse.csr_matrix((self.values, self.indices, self._starts), shape=shape)
            whole = torch.from_numpy(dense.toarray()).to(self.device)
            whole = whole.double() if 8 * size <= 1.0 else whole
        object.__setattr__(self, "_whole", whole)
        squares = self._squares_by(np.arange(self.num_examples), np.ones((self.num_inputs, 1)))
        object.__setattr__(self, "_squares", squares)

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
        chosen = np.asarray(chosen, np.int64)
        dense = self._dense(chosen) if self._is_narrow else None
        return ChosenRows(rows=self, chosen=chosen, dense=dense)

    @property
    def _is_narrow(self) -> bool:
        return self.num_inputs <= _MOST_COLUMNS

    def logits(self, chosen: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """Return `x @ kernel + bias` of some rows; see `SparseRows.logits`."""
        width = self._width(kernel.shape[1])
        if width is not None:
            return self._products(chosen, [kernel], width) + bias
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
        squares = self._squares_by(chosen, multiplier) if multiplier.size else self._squares[chosen]
        # In this order no factor overflows before the whole does.
        return np.einsum("gk,gk->g", coefficients, coefficients * squares)

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

    def _squares_by(self, chosen: np.ndarray, multiplier: np.ndarray) -> np.ndarray:
        """Return `Σ_j (x_ij multiplier_jc)²` of some rows, float64 `(chosen, columns)`.

        Column by column, so that it is the same of one and of several.
        """
        width = self._width(1)
        if width is not None:
            columns = [np.square(c[:, np.newaxis], dtype=np.float64) for c in multiplier.T]
            return self._products(chosen, columns, width, squared=True)
        table, found = self._table(multiplier), np.empty((len(chosen), multiplier.shape[1]))
        for part in self._parts(len(chosen), self._longest * multiplier.shape[1]):
            columns, entries = self._padded(chosen[part])
            products = entries[:, :, None] * embedding(columns, table)
            found[part] = folded(products * products).cpu().numpy()
        return found

    def _width(self, columns: int) -> int | None:
        """Return to how many columns a matrix is padded for a product; None to add by pairs."""
        if not self._is_narrow:
            return None
        block, threads = rows_of_block(self.device, self.num_inputs), torch.get_num_threads()
        return product_width(self.device, block, self.num_inputs, columns, threads)

    def _products(
        self, chosen: np.ndarray, matrices: list[np.ndarray], width: int, *, squared: bool = False
    ) -> np.ndarray:
        """Return products of some rows, or their squares, and each matrix, side by side."""
        block, columns = rows_of_block(self.device, self.num_inputs), matrices[0].shape[1]
        tables = []
        for matrix in matrices:
            tables.append(self._zeros(self.num_inputs, width))  # in memory as in the trial
            tables[-1][:, :columns] = self._tensor(matrix)
        found = np.empty((len(chosen), columns * len(tables)))
        for part in self._parts(len(chosen), self.num_inputs, block):
            own = chosen[part]
            filled = np.full(-(-len(own) // block) * block, self.num_examples)
            filled[: len(own)] = own
            rows = self._dense(filled).contiguous()  # as in the trial
            rows = rows.square() if squared else rows
            products = [blocks_product(rows, table, block)[:, :columns] for table in tables]
            found[part] = torch.cat(products, 1)[: len(own)].cpu().numpy()
        return found

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
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield places in `groups`, and their sums, float64 `(some, num_inputs, num_classes)`.

        A group's members are added one after the other, whatever other groups there are.
        """
        num_classes, sizes = coefficients.shape[1], np.diff(starts)[groups]
        order = np.argsort(-sizes, kind="stable")  # those with a next member come first
        for part in self._parts(len(groups), self.num_inputs * num_classes):
            here = order[part]
            sums = self._zeros(len(here), self.num_inputs, num_classes)
            for member in range(int(sizes[here].max(initial=0))):
                rows = starts[groups[here[sizes[here] > member]]] + member
                own = self._tensor(coefficients[rows])[:, None, :]
                sums[: len(rows)] += self._dense(chosen[rows])[:, :, None] * own
            yield here, sums

    def _parts(self, number: int, size: int, block: int = 1) -> Iterator[slice]:
        """Yield slices of `number` rows, or groups, of so many numbers each, that fit at once.

        All but the last are of whole blocks.
        """
        memory = bytes_at_once(self.device)
        if self.device.type == "cpu":
            memory = min(memory, _CACHED)
        step = block * max(1, memory // (8 * _HELD * size * block))
        for start in range(0, number, step):
            yield slice(start, min(start + step, number))

    def _padded(self, chosen: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return columns, int64, and entries, float64, of rows `(rows, longest of them)`."""
        starts = self._starts[chosen]
        lengths = self._starts[chosen + 1] - starts
        steps = torch.arange(max(1, int(lengths.max(initial=0))), device=self.device)
        at = self._tensor(starts)[:, None] + steps
        at = torch.where(steps < self._tensor(lengths)[:, None], at, len(self.indices))
        return self._columns[at].long(), self._entries[at].double()

    def _dense(self, chosen: np.ndarray) -> Tensor:
        """Return rows as a matrix, float64 `(rows, num_inputs)`."""
        if self._whole is not None:
            return self._whole.index_select(0, self._tensor(chosen)).double()
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
        dense: These as a matrix, if there are few columns.
        transposed: Whether it stands for its transpose.
    """

    rows: DeviceRows
    chosen: np.ndarray
    dense: Tensor | None
    transposed: bool = False

    @property
    def T(self) -> ChosenRows:
        """The transpose."""
        return replace(self, transposed=not self.transposed)

    def __matmul__(self, matrix: np.ndarray) -> np.ndarray:
        if self.dense is not None:
            left = self.dense.T if self.transposed else self.dense
            return (left @ self.rows._tensor(matrix)).cpu().numpy()
        if not self.transposed:
            return self.rows.logits(self.chosen, matrix, np.zeros(matrix.shape[1]))
        total = np.zeros((self.rows.num_inputs, matrix.shape[1]))
        self.rows.add_outer(self.chosen, matrix, np.zeros((0, 0), np.float32), total)
        return total


def rows_of_block(device: torch.device, num_inputs: int) -> int:
    """Return how many rows a product has: a power of two, from 64 to 1024.

    >>> [rows_of_block(torch.device("cpu"), columns) for columns in (1, 60, 784, 4096)]
    [1024, 256, 64, 64]
    """
    rows = max(1, _BLOCK[device.type] // max(1, num_inputs))
    return min(max(1 << (rows.bit_length() - 1), 64), 1024)


def blocks_product(rows: Tensor, table: Tensor, block: int) -> Tensor:
    """Return `rows @ table`, as many rows at a time as a block has; they are whole blocks."""
    found = rows.new_empty(len(rows), table.shape[1])
    for start in range(0, len(rows), block):
        torch.mm(rows[start : start + block], table, out=found[start : start + block])
    return found


@cache
def product_width(
    device: torch.device, block: int, num_inputs: int, columns: int, num_threads: int
) -> int | None:
    """Return to how many columns a matrix is padded for products that keep rows apart; or None.

    Synthetic rows, of sizes between 10^-3 and 10^3, are put in every place of a block, and among
    neighbours of zeros and of what is not finite. No row of a training set is looked at, so the
    answer is as public as the model. It is found once in a process.

    Args:
        device: Where the product is.
        block: Rows of it.
        num_inputs: Columns of the rows.
        columns: Of the matrix.
        num_threads: Of torch, which may split a product among them.
    """
    rng = np.random.default_rng(0)
    sizes = 10.0 ** (np.arange(block) % 7 - 3)[:, np.newaxis]
    # In memory of torch's own: a product's order may follow from how its factors are aligned.
    rows = torch.zeros(block, num_inputs, dtype=torch.float64, device=device)
    rows += torch.from_numpy(rng.standard_normal((block, num_inputs)) * sizes).to(device)
    for multiple in _WIDTHS:
        width = -(-columns // multiple) * multiple
        table = torch.zeros(num_inputs, width, dtype=torch.float64, device=device)
        table += torch.from_numpy(rng.standard_normal((num_inputs, width))).to(device)
        if keeps_rows_apart(lambda rows, table=table: blocks_product(rows, table, block), rows):
            return width
    return None


def keeps_rows_apart(product: Callable[[Tensor], Tensor], rows: Tensor) -> bool:
    """Return whether a row's product has the same bits in every place and among any neighbours.

    Args:
        product: Of as many rows as are given; row by row, as far as numbers go.
        rows: Float64, different ones.
    """
    expected = product(rows).view(torch.int64)
    for places in range(1, len(rows)):
        moved = product(rows.roll(places, 0)).view(torch.int64)
        if not torch.equal(moved.roll(-places, 0), expected):
            return False
    for other in (0.0, math.inf, math.nan):
        for first in (0, 1):
            among = rows.clone()
            among[first::2] = other
            own = slice(1 - first, None, 2)
            if not torch.equal(product(among).view(torch.int64)[own], expected[own]):
                return False
    return True


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
