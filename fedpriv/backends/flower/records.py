"""Trees as Flower array records, and strictly back again.

A dense tensor travels as one npy array under `dense/<name>`; a row-sparse one as two, under
`rows/<name>` and `values/<name>`. What arrives was written by somebody else, so nothing of it is
believed: the npy header is read under a size limit and compared with what the template says the
tensor must be *before* a byte of data is touched, no array of objects is ever built (no pickle),
and data is viewed in place, so a payload cannot make the reader allocate more than it sent.

>>> import numpy as np
>>> record = encode({"bias": np.arange(3, dtype=np.float32)})
>>> decode(record, {"bias": np.zeros(3, np.float32)})["bias"]
array([0., 1., 2.], dtype=float32)
>>> decode(record, {"bias": np.zeros(4, np.float32)})
Traceback (most recent call last):
...
fedpriv.backends.flower.records.MalformedRecordError: 'dense/bias' has shape (3,), expected (4,)
"""

from __future__ import annotations

import io
import math

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy

from fedpriv.training.stopping import end_if_interrupted
from fedpriv.tree import Params, RowSparse, Tensor, Tree

_FLOATS = (np.dtype("<f4"), np.dtype("<f8"))
_INDEX = (np.dtype("<i8"),)
_WHOLE = (np.dtype("<i4"), np.dtype("<i8"))
_STYPE = "numpy.ndarray"
_MAX_HEADER_BYTES = 1024
_OVERHEAD = 1 << 20  # of everything in a message that is no array
_DENSE, _ROWS, _VALUES = "dense/", "rows/", "values/"


class MalformedRecordError(ValueError):
    """What arrived is not the tree that was asked for; its sender contributes zero."""


def encode(tree: Tree, dtype: type[np.floating] | None = None) -> ArrayRecord:
    """Return the array record of a tree.

    Args:
        tree: Dense or row-sparse tensors of float32 or float64, or of int32 or int64.
        dtype: Float type to send the values as; by default their own type.
    """
    record = ArrayRecord()
    for name, tensor in tree.items():
        if isinstance(tensor, RowSparse):
            record[_ROWS + name] = Array(np.asarray(tensor.rows, "<i8", order="C"))
            record[_VALUES + name] = Array(_values(tensor.values, dtype))
        else:
            record[_DENSE + name] = Array(_values(tensor, dtype))
    return record


def _values(values: np.ndarray, dtype: type[np.floating] | None) -> np.ndarray:
    # Overflow to infinity is what the receiver looks for, so it needs no warning here.
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype or values.dtype, order="C")


def most_bytes(template: Tree) -> int:
    """Return how many bytes a message with one tree of this shape may take on its way, and no less.

    >>> 16e6 < most_bytes({"bias": np.zeros(1_000_000, np.float32)}) < 18e6
    True
    """
    total = 0
    for name, tensor in template.items():
        shape = tensor.shape
        # The widest form: eight bytes a value, and as much for the number of each row.
        whole = 8 * (math.prod(shape) + (shape[0] if shape else 1))
        total += whole + _MAX_HEADER_BYTES + 16 * len(name.encode())
    # Flower sends parts of 5 MB, each with its hash; a node may have set smaller ones.
    return total + total // 64 + _OVERHEAD


