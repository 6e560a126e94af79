"""The model that a run returns where it was selected: what candidates are, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.checkpoints.start_file import params_sha256
from fedpriv.checkpoints.tensor_file import read_tensors, write_tensors
from fedpriv.tree import Params, interpolate

SELECTED = "selected.safetensors"
PUBLIC_MODEL, START, LAST, AVERAGE = "public-only", "start", "last", "average"
PUBLIC_MODELS = (PUBLIC_MODEL, START)
"""Models that public examples alone make."""
FACTORS = (1.0, 0.75, 0.5, 0.25)
"""How much is kept of what private training added to the start."""
AVERAGED = "ema/"
"""What names of averaged tensors begin with in a checkpoint."""


def released_models(tensors: Params) -> dict[str, Params]:
    """Return the models of a checkpoint, in order of preference: the average, if any, and the last.

    Args:
        tensors: Of the checkpoint, by name.
    """
    average = {
        name.removeprefix(AVERAGED): array
        for name, array in tensors.items()
        if name.startswith(AVERAGED)
    }
    last = {name: array for name, array in tensors.items() if "/" not in name}
    return {AVERAGE: average, LAST: last} if average else {LAST: last}


def candidates(released: Mapping[str, Params], start: Params | None) -> dict[str, Params]:
    """Return released models, each also drawn back towards the start, by name in this order.

    A model with a number that is not finite is none of them.

    Args:
        released: By name, in order of preference.
        start: Where training started; None leaves out what is drawn back to it.
    """
    found = {}
    for factor in FACTORS:
        for name, params in released.items():
            if not all(np.isfinite(array).all() for array in params.values()):
                continue
            if factor == 1.0:
                found[name] = params
            elif start is not None:
                found[f"{name} x {factor:g}"] = interpolate(start, params, factor)
    return found


def write_selected(folder: Path, params: Params, facts: Mapping[str, str]) -> None:
    """Write the selected model, whose digest the summary has, with facts for whoever uses it."""
    write_tensors(folder / SELECTED, params, {"format": "fedpriv-selected", **facts})


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
