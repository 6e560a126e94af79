"""Prepared arrays kept in the cache as .npy files, opened memory-mapped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedpriv.data.files.arrays import ArrayWriter, open_array
from fedpriv.data.files.cache import cache_dir, locked
from fedpriv.data.files.places import keep_private
from fedpriv.hashes import document_sha256

_INDEX = "arrays.json"
_VERSION = 1


def cached_arrays(
    name: str,
    facts: Mapping[str, object],
    make: Callable[[], Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Return arrays by name, made on first use; read-only, backed by files.

    Two processes that want the same ones wait for each other. A damaged entry is made again; one
    that was half-written when its process was killed is never seen.

    Args:
        name: Of the entry, a plain word.
        facts: Everything the arrays depend on: checksums of the sources, options; JSON values.
        make: Makes them; one-dimensional arrays of integers or floats.
    """
    facts = {"version": _VERSION, **facts}
    digest = document_sha256(facts)[:16]
    cache = cache_dir()
    target = cache / "arrays" / f"{name}-{digest}"
    if target.is_dir():  # a cache that cannot be written to, as an image brings one, is read
        with suppress(ValueError):
            return _open(target)
    with locked(target.name, cache):
        if target.is_dir():
            try:
                return _open(target)
            except ValueError:
                shutil.rmtree(target)
        for half in target.parent.glob(f".{target.name}.*"):  # of a process that was killed
            shutil.rmtree(half, ignore_errors=True)
        arrays = make()
        half = target.with_name(f".{target.name}.{os.getpid()}")
        half.parent.mkdir(parents=True, exist_ok=True)
        half.mkdir(mode=0o700)
        try:
            index = {key: [values.dtype.str, len(values)] for key, values in arrays.items()}
            for key, values in arrays.items():
                with ArrayWriter(half / f"{key}.npy", values.dtype) as writer:
                    writer.append(values)
            (half / _INDEX).write_text(json.dumps(index), encoding="utf-8")
            keep_private(half)
            half.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)
        return _open(target)


def _open(folder: Path) -> dict[str, np.ndarray]:
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        entries = [(str(key), str(dtype), int(length)) for key, (dtype, length) in index.items()]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is damaged ({error})") from error
    return {
        key: open_array(folder / f"{key}.npy", dtype=dtype, length=length)
        for key, dtype, length in entries
    }
