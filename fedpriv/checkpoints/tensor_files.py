"""Safetensors files, written atomically, and a run's models next to its checkpoints.

Reading is left to the safetensors library, which checks every offset of the header. Writing is
done here, for two reasons: the arrays go to the file without a copy, and the bytes are a function
of the tensors and the metadata alone (the library stores metadata in a random order, so that
equal checkpoints would have unequal digests).

Next to its checkpoints a run folder has the params that it started from, sealed by their digest
(`START_FILE`), parameters that are not trained (`FROZEN`), and the model that the run returns where
that was selected (`SELECTED`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from fedpriv.tree import Params, interpolate

CODES = {
    "bool": "BOOL",
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
"""What safetensors calls NumPy's dtypes."""


def write_tensors(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    *,
    mode: int = 0o666,
) -> None:
    """Write a safetensors file in one step: a reader sees the old file or the new one.

    It is on the disk, with its name, when this returns.

    Args:
        path: The file; its directory exists.
        tensors: Arrays of any shape with a dtype of `CODES`, in native little-endian order.
        metadata: Strings to keep in the header.
        mode: Of the file, less the process's umask.

    Raises:
        ValueError: If a tensor or a metadata entry cannot be stored. Nothing is written then.
    """
    pieces = _pieces(tensors, metadata or {})
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # of a killed writer, with a mode of its own
    made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(made, "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_directory(path.parent)


def tensor_bytes(
    tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return what `write_tensors` writes; raises as it does."""
    return b"".join(_pieces(tensors, metadata or {}))


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file.

    Raises:
        ValueError: If the file is absent, or is not a complete safetensors file.
    """
    with _opened(path) as handle:
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        return tensors, dict(handle.metadata() or {})


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file; raises as `read_tensors` does."""
    with _opened(path) as handle:
        return dict(handle.metadata() or {})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Hold a safetensors file open for reading; errors name it."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the path of a .safetensors file")
    try:
        # No context manager: the class changed its typing over versions, and the handle closes
        # with its last reference.
        yield safe_open(str(path), framework="numpy")
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}); only files in that format are "
            "read"
        ) from error


def read_tensor_bytes(content: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of what `tensor_bytes` returned, in the order of `read_tensors`."""
    return dict(sorted(load(content).items()))


def check_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], template: Mapping[str, np.ndarray]
) -> None:
    """Raise `ValueError` unless names, shapes and dtypes are those of the template."""
    found, expected = (
        {name: f"{array.dtype}{list(array.shape)}" for name, array in of.items()}
        for of in (tensors, template)
    )
    names = sorted({*found, *expected})
    other = {n: (found.get(n), expected.get(n)) for n in names if found.get(n) != expected.get(n)}
    if other:
        raise ValueError(f"{path} belongs to another model: tensors, found and expected, {other}")


def sync_directory(directory: Path) -> None:
    """Force a directory's entries to the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pieces(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> list[Any]:
    """Return the file's bytes: its length, the padded JSON header, and the arrays' own memory."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"metadata {key!r}: {value!r} is not text; convert it with str()")
    entries: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    pieces, offset = list[Any](), 0
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
        if array.size:
            pieces.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        offset += array.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return [len(header).to_bytes(8, "little"), header, *pieces]


START_FILE = "start.safetensors"


def params_sha256(params: Params) -> str:
    """Return a digest of tensors by name, dtype, shape and values."""
    digest = hashlib.sha256()
    for name in sorted(params):
        array = params[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


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


def check_frozen(sealed: Mapping[str, str], frozen: Mapping[str, np.ndarray], folder: str) -> None:
    """Compare a task's frozen parameters with those that its run was started with.

    Args:
        sealed: Digests that the run folder states, by name.
        frozen: Of the task that goes on with it.
        folder: The run folder, for the message.

    Raises:
        ValueError: If they differ.
    """
    now = frozen_digests(frozen)
    other = sorted(name for name in {*sealed, *now} if sealed.get(name) != now.get(name))
    if other:
        raise ValueError(
            f"frozen parameters (requires_grad=False) of the task are not those that {folder} was "
            f"started with: {', '.join(other)}; let its module have the values of "
            f"{folder}/{FROZEN}, or start a new run in another folder"
        )


SELECTED = "selected.safetensors"
PUBLIC_MODEL, START, LAST, AVERAGE = "public-only", "start", "last", "average"
PUBLIC_MODELS = (PUBLIC_MODEL, START)
"""Models that public examples alone make."""
FACTORS = (0.75, 0.5, 0.25)
"""Shares of the private training's update that candidates keep which are drawn back."""
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
    finite = {
        name: params
        for name, params in released.items()
        if all(np.isfinite(array).all() for array in params.values())
    }
    if start is None:
        return finite
    return finite | {
        f"{name} x {factor:g}": interpolate(start, params, factor)
        for factor in FACTORS
        for name, params in finite.items()
    }


BY_USER = "by_user.safetensors"
"""Held-out examples of each rostered user and the headline measure over them, in a simulation."""


def read_sealed_model(path: Path, sha256: str | None) -> Params:
    """Return the params of a model that a run's documents name by its digest.

    Raises:
        ValueError: If the file is gone, or is not the model that was named.
    """
    resumed = path.name == SELECTED
    instead = "resume the run: it is selected again" if resumed else "start a new run"
    if not path.is_file():
        raise ValueError(f"{path} is missing; restore it, or {instead}")
    params, _ = read_tensors(path)
    if params_sha256(params) != sha256:
        raise ValueError(f"{path} is not the model that its run names; restore it, or {instead}")
    return params
