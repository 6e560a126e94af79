"""Where a run started from, kept in its folder and sealed by its digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedpriv.checkpoints.tensor_file import read_tensors, write_tensors
from fedpriv.tree import Params

START_FILE = "start.safetensors"


def params_sha256(params: Params) -> str:
    """Return a digest of tensors by name, dtype, shape and values."""
    digest = hashlib.sha256()
    for name in sorted(params):
        array = params[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_start(folder: Path, params: Params) -> None:
    """Write the params before the first round."""
    write_tensors(folder / START_FILE, params, {"format": "fedpriv-start"})


def read_start(folder: Path, sha256: str) -> Params:
    """Return what a run started from.

    Raises:
        ValueError: If the file is gone or not the one that the run was started with.
    """
    path = folder / START_FILE
    if not path.is_file():
        raise ValueError(f"{path} is gone: restore what the run started from, or start a new run")
    params, _ = read_tensors(path)
    if params_sha256(params) != sha256:
        raise ValueError(
            f"{path} is not what the run started from; restore that file, or start a new run"
        )
    return params
