"""Safetensors files, written whole or not at all.

Reading is left to the safetensors library, which checks every offset of the header. Writing is
done here, for two reasons: the arrays go to the file without a copy, and the bytes are a function
of the tensors and the metadata alone (the library stores metadata in a random order, so that
equal checkpoints would have unequal digests).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

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
) -> None:
    """Write a safetensors file in one step: a reader sees the old file or the new one.

    Args:
        path: The file; its directory exists.
        tensors: Arrays of any shape with a dtype of `CODES`, in native little-endian order.
        metadata: Strings to keep in the header.
        durable: Force file and directory to the disk before returning. Without it the rename is
            still atomic for every process, killed or not, because the written pages belong to
            the operating system; only a power cut can then leave an older or a broken file.

    Raises:
        ValueError: If a tensor or a metadata entry cannot be stored. Nothing is written then.
    """
    header, arrays = _header(tensors, metadata or {})
    part = part_path(path)
    with part.open("wb") as file:
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
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the path of a .safetensors file")
    try:
        # No context manager: the class changed its typing over versions, and the handle closes
        # with its last reference.
        handle = safe_open(str(path), framework="numpy")
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        metadata = dict(handle.metadata() or {})
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}); "
            "only files in that format are read"
        ) from error
    return tensors, metadata


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
