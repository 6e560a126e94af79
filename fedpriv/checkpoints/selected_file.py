"""The model that a run returns where it was selected: what candidates are, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.checkpoints.start_file import params_sha256
from fedpriv.checkpoints.tensor_file import read_tensors, write_tensors
from fedpriv.tree import Params, interpolate

SELECTED = "selected.safetensors"
PUBLIC_MODEL, START, LAST, AVERAGE = "public-only", "start", "last", "average"
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


def candidate(name: str, released: Mapping[str, Params], start: Params) -> Params | None:
    """Return a candidate by name, such as "average x 0.5"; None of one that is made elsewhere.

    Args:
        name: "start", or a released model's, with how much is kept of what training added to the
            start where that is not all.
        released: Released models by name.
        start: Where training started.
    """
    if name == START:
        return start
    kind, _, factor = name.partition(" x ")
    params = released.get(kind)
    if params is None or not factor:
        return params
    return interpolate(start, params, float(factor))


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
