"""Arithmetic on named tensors, dense or row-sparse.

A *tree* is a mapping from names to tensors: the params of a model (float32 arrays), one user's
update, or the running sum of a round (float64). A tensor of an update may be `RowSparse`: a user
of a bag-of-words model touches only the rows of its own words, and carrying nothing else is
exact, not an approximation.

>>> import numpy as np
>>> update = {"kernel": RowSparse(rows=np.array([2]), values=np.array([[3.0, 4.0]]), num_rows=5)}
>>> l2_norm(update)
5.0
>>> to_dense(update)["kernel"].shape
(5, 2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Params = dict[str, np.ndarray]
# Below this a conversion costs less than loading compiled code.
SMALL = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSparse:
    """A tensor most of whose rows are zero.

    Attributes:
        rows: int64 `(r,)`, strictly increasing indices of the stored rows.
        values: float `(r, *tail)`, the stored rows.
        num_rows: Length of the first axis of the tensor that is meant.
    """

    rows: np.ndarray
    values: np.ndarray
    num_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor that is meant."""
        return (self.num_rows, *self.values.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the stored rows."""
        return self.values.dtype

    def validate(self) -> RowSparse:
        """Return self, or raise `ValueError` if rows and values do not describe a tensor."""
        rows, values = self.rows, self.values
        if rows.ndim != 1 or rows.dtype != np.int64 or values.ndim < 1 or len(rows) != len(values):
            raise ValueError(
                f"rows {rows.dtype}{rows.shape} do not index values {values.shape}; "
                "give int64 rows, one for each stored row"
            )
        # Compared, not subtracted: the difference of two int64 can overflow and look increasing.
        if len(rows) and (
            rows[0] < 0 or rows[-1] >= self.num_rows or np.any(rows[1:] <= rows[:-1])
        ):
            raise ValueError(
                f"rows must increase strictly within 0..{self.num_rows - 1}; sort and merge them"
            )
        return self

    def to_dense(self) -> np.ndarray:
        """Return the dense tensor."""
        dense = np.zeros(self.shape, self.values.dtype)
        dense[self.rows] = self.values
        return dense


Tensor = np.ndarray | RowSparse
Tree = Mapping[str, Tensor]


def _values(tensor: Tensor) -> np.ndarray:
    return tensor.values if isinstance(tensor, RowSparse) else tensor


def _with_values(tensor: Tensor, values: np.ndarray) -> Tensor:
    if isinstance(tensor, RowSparse):
        return RowSparse(rows=tensor.rows, values=values, num_rows=tensor.num_rows)
    return values


def l2_norm(tree: Tree) -> float:
    """Return the l2 norm over *all* tensors concatenated (never per tensor, never spectral).

    Computed in float64; where squares would overflow or vanish the tensors are rescaled by their
    largest magnitude first, so that any finite tree has a faithful norm. NaN and infinities
    propagate.
    """
    total = 0.0
    for tensor in tree.values():
        values = _values(tensor)
        if values.dtype == np.float32 and values.size > SMALL:
            from fedpriv.kernels.sums import squares

            total += float(squares(np.ascontiguousarray(values).reshape(1, -1))[0])
        else:
            flat = values.reshape(-1).astype(np.float64, copy=False)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                total += float(flat @ flat)
    if math.isnan(total) or (1e-200 < total < math.inf):
        return math.sqrt(total)
    peak = max((float(np.abs(_values(t)).max(initial=0.0)) for t in tree.values()), default=0.0)
    if peak == 0.0 or not math.isfinite(peak):
        return peak
    scaled = sum(
        float(np.square(_values(t).reshape(-1).astype(np.float64) / peak).sum())
        for t in tree.values()
    )
    return peak * math.sqrt(scaled)


def scale(tree: Tree, factor: float) -> dict[str, Tensor]:
    """Return the tree times a number: float32 and float64 stay what they are.

    The factor is rounded to the tensors' dtype, so below float32's normal range (1e-38) it should
    be a power of two. float16 becomes float32, and float32 float64 where the factor needs it.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in tree.items():
        values = _values(tensor)
        # Half precision would round the product, and the factor, too coarsely for a bound.
        dtype = np.result_type(values.dtype, np.float32 if abs(factor) < 1e38 else np.float64)
        out[name] = _with_values(tensor, np.multiply(values, dtype.type(factor), dtype=dtype))
    return out


def interpolate(start: Params, end: Params, weight: float) -> Params:
    """Return `start + weight * (end - start)`, float32 copies.

    Args:
        start: float32 tensors.
        end: Others of the same names and shapes.
        weight: 0 for `start`, 1 for `end`.
    """
    share = np.float32(weight)
    return {name: start[name] + share * (end[name] - start[name]) for name in end}


def multiply(tree: Tree, multiplier: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the tree times a public per-coordinate multiplier.

    Args:
        tree: Dense or row-sparse tensors.
        multiplier: For any of the names an array that broadcasts against the tensor; its first
            axis is that of the tensor (for row-sparse tensors the stored rows are picked from
            it). Names left out are multiplied by one. float16 products become float32.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in tree.items():
        factor = multiplier.get(name)
        if factor is None:
            out[name] = tensor
        elif isinstance(tensor, RowSparse):
            picked = factor[tensor.rows] if factor.shape[0] == tensor.num_rows else factor
            out[name] = _with_values(tensor, _product(tensor.values, picked))
        else:
            out[name] = _product(tensor, factor)
    return out


def _product(values: np.ndarray, factor: np.ndarray) -> np.ndarray:
    dtype = np.result_type(values.dtype, np.float32)
    return np.multiply(values, factor, dtype=dtype, casting="same_kind")


def zeros(template: Tree, dtype: type = np.float64) -> dict[str, np.ndarray]:
    """Return dense zeros of the template's shapes."""
    return {name: np.zeros(tensor.shape, dtype) for name, tensor in template.items()}


def to_dense(tree: Tree) -> Params:
    """Return the tree with every tensor dense."""
    return {name: to_dense_tensor(tensor) for name, tensor in tree.items()}


def to_dense_tensor(tensor: Tensor) -> np.ndarray:
    """Return one tensor dense; a dense one is returned as it is."""
    return tensor.to_dense() if isinstance(tensor, RowSparse) else tensor


def read_only(params: Mapping[str, np.ndarray]) -> Params:
    """Return views of dense tensors that cannot be written to by NumPy."""
    views = {name: array.view() for name, array in params.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def read_only_copy(params: Mapping[str, np.ndarray]) -> Params:
    """Return copies of dense tensors that cannot be written to by NumPy.

    A library that writes to them all the same (PyTorch's views heed no flag) reaches nobody else.
    """
    return read_only({name: array.copy() for name, array in params.items()})


def num_elements(tree: Tree) -> int:
    """Return the number of coordinates that are meant (zeros of row-sparse tensors included)."""
    return sum(math.prod(tensor.shape) for tensor in tree.values())


def check_like(template: Tree, tree: object) -> Tree:
    """Return `tree` if it has exactly the template's names, shapes and floating dtypes.

    Args:
        template: What is expected, usually the params.
        tree: Anything at all; what arrives from a user is not trusted.

    Returns:
        A dict of plain arrays over the same memory: what was checked is what is used, whatever
        mapping or array subclass was handed in.

    Raises:
        ValueError: Naming the first tensor that differs. Broadcasting is never accepted.
    """
    given = {name: tree[name] for name in tree} if isinstance(tree, Mapping) else {}
    if not isinstance(tree, Mapping) or set(given) != set(template):
        found = sorted(map(str, given)) if isinstance(tree, Mapping) else type(tree).__name__
        raise ValueError(f"expected tensors {sorted(template)}, found {found}")
    checked: dict[str, Tensor] = {}
    for name, expected in template.items():
        tensor = given[name]
        if isinstance(tensor, RowSparse):
            if not isinstance(tensor.rows, np.ndarray) or not isinstance(tensor.values, np.ndarray):
                raise ValueError(f"tensor {name!r} holds no arrays of rows and values")
            tensor = RowSparse(
                rows=np.asarray(tensor.rows),
                values=np.asarray(tensor.values),
                num_rows=tensor.num_rows,
            ).validate()
        elif isinstance(tensor, np.ndarray):
            tensor = np.asarray(tensor)
        else:
            raise ValueError(f"tensor {name!r} is a {type(tensor).__name__}, not an array")
        if tuple(tensor.shape) != tuple(expected.shape):
            raise ValueError(f"tensor {name!r} has shape {tensor.shape}, not {expected.shape}")
        if _values(tensor).dtype.kind != "f":
            raise ValueError(f"tensor {name!r} has dtype {_values(tensor).dtype}, not floating")
        checked[name] = tensor
    return checked


# Numbers of a row that two draws do not give alike, even of signs alone; and values.
_WIDE = 32


def brought_in(first: Params, second: Params) -> tuple[str, ...]:
    """Return names of tensors that come out alike from two keys, and are no plain pattern.

    Such were not drawn, but brought by the code that makes them: loaded from a file, drawn from a
    fixed seed, or computed, between which no look at the values tells. Parts count, too: whole rows
    of a table, as where new ones are appended to those loaded, and more than an eighth of all
    numbers. A pattern is one number throughout, numbers in equal steps, or a multiple of the
    identity.

    >>> table = np.array([[0.3, -1.2], [0.5, 0.1]])
    >>> one = {"w": table, "b": np.zeros(2), "at": np.arange(2.0), "eye": 3 * np.eye(2)}
    >>> brought_in(one, one), brought_in(one, {**one, "w": -table})
    (('w',), ())
    """
    return tuple(
        sorted(name for name, array in first.items() if _is_brought(array, second.get(name)))
    )


def _is_brought(array: np.ndarray, other: np.ndarray | None) -> bool:
    if other is None or array.shape != other.shape or not array.size:
        return False
    alike = array == other
    if alike.all():
        return not _is_pattern(array)
    # Numbers of few values are alike by chance.
    if 8 * np.count_nonzero(alike) > array.size and len(np.unique(array[alike])) >= _WIDE:
        return True
    rows = alike.reshape(len(alike), -1).all(axis=1) if array.ndim > 1 else alike[:0]
    return bool(rows.any()) and array[0].size >= _WIDE and not _is_pattern(array[rows])


def _is_pattern(array: np.ndarray) -> bool:
    if array.dtype.kind not in "iuf":
        array = np.stack([np.real(array), np.imag(array)], axis=-1).astype(np.float64)
    if not np.ptp(array):
        return True
    rows = array.reshape(-1, array.shape[-1])
    steps = np.diff(rows[0].astype(np.float64))
    if np.allclose(steps, steps[:1], rtol=1e-4, atol=0.0) and not np.ptp(rows, axis=0).any():
        return True
    corner = array.ndim == 2 and not array[0, 1:].any()
    return corner and np.array_equal(array, array[0, 0] * np.eye(*array.shape, dtype=array.dtype))
