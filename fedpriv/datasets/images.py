"""MNIST, CIFAR-10 and CIFAR-100 from their published files, packed or not.

Those of MNIST are idx files (Yann LeCun's page, mirrored; CC BY-SA 3.0), those of CIFAR the binary
version at cs.toronto.edu/~kriz/cifar.html, whose licence is not stated. `fedpriv data fetch` gets
the first two. The python version of CIFAR is pickled and is not read.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from fedpriv.datasets.dataset import Dataset
from fedpriv.datasets.raw_files import file_checksums, find_files, read_file, tar_members
from fedpriv.hashes import Progress

_LOG = logging.getLogger(__name__)

_MNIST_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_GET_MNIST = (
    "get them with `fedpriv data fetch mnist`, or set FEDPRIV_DATA to a folder with the four idx "
    "files"
)
_UNSIGNED_BYTE = 0x08
_LARGEST = 1 << 28


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
    choices = (tuple(f"{name}.gz" for name in _MNIST_FILES), _MNIST_FILES)
    paths = find_files("mnist", choices, argument, get=_GET_MNIST)
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
            "source": file_checksums(paths),
            "credit": "LeCun, Cortes, Burges: the MNIST database of handwritten digits",
            "licence": "CC BY-SA 3.0",
            "private_side_information": [],
            "public": None,
        },
    )


def read_idx(path: Path, *, dimensions: int, progress: Progress | None = None) -> np.ndarray:
    """Return the unsigned bytes of an idx file, uint8 of the shape in its header.

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


_PIXELS = 3 * 32 * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cifar:
    """One of the published forms of CIFAR.

    Attributes:
        name: Of the data set.
        kind: The corpus that it is a copy of.
        choices: The forms it comes in, best first: an archive that has all files in it, and binary
            records, the test set last.
        images: How many each file of records has; None for any number.
        classes: How many values each of a record's labels has; the last one is taken.
        note: For the provenance.
    """

    name: str
    kind: str
    choices: tuple[tuple[str, ...], ...]
    images: tuple[int, ...] | None
    classes: tuple[int, ...]
    note: Mapping[str, str] = field(default_factory=dict)


CIFAR10 = _Cifar(
    name="cifar10",
    kind="CIFAR-10",
    choices=(
        ("cifar-10-binary.tar.gz",),
        (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
    ),
    images=(10_000,) * 6,
    classes=(10,),
)
CIFAR10_JPEG = _Cifar(
    name="cifar10-jpeg-10k",
    kind="CIFAR-10",
    choices=(("cifar10_jpeg_train10k.bin.xz", "cifar10_jpeg_test2k.bin.xz"),),
    images=None,
    classes=(10,),
    note={
        "note": "10,000 + 2,000 images decoded from JPEG: lossy, not comparable with CIFAR-10 "
        "results"
    },
)
CIFAR100 = _Cifar(
    name="cifar100",
    kind="CIFAR-100",
    choices=(("cifar-100-binary.tar.gz",), ("train.bin", "test.bin")),
    images=(50_000, 10_000),
    classes=(20, 100),
)
_GET_CIFAR10 = (
    "get them with `fedpriv data fetch cifar10`, or set FEDPRIV_DATA to a folder with "
    "cifar-10-binary.tar.gz"
)
_GET_CIFAR100 = (
    "set FEDPRIV_DATA to a folder with cifar-100-binary.tar.gz, or with train.bin and test.bin of "
    "it"
)


def load_cifar10(
    argument: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
) -> Dataset:
    """Return CIFAR-10: images uint8 (n, 3, 32, 32), labels int64 0 to 9.

    Args:
        argument: A folder with the files, or one of them; None to look around. Where the published
            files are not found, "cifar10-jpeg-10k" will do, a lossy sample: a warning is logged,
            and the returned data set's `name` says which one it is.
        progress: Called with the bytes read, file after file.

    Raises:
        ValueError: If a file is missing, truncated, damaged, or has a label above 9.
    """
    return _load_cifar((CIFAR10, CIFAR10_JPEG), argument, _GET_CIFAR10, progress)


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
    return _load_cifar((CIFAR100,), argument, _GET_CIFAR100, progress)


def _load_cifar(
    forms: Sequence[_Cifar],
    argument: str | os.PathLike[str] | None,
    get: str,
    progress: Progress | None,
) -> Dataset:
    choices = [choice for form in forms for choice in form.choices]
    paths = find_files(forms[0].name, choices, argument, get=get)
    names = tuple(path.name for path in paths)
    form = next(form for form in forms if names in form.choices)
    if form.note:
        _warn(
            f"{forms[0].kind} is not there; {paths[0].parent} is read instead: "
            f"{form.note['note']}; {get}"
        )
    files = form.choices[-1]
    if names != files:
        largest = max(form.images or ()) * (len(form.classes) + _PIXELS)
        members = tar_members(
            paths[0],
            lambda name: name.rpartition("/")[2] in files,
            at_most=largest,
            progress=progress,
        )
        found = {name.rpartition("/")[2]: content for name, content in members}
        if absent := [name for name in files if name not in found]:
            raise ValueError(f"{paths[0]} has no {', '.join(absent)}; is it the right archive?")
        contents = [(f"{paths[0]}: {name}", found[name]) for name in files]
    else:
        contents = [(str(p), read_file(p, at_most=_LARGEST, progress=progress)) for p in paths]
    parts = [read_cifar_records(content, where, form) for where, content in contents]
    for (where, _), (_, labels), number in zip(contents, parts, form.images or (), strict=False):
        if len(labels) != number:
            raise ValueError(
                f"{where} has {len(labels):,} images, not {number:,}: it is truncated or another "
                "file"
            )
    return Dataset(
        name=form.name,
        x_train=np.concatenate([x for x, _ in parts[:-1]]),
        y_train=np.concatenate([y for _, y in parts[:-1]]),
        x_test=parts[-1][0],
        y_test=parts[-1][1],
        provenance={
            "source": file_checksums(paths),
            "credit": "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
            "licence": f"as {form.kind}",
            "private_side_information": [],
            "public": None,
            **form.note,
        },
    )


@cache
def _warn(text: str) -> None:
    """Log a warning, once in a process: a study makes the same task for each of its trials."""
    _LOG.warning("%s", text)


def read_cifar_records(content: bytes, where: str, form: _Cifar) -> tuple[np.ndarray, np.ndarray]:
    """Return (images uint8 (n, 3, 32, 32), labels int64 (n,)) of binary records.

    Args:
        content: The records.
        where: What to call them in an error.
        form: Their published form; of CIFAR-100 the fine labels are returned, the coarse checked.

    Raises:
        ValueError: If they are not whole records, there are none, or a label is out of range.
    """
    size = len(form.classes) + _PIXELS
    if not content or len(content) % size:
        raise ValueError(
            f"{where} has {len(content):,} bytes, which is no whole number of {size:,}-byte "
            "records: it is truncated or another file"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = records[:, : len(form.classes)].astype(np.int64)
    wrong = np.flatnonzero((labels >= form.classes).any(axis=1))
    if len(wrong):
        raise ValueError(
            f"{where}, record {wrong[0]:,}: label {labels[wrong[0]].tolist()} is not below "
            f"{form.classes}; this is no {form.kind} file"
        )
    return records[:, len(form.classes) :].reshape(-1, 3, 32, 32), labels[:, -1].copy()