def decode(record: object, template: Tree, *, whole: bool = False) -> dict[str, Tensor]:
    """Return the tree in a record that anybody may have written.

    Guarantees:
        * The result has exactly the template's names and shapes, float32 or float64 values (int32
          or int64 where whole numbers were asked for), and, where row-sparse, strictly increasing
          rows within the tensor.
        * Nothing is unpickled, and no more memory is taken than the record already holds.
        * Values may still be NaN or infinite: look before you add.

    Args:
        record: What arrived.
        template: The tensors that were asked for, such as the params.
        whole: Whether they were asked for as whole numbers, not as floats.

    Returns:
        Read-only views of the record's bytes.

    Raises:
        MalformedRecordError: Naming the first thing that is wrong.
    """
    if not isinstance(record, ArrayRecord):
        raise MalformedRecordError(f"expected an ArrayRecord, found {type(record).__name__}")
    found, dtypes = set(record), _WHOLE if whole else _FLOATS
    out: dict[str, Tensor] = {}
    expected: set[str] = set()
    for name, tensor in template.items():
        shape = tuple(tensor.shape)
        if _DENSE + name in found:
            keys = (_DENSE + name,)
            out[name] = _read(record, keys[0], shape, dtypes)
        else:
            keys = (_ROWS + name, _VALUES + name)
            if not found.issuperset(keys) or not shape:
                raise MalformedRecordError(f"tensor {name!r} is missing")
            out[name] = _read_rows(record, name, shape, dtypes)
        expected.update(keys)
    if extra := sorted(found - expected):
        raise MalformedRecordError(f"found {len(extra)} unexpected arrays: {extra[0]!r:.80}")
    return out


def decode_params(record: object) -> Params:
    """Return the dense float32 tensors of a record whose shapes are not known beforehand.

    Returns:
        Fresh, writable arrays in the record's order.

    Raises:
        MalformedRecordError: If it is not a record of dense float32 tensors only.
    """
    if not isinstance(record, ArrayRecord):
        raise MalformedRecordError(f"expected an ArrayRecord, found {type(record).__name__}")
    if not all(key.startswith(_DENSE) for key in record):
        raise MalformedRecordError(f"expected dense tensors only, found {sorted(record)}")
    return {
        key.removeprefix(_DENSE): _read(record, key, None, _FLOATS[:1]).copy() for key in record
    }


def _read_rows(
    record: ArrayRecord, name: str, shape: tuple[int, ...], dtypes: tuple[np.dtype, ...]
) -> RowSparse:
    rows = _read(record, _ROWS + name, None, _INDEX)
    if rows.ndim != 1 or len(rows) > shape[0]:
        raise MalformedRecordError(f"'rows/{name}' has shape {rows.shape}, at most ({shape[0]},)")
    values = _read(record, _VALUES + name, (len(rows), *shape[1:]), dtypes)
    try:
        return RowSparse(rows=rows, values=values, num_rows=shape[0]).validate()
    except ValueError as error:
        raise MalformedRecordError(f"tensor {name!r}: {error}") from None


def _read(
    record: ArrayRecord,
    key: str,
    shape: tuple[int, ...] | None,
    dtypes: tuple[np.dtype, ...],
) -> np.ndarray:
    array = record[key]
    data = array.data
    if array.stype != _STYPE or not isinstance(data, bytes):
        raise MalformedRecordError(f"{key!r} is serialised as {array.stype!r:.40}, not as npy")
    stream = io.BytesIO(data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise MalformedRecordError(f"{key!r} is not in npy format 1.0")
        found, fortran, dtype = npy.read_array_header_1_0(stream, max_header_size=_MAX_HEADER_BYTES)
    except MalformedRecordError:
        raise
    except Exception as error:  # NumPy parses the header with eval's grammar: anything may come.
        end_if_interrupted(error)
        raise MalformedRecordError(f"{key!r} has no readable npy header: {error!s:.80}") from None
    if dtype not in dtypes or fortran:
        allowed = " or ".join(str(item) for item in dtypes)
        raise MalformedRecordError(f"{key!r} holds {dtype!s:.40}, expected C-ordered {allowed}")
    if shape is not None and found != shape:
        raise MalformedRecordError(f"{key!r} has shape {found!s:.80}, expected {shape}")
    start = stream.tell()
    if min(found, default=0) < 0 or len(data) - start != math.prod(found) * dtype.itemsize:
        raise MalformedRecordError(
            f"{key!r} holds {len(data) - start} bytes, not those of shape {found!s:.80}"
        )
    return np.frombuffer(data, dtype, offset=start).reshape(found)
