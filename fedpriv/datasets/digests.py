"""SHA-256 of arrays, by which a resumed run recognises its data set.

A digest of private examples is a function of them that no ε covers: an attacker who has all but one
of them could guess the last. So it is written in the clear in simulations only; deployed and secure
runs key it with a secret that is not published.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.output_paths import write_private


def fingerprint(*arrays: Any) -> str:
    """Return one SHA-256 of several arrays, in hex; whole arrays are read once.

    Args:
        arrays: Dense ones of any shape and dtype of fixed size (memory maps too), and sparse
            matrices of scipy. Their number, order, shapes, dtypes and bytes count; of a sparse
            matrix those of its stored values, their places, and whether it is sparse.

    Raises:
        ValueError: If an array holds Python objects, which are not stored as bytes.

    >>> fingerprint(np.zeros(2, np.float32)) == fingerprint(np.zeros(2, np.int32))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        for part in _parts(array):
            if part.dtype.hasobject:
                raise ValueError(
                    f"an array of dtype {part.dtype} has no bytes to compare; give numbers, or "
                    "texts of a fixed length"
                )
            digest.update(f"{part.dtype.str} {part.shape}\n".encode())
            digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _parts(array: Any) -> Iterator[np.ndarray]:
    from scipy import sparse  # slow to import; `fedpriv --help` does without

    if not sparse.issparse(array):
        yield np.asarray(array)
        return
    rows = array.tocsr()
    # The width of indices is scipy's own choice and says nothing of the data.
    yield np.array(rows.shape, np.int64)
    yield rows.indptr.astype(np.int64, copy=False)
    yield rows.indices.astype(np.int64, copy=False)
    yield rows.data


def key_digests(digests: Mapping[str, str], secret: bytes) -> dict[str, str]:
    """Return digests that tell nothing without the secret (HMAC-SHA-256), each under its name."""
    return {
        name: hmac.new(secret, f"{name} {value}".encode(), "sha256").hexdigest()
        for name, value in digests.items()
    }


def write_secret(file: Path, secret: bytes) -> None:
    """Write a secret that only its owner can read, through to the disk; an older one is replaced.

    Raises:
        OSError: If it cannot be written.
    """
    write_private(file, secret.hex())


def read_secret(file: Path) -> bytes:
    """Return the secret that `write_secret` wrote.

    Raises:
        ValueError: If the file is gone or holds something else.
    """
    try:
        return bytes.fromhex(file.read_text("ascii"))
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{file} is gone or damaged, and without it no one can know whether the training set "
            "is still the same; restore it, or start a new run"
        ) from error
