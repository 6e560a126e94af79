"""The model that a run returns where it was selected, kept in the run folder with its digest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.checkpoints.start_file import params_sha256
from fedpriv.checkpoints.tensor_file import read_tensors, write_tensors
from fedpriv.tree import Params

SELECTED = "selected.safetensors"


def write_selected(folder: Path, params: Params) -> None:
    """Write the selected model, whose digest the summary has."""
    write_tensors(folder / SELECTED, params, {"format": "fedpriv-selected"})


def read_selected(folder: Path, selection: Mapping[str, Any]) -> Params:
    """Return the selected model.

    Args:
        folder: The run folder.
        selection: What its summary says of it.

    Raises:
        ValueError: If the file is missing or not the one that the summary names.
    """
    path = folder / SELECTED
    if not path.is_file():
        raise ValueError(f"{path} is missing; resume the run (it is selected anew) or restore it")
    params, _ = read_tensors(path)
    if params_sha256(params) != selection.get("sha256"):
        raise ValueError(
            f"{path} is not the model that {folder / 'summary.json'} names; resume the run (it is "
            "selected anew), or restore both files"
        )
    return params
