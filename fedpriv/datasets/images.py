"""MNIST, CIFAR-10 and CIFAR-100 from their published files, packed or not."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpriv.datasets.dataset import Dataset
from fedpriv.datasets.raw_files import checksums, find_files, read_file, tar_members
from fedpriv.hashes import Progress

_NAMES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_MNIST_FILES = (tuple(f"{name}.gz" for name in _NAMES), _NAMES)

_GET_MNIST = "get them with `fedpriv data fetch mnist`, or name a folder with the four idx files"
_UNSIGNED_BYTE = 0x08


def load_mnist(
    argument: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
) -> Dataset:
    """Return MNIST: images uint8 (n, 28, 28), labels int64 0 to 9; 60,000 and 10,000 of them.

    Args:
        argument: A folder with the four files, or one of them; None to look around.
        progress: Called with the bytes read, file after file.

    Raises:
        ValueError: If a file is missing, truncated, damaged, or not what its name says.
    """
    paths = find_files("mnist", _MNIST_FILES, argument, get=_GET_MNIST)
    arrays = [
        read_idx(path, dimensions=dimensions, progress=progress)
        for path, dimensions in zip(paths, (3, 1, 3, 1), strict=True)
    ]
    for at, part in ((0, "training"), (2, "test")):
        images, labels = arrays[at : at + 2]
        if images.shape[1:] != (28, 28):
            raise ValueError(f"{paths[at]} has images of {images.shape[1:]} pixels, not 28 by 28")
        if len(images) != len(labels):
            raise ValueError(
                f"{paths[at].parent} has {len(images):,} {part} images but {len(labels):,} labels; "
                "the files do not belong together"
            )
        if len(labels) and labels.max() > 9:
            raise ValueError(f"{paths[at + 1]} has the label {labels.max()}, not one of 0 to 9")
    return Dataset(
        name="mnist",
        x_train=arrays[0],
        y_train=arrays[1].astype(np.int64),
        x_test=arrays[2],
        y_test=arrays[3].astype(np.int64),
        provenance={
            "source": checksums(paths),
            "credit": "LeCun, Cortes, Burges: the MNIST database of handwritten digits",
            "licence": "CC BY-SA 3.0",
            "private_side_information": [],
            "public": None,
        },
    )


def read_idx(path: Path, *, dimensions: int, progress: Progress | None = None) -> np.ndarray:
    """Return the unsigned bytes of an idx file, uint8 of the shape its header tells.

    Args:
        path: The file, plain or packed.
        dimensions: How many it must have: 3 for images, 1 for labels.
        progress: Called with the bytes read.

    Raises:
        ValueError: If the header is not that of such a file, or there are fewer or more bytes than
            it announces.
    """
    content = read_file(path, at_most=_LARGEST, progress=progress)
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    start = 4 + 4 * dimensions
    if content[:4] != magic:
        raise ValueError(
            f"{path} begins with {content[:4].hex() or 'nothing'}, not {magic.hex()}: it is no idx "
            f"file of bytes in {dimensions} dimension{'s' if dimensions > 1 else ''}"
        )
    if len(content) < start:
        raise ValueError(f"{path} is truncated within its header; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    expected = math.prod(shape)
    if len(content) - start != expected:
        what = "is truncated" if len(content) - start < expected else "is too long"
        raise ValueError(
            f"{path} {what}: its header announces {expected:,} bytes of shape {shape}, "
            f"{len(content) - start:,} follow"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


CIFAR10 = "cifar10"
CIFAR10_JPEG = "cifar10-jpeg-10k"

_CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
_CIFAR10_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_CIFAR10_TEST = "test_batch.bin"
_JPEG_FILES = ("cifar10_jpeg_train10k.bin.xz", "cifar10_jpeg_test2k.bin.xz")
_CIFAR10_FILES = {
    CIFAR10: ((_CIFAR10_ARCHIVE,), (*_CIFAR10_TRAIN, _CIFAR10_TEST)),
    CIFAR10_JPEG: (_JPEG_FILES,),
}

_GET_CIFAR10 = (
    "get them with `fedpriv data fetch cifar10`, or name a folder with cifar-10-binary.tar.gz"
)
CIFAR100 = "cifar100"
_CIFAR100_ARCHIVE = "cifar-100-binary.tar.gz"
_CIFAR100_FILES = ("train.bin", "test.bin")
_CIFAR100_IMAGES = (50_000, 10_000)
_GET_CIFAR100 = "name a folder with cifar-100-binary.tar.gz, or with train.bin and test.bin of it"
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
    if name is not None and name not in _CIFAR10_FILES:
        raise ValueError(f"unknown data set {name!r}; one of {', '.join(_CIFAR10_FILES)}")
    allowed = _CIFAR10_FILES if name is None else {name: _CIFAR10_FILES[name]}
    choices = [choice for forms in allowed.values() for choice in forms]
    paths = find_files("cifar10", choices, argument, get=_GET_CIFAR10)
    found = CIFAR10_JPEG if paths[0].name in _JPEG_FILES else CIFAR10
    if paths[0].name == _CIFAR10_ARCHIVE:
        contents = _read_cifar_archive(paths[0], progress)
    else:
        contents = [
            (str(path), read_file(path, at_most=_LARGEST, progress=progress)) for path in paths
        ]
    parts = [read_cifar10_records(content, where) for where, content in contents]
    if found == CIFAR10:
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
            **({"note": lossy} if found == CIFAR10_JPEG else {}),
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
    choices = [(_CIFAR100_ARCHIVE,), _CIFAR100_FILES]
    paths = find_files("cifar100", choices, argument, get=_GET_CIFAR100)
    if paths[0].name == _CIFAR100_ARCHIVE:
        contents = _read_cifar_archive(paths[0], progress, _CIFAR100_FILES, 50_000 * (_RECORD + 1))
    else:
        contents = [(str(p), read_file(p, at_most=_LARGEST, progress=progress)) for p in paths]
    parts = [read_cifar100_records(content, where) for where, content in contents]
    for (where, _), (_, labels), number in zip(contents, parts, _CIFAR100_IMAGES, strict=True):
        if len(labels) != number:
            raise ValueError(
                f"{where} has {len(labels):,} images, not {number:,}: it is truncated or another "
                "file"
            )
    return Dataset(
        name=CIFAR100,
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


def read_cifar10_records(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (images uint8 (n, 3, 32, 32), labels int64 (n,)) of binary records of CIFAR-10.

    Args:
        content: The records.
        where: What to call them in an error.

    Raises:
        ValueError: If they are not whole records, there are none, or a label is above 9.
    """
    return _parse_cifar(content, where, (10,), "CIFAR-10")


def read_cifar100_records(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the same of CIFAR-100: labels are the fine ones, 0 to 99.

    Raises:
        ValueError: If they are not whole records, there are none, or a label is out of range.
    """
    return _parse_cifar(content, where, (20, 100), "CIFAR-100")


def _parse_cifar(
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


def _read_cifar_archive(
    path: Path,
    progress: Progress | None,
    wanted: tuple[str, ...] = (*_CIFAR10_TRAIN, _CIFAR10_TEST),
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
