"""Parameters of a model that are not trained: one file of a run, and in every export of it.

Checkpoints hold what a round released. What stays as it was is written once, beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

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


def check_frozen(folder: Path, files: Mapping[str, bytes]) -> None:
    """Compare the frozen parameters of a run folder with those of the task that goes on with it.

    Args:
        folder: The run folder.
        files: That the task brings, by name.

    Raises:
        ValueError: If they differ.
    """
    file = folder / FROZEN
    before, now = file.read_bytes() if file.is_file() else None, files.get(FROZEN)
    if before != now:
        raise ValueError(
            f"the frozen parameters (requires_grad=False) of the task are not those of {file}; let "
            "its module have the values that the run was started with, or start a new run in "
            "another folder"
        )
