"""Append to .npy files of unknown length, and open them memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np

_HEADER_BYTES = 128


class ArrayWriter:
    """Appends one-dimensional chunks to a .npy file; the length is written on `close`."""

    def __init__(self, path: Path, dtype: np.typing.DTypeLike) -> None:
        """Create the file."""
        self.dtype = np.dtype(dtype)
        self.length = self._total = 0
        self._file = path.open("xb")
        self._file.write(bytes(_HEADER_BYTES))

    def append(self, values: np.ndarray) -> None:
        """Append values that fit the file's type exactly.

        Raises:
            OverflowError: a value is outside the type's range.
        """
        if values.dtype != self.dtype and values.size:
            limits = np.iinfo(self.dtype.str)
            if values.min() < limits.min or values.max() > limits.max:
                raise OverflowError(f"a value does not fit {self.dtype}")
        self._file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.length += len(values)

    def append_ends(self, lengths: np.ndarray) -> None:
        """Append where rows of these lengths end, each counted from where the last one ended."""
        ends = self._total + np.cumsum(lengths, dtype=np.int64)
        self._total = int(ends[-1]) if len(ends) else self._total
        self.append(ends)

    def close(self) -> None:
        """Write the header and close."""
        text = repr({"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)})
        body = text.ljust(_HEADER_BYTES - 11).encode("latin1") + b"\n"
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body)
        self._file.close()


@contextmanager
def array_writers(
    directory: Path, dtypes: Mapping[str, np.typing.DTypeLike], offsets: Sequence[str]
) -> Iterator[dict[str, ArrayWriter]]:
    """Give writers of new files by name; those of offsets begin with 0 and take `append_ends`."""
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(closing(ArrayWriter(directory / f"{name}.npy", dtype)))
            for name, dtype in {**dict.fromkeys(offsets, np.int64), **dtypes}.items()
        }
        for name in offsets:
            files[name].append(np.zeros(1, np.int64))
        yield files


def open_array(path: Path) -> np.ndarray:
    """Return a read-only array backed by a .npy file of one dimension, whose size was checked.

    Raises:
        ValueError: the file is missing, is no .npy file or is cut short.
    """
    try:
        # A plain array over the map slices several times faster than np.memmap itself.
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)).view(np.ndarray)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}); import the corpus again") from error


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenation of `start, start + 1, ...` runs, int64.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - lengths), lengths)


def offsets(lengths: np.ndarray) -> np.ndarray:
    """Return int64 row starts (n + 1,) for row lengths (n,)."""
    result = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=result[1:])
    return result
