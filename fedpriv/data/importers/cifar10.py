"""CIFAR-10 in its binary form: records of one label byte and 3,072 pixel bytes.

The canonical set is 50,000 + 10,000 images. A reduced, lossy set (10,000 + 2,000 images that went
through JPEG) is read too, under a name of its own, so that no result on it can pass for CIFAR-10.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from fedpriv.data.features.dataset import Dataset
from fedpriv.data.files.raw_files import checksums, find_files, read_file, tar_members
from fedpriv.data.files.unpack import Progress

FULL = "cifar10"
REDUCED = "cifar10-jpeg-10k"

_ARCHIVE = "cifar-10-binary.tar.gz"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"
_REDUCED = ("cifar10_jpeg_train10k.bin.xz", "cifar10_jpeg_test2k.bin.xz")
CHOICES = {FULL: ((_ARCHIVE,), (*_TRAIN, _TEST)), REDUCED: (_REDUCED,)}

_GET = "get them with `fedpriv data fetch cifar10`, or name a folder with cifar-10-binary.tar.gz"
_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS
_IMAGES_A_FILE = 10_000
_LARGEST = 1 << 28


def load_cifar10(
    argument: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Return CIFAR-10: images uint8 (n, 3, 32, 32), labels int64 0 to 9.

    Args:
        argument: A folder with the files, or one of them; None to look around.
        name: "cifar10" or "cifar10-jpeg-10k" to accept only that one; None for the first that is
            found. The returned data set's `name` says which one it is.
        progress: Called with the bytes read, file after file.

    Raises:
        ValueError: If a file is missing, truncated, damaged, or has a label above 9.
    """
    if name is not None and name not in CHOICES:
        raise ValueError(f"unknown data set {name!r}; one of {', '.join(CHOICES)}")
    allowed = CHOICES if name is None else {name: CHOICES[name]}
    choices = [choice for forms in allowed.values() for choice in forms]
    paths = find_files("cifar10", choices, argument, get=_GET)
    found = REDUCED if paths[0].name in _REDUCED else FULL
    if paths[0].name == _ARCHIVE:
        contents = _from_archive(paths[0], progress)
    else:
        contents = [
            (str(path), read_file(path, at_most=_LARGEST, progress=progress)) for path in paths
        ]
    parts = [read_records(content, where) for where, content in contents]
    if found == FULL:
        for (where, _), (_, labels) in zip(contents, parts, strict=True):
            if len(labels) != _IMAGES_A_FILE:
                raise ValueError(
                    f"{where} has {len(labels):,} images, not {_IMAGES_A_FILE:,}: it is truncated "
                    "or another file"
                )
    credit = "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images"
    lossy = "10,000 + 2,000 images decoded from JPEG: lossy, not comparable with CIFAR-10 results"
    return Dataset(
        name=found,
        x_train=np.concatenate([x for x, _ in parts[:-1]]),
        y_train=np.concatenate([y for _, y in parts[:-1]]),
        x_test=parts[-1][0],
        y_test=parts[-1][1],
        provenance={
            "source": checksums(paths),
            "credit": credit,
            "licence": "as CIFAR-10",
            "private_side_information": [],
            "public": None,
            **({"note": lossy} if found == REDUCED else {}),
        },
    )


def read_records(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (images uint8 (n, 3, 32, 32), labels int64 (n,)) of binary records.

    Args:
        content: The records.
        where: What to call them in an error.

    Raises:
        ValueError: If they are not whole records, there are none, or a label is above 9.
    """
    if not content or len(content) % _RECORD:
        raise ValueError(
            f"{where} has {len(content):,} bytes, which is no whole number of {_RECORD:,}-byte "
            "records: it is truncated or another file"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        first = int(np.argmax(labels > 9))
        raise ValueError(
            f"{where}, record {first:,}: label {labels[first]} is not one of 0 to 9; this is no "
            "CIFAR-10 file"
        )
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def _from_archive(path: Path, progress: Progress | None) -> list[tuple[str, bytes]]:
    wanted = (*_TRAIN, _TEST)
    found: dict[str, bytes] = {}
    members = tar_members(
        path,
        lambda name: name.rpartition("/")[2] in wanted,
        at_most=_IMAGES_A_FILE * _RECORD,
        progress=progress,
    )
    for name, content in members:
        found[name.rpartition("/")[2]] = content
    if absent := [name for name in wanted if name not in found]:
        raise ValueError(f"{path} has no {', '.join(absent)}; is it the right archive?")
    return [(f"{path}: {name}", found[name]) for name in wanted]
