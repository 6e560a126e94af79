"""Safetensors files, written atomically, and a run's models next to its checkpoints.

Reading is left to the safetensors library, which checks every offset of the header. Writing is
done here, for two reasons: the arrays go to the file without a copy, and the bytes are a function
of the tensors and the metadata alone (the library stores metadata in a random order, so that
equal checkpoints would have unequal digests).

Beside its checkpoints a run folder has the params that it started from, sealed by their digest
(`START_FILE`), parameters that are not trained (`FROZEN`), and the model that the run returns where
that was selected (`SELECTED`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from fedpriv.tree import Params, interpolate

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def part_path(path: Path) -> Path:
    """Return where a file is built before it is renamed to `path`."""
    return path.with_name(f".{path.name}.part")


def write_tensors(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    *,
    durable: bool = True,
    mode: int = 0o666,
) -> None:
    """Write a safetensors file in one step: a reader sees the old file or the new one.

    Args:
        path: The file; its directory exists.
        tensors: Arrays of any shape with a dtype of `CODES`, in native little-endian order.
        metadata: Strings to keep in the header.
        durable: Force file and directory to the disk before returning. Without it the rename is
            still atomic for every process, killed or not, because the written pages belong to
            the operating system; only a power cut can then leave an older or a broken file.
        mode: Of the file, less the process's umask.

    Raises:
        ValueError: If a tensor or a metadata entry cannot be stored. Nothing is written then.
    """
    header, arrays = _header(tensors, metadata or {})
    part = part_path(path)
    part.unlink(missing_ok=True)  # of a killed writer, with a mode of its own
    made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(made, "wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for array in arrays:
            if array.size:
                file.write(array.reshape(-1).view(np.uint8).data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(part, path)
    if durable:
        sync_directory(path.parent)


def tensor_bytes(
    tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return what `write_tensors` writes; raises as it does."""
    header, arrays = _header(tensors, metadata or {})
    return b"".join([len(header).to_bytes(8, "little"), header, *(a.tobytes() for a in arrays)])


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file.

    Raises:
        ValueError: If the file is absent, or is not a complete safetensors file.
    """
    handle, metadata = _opened(path)
    try:
        return {name: handle.get_tensor(name) for name in handle.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise ValueError(_incomplete(path, error)) from error


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file; raises as `read_tensors` does."""
    return _opened(path)[1]


def _opened(path: Path) -> tuple[Any, dict[str, str]]:
    """Return a safetensors file that is open for reading, and its metadata."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the path of a .safetensors file")
    try:
        # No context manager: the class changed its typing over versions, and the handle closes
        # with its last reference.
        handle = safe_open(str(path), framework="numpy")
        return handle, dict(handle.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise ValueError(_incomplete(path, error)) from error


def _incomplete(path: Path, error: Exception) -> str:
    return (
        f"{path} is not a complete safetensors file ({error}); only files in that format are read"
    )


def read_tensor_bytes(content: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of what `tensor_bytes` returned, in the order of `read_tensors`."""
    return dict(sorted(load(content).items()))


def check_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], template: Mapping[str, np.ndarray]
) -> None:
    """Raise `ValueError` unless names, shapes and dtypes are those of the template."""
    if set(tensors) != set(template):
        missing, extra = sorted(set(template) - set(tensors)), sorted(set(tensors) - set(template))
        raise ValueError(
            f"{path} belongs to another model: missing tensors {missing}, unexpected {extra}"
        )
    for name, expected in template.items():
        found = tensors[name]
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise ValueError(
                f"{path} belongs to another model: tensor {name!r} is "
                f"{found.dtype}{list(found.shape)}, expected {expected.dtype}{list(expected.shape)}"
            )


def sync_directory(directory: Path) -> None:
    """Force a directory's entries to the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _header(
    tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> tuple[bytes, list[np.ndarray]]:
    """Return the padded JSON header and the contiguous arrays in file order."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"metadata {key!r}: {value!r} is not text; convert it with str()")
    entries: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    arrays, offset = [], 0
    # Widest types first: with the header padded to 8 bytes every tensor is then aligned.
    order = sorted(tensors, key=lambda name: (-np.asarray(tensors[name]).itemsize, name))
    for name in order:
        array = np.asarray(tensors[name])
        code = CODES.get(array.dtype.name)
        if code is None or not array.dtype.isnative or name == "__metadata__":
            raise ValueError(
                f"tensor {name!r} of dtype {array.dtype} cannot be stored; use {sorted(CODES)}"
            )
        entries[name] = {
            "dtype": code,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        # A 0-d array stays 0-d in the entry above; ascontiguousarray makes it one element.
        arrays.append(np.ascontiguousarray(array))
        offset += array.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8), arrays


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
    return _read_sealed(
        folder / START_FILE,
        sha256,
        "is gone: restore what the run started from, or start a new run",
        "is not what the run started from; restore that file, or start a new run",
    )


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
    digests = {}
    for name, tensor in sorted(frozen.items()):
        array = np.ascontiguousarray(tensor)  # which gives a 0-d array one axis
        described = f"{array.dtype.str} {array.shape} ".encode()
        digests[name] = hashlib.sha256(described + array.tobytes()).hexdigest()
    return digests


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


SELECTED = "selected.safetensors"
PUBLIC_MODEL, START, LAST, AVERAGE = "public-only", "start", "last", "average"
PUBLIC_MODELS = (PUBLIC_MODEL, START)
"""Models that public examples alone make."""
FACTORS = (1.0, 0.75, 0.5, 0.25)
"""Shares of the private training's update that candidates keep."""
AGGREGATE = "ema/"
"""Prefix of an aggregate's tensors in a checkpoint, whichever aggregate it is."""


def released_models(tensors: Params) -> dict[str, Params]:
    """Return the models of a checkpoint, in order of preference: the average, if any, and the last.

    Args:
        tensors: Of the checkpoint, by name.
    """
    average = {
        name.removeprefix(AGGREGATE): array
        for name, array in tensors.items()
        if name.startswith(AGGREGATE)
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
    """Write the selected model, whose digest the summary has, with facts for its users."""
    write_tensors(folder / SELECTED, params, {"format": "fedpriv-selected", **facts})


def read_selected(folder: Path, selection: Mapping[str, Any]) -> Params:
    """Return the selected model.

    Args:
        folder: The run folder.
        selection: What its summary says of it.

    Raises:
        ValueError: If the file is missing or not the one that the summary names.
    """
    return _read_sealed(
        folder / SELECTED,
        selection.get("sha256"),
        "is missing; resume the run (it is selected again) or restore it",
        f"is not the model that {folder / 'summary.json'} names; resume the run (it is selected "
        "again), or restore both files",
    )


BY_USER = "by_user.safetensors"
"""Held-out examples of each rostered user and the headline measure over them, in a simulation."""


def _read_sealed(path: Path, sha256: str | None, missing: str, differs: str) -> Params:
    """Return a model file's params; `missing` and `differs` end the two messages of refusal."""
    if not path.is_file():
        raise ValueError(f"{path} {missing}")
    params, _ = read_tensors(path)
    if params_sha256(params) != sha256:
        raise ValueError(f"{path} {differs}")
    return params
