"""CIFAR-10 and CIFAR-100 in their binary form: labels of one byte each, and 3,072 pixel bytes.

The canonical set is 50,000 + 10,000 images. A reduced, lossy set (10,000 + 2,000 images that went
through JPEG) is read too, under a name of its own, so that no result on it can pass for CIFAR-10.
CIFAR-100 has two labels a record, one of 20 kinds and one of 100 classes. Its other published form
is a pickle, which is not read: pickles run what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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
HUNDRED = "cifar100"
_HUNDRED_ARCHIVE = "cifar-100-binary.tar.gz"
_HUNDRED_FILES = ("train.bin", "test.bin")
_HUNDRED_IMAGES = (50_000, 10_000)
_GET_HUNDRED = "name a folder with cifar-100-binary.tar.gz, or with train.bin and test.bin of it"
_CREDIT = "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images"
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
    lossy = "10,000 + 2,000 images decoded from JPEG: lossy, not comparable with CIFAR-10 results"
    return Dataset(
        name=found,
        x_train=np.concatenate([x for x, _ in parts[:-1]]),
        y_train=np.concatenate([y for _, y in parts[:-1]]),
        x_test=parts[-1][0],
        y_test=parts[-1][1],
        provenance={
            "source": checksums(paths),
            "credit": _CREDIT,
            "licence": "as CIFAR-10",
            "private_side_information": [],
            "public": None,
            **({"note": lossy} if found == REDUCED else {}),
        },
    )


def load_cifar100(
    argument: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
) -> Dataset:
    """Return CIFAR-100: images uint8 (n, 3, 32, 32), labels int64 0 to 99, the fine ones.

    Args:
        argument: A folder with the files, or one of them; None to look around.
        progress: Called with the bytes read, file after file.

    Raises:
        ValueError: If a file is missing, truncated, damaged, or has a label that is none.
    """
    choices = [(_HUNDRED_ARCHIVE,), _HUNDRED_FILES]
    paths = find_files("cifar100", choices, argument, get=_GET_HUNDRED)
    if paths[0].name == _HUNDRED_ARCHIVE:
        contents = _from_archive(paths[0], progress, _HUNDRED_FILES, 50_000 * (_RECORD + 1))
    else:
        contents = [(str(p), read_file(p, at_most=_LARGEST, progress=progress)) for p in paths]
    parts = [read_fine_records(content, where) for where, content in contents]
    for (where, _), (_, labels), number in zip(contents, parts, _HUNDRED_IMAGES, strict=True):
        if len(labels) != number:
            raise ValueError(
                f"{where} has {len(labels):,} images, not {number:,}: it is truncated or another "
                "file"
            )
    return Dataset(
        name=HUNDRED,
        x_train=parts[0][0],
        y_train=parts[0][1],
        x_test=parts[1][0],
        y_test=parts[1][1],
        provenance={
            "source": checksums(paths),
            "credit": _CREDIT,
            "licence": "as CIFAR-100",
            "private_side_information": [],
            "public": None,
        },
    )


def read_records(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (images uint8 (n, 3, 32, 32), labels int64 (n,)) of binary records of CIFAR-10.

    Args:
        content: The records.
        where: What to call them in an error.

    Raises:
        ValueError: If they are not whole records, there are none, or a label is above 9.
    """
    return _records(content, where, (10,), "CIFAR-10")


def read_fine_records(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the same of CIFAR-100: labels are the fine ones, 0 to 99.

    Raises:
        ValueError: If they are not whole records, there are none, or a label is out of range.
    """
    return _records(content, where, (20, 100), "CIFAR-100")


def _records(
    content: bytes, where: str, classes: Sequence[int], kind: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return images and the last of a record's labels; the others are checked too."""
    size = len(classes) + _PIXELS
    if not content or len(content) % size:
        raise ValueError(
            f"{where} has {len(content):,} bytes, which is no whole number of {size:,}-byte "
            "records: it is truncated or another file"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    for place, number in enumerate(classes):
        labels = records[:, place].astype(np.int64)
        if labels.max() >= number:
            first = int(np.argmax(labels >= number))
            raise ValueError(
                f"{where}, record {first:,}: label {labels[first]} is not one of 0 to "
                f"{number - 1}; this is no {kind} file"
            )
    return records[:, len(classes) :].reshape(-1, 3, 32, 32), labels


def _from_archive(
    path: Path,
    progress: Progress | None,
    wanted: tuple[str, ...] = (*_TRAIN, _TEST),
    at_most: int = _IMAGES_A_FILE * _RECORD,
) -> list[tuple[str, bytes]]:
    found: dict[str, bytes] = {}
    members = tar_members(
        path,
        lambda name: name.rpartition("/")[2] in wanted,
        at_most=at_most,
        progress=progress,
    )
    for name, content in members:
        found[name.rpartition("/")[2]] = content
    if absent := [name for name in wanted if name not in found]:
        raise ValueError(f"{path} has no {', '.join(absent)}; is it the right archive?")
    return [(f"{path}: {name}", found[name]) for name in wanted]
