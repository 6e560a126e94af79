"""Parameters of a model that are not trained: one file of a run, and in every export of it.

Checkpoints hold what a round released. What stays as it was is written once, next to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from fedpriv.checkpoints.tensor_file import read_tensors, tensor_bytes

FROZEN = "frozen.safetensors"


def frozen_file(frozen: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """Return the file of frozen parameters by its name; nothing where there are none."""
    return {FROZEN: tensor_bytes(frozen, {"format": "fedpriv-frozen"})} if frozen else {}


def read_frozen(folder: Path) -> dict[str, np.ndarray]:
    """Return the frozen parameters of a run folder by name; none where it has no such file.

    Raises:
        ValueError: If the file is not a complete safetensors file.
    """
    file = folder / FROZEN
    return read_tensors(file)[0] if file.is_file() else {}


def frozen_digests(frozen: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the SHA-256 of each frozen parameter's dtype, shape and values, by name."""
    return {name: _digest(np.ascontiguousarray(tensor)) for name, tensor in sorted(frozen.items())}


def read_frozen_bytes(files: Mapping[str, bytes]) -> dict[str, np.ndarray]:
    """Return the frozen parameters among a task's files; none where there is no such file.

    Raises:
        ValueError: If it is not a complete safetensors file.
    """
    if FROZEN not in files:
        return {}
    try:
        return load(files[FROZEN])
    except (SafetensorError, TypeError) as error:
        raise ValueError(
            f"the task's file {FROZEN!r} holds parameters that are not trained, and is not a "
            f"complete safetensors file ({error}); give it another name if it is yours"
        ) from error


def check_frozen(
    sealed: Mapping[str, str] | None, frozen: Mapping[str, np.ndarray], folder: str
) -> None:
    """Compare a task's frozen parameters with those that its run was started with.

    Args:
        sealed: Digests that the run folder states; None where it has none, as of folders in which
            they were not kept: nothing is compared then.
        frozen: Of the task that goes on with it.
        folder: The run folder, for the message.

    Raises:
        ValueError: If they differ.
    """
    if sealed is None or dict(sealed) == (now := frozen_digests(frozen)):
        return
    other = sorted(name for name in {*sealed, *now} if sealed.get(name) != now.get(name))
    raise ValueError(
        f"frozen parameters (requires_grad=False) of the task are not those that {folder} was "
        f"started with: {', '.join(other)}; let its module have the values of {folder}/{FROZEN}, "
        "or start a new run in another folder"
    )


def _digest(tensor: np.ndarray) -> str:
    described = f"{tensor.dtype.str} {tensor.shape} ".encode()
    return hashlib.sha256(described + tensor.tobytes()).hexdigest()
