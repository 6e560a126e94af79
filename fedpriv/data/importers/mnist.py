"""MNIST's four idx files, packed or not."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from fedpriv.data.features.dataset import Dataset
from fedpriv.data.files.raw_files import checksums, find_files, read_file
from fedpriv.data.files.unpack import Progress

_NAMES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
CHOICES = (tuple(f"{name}.gz" for name in _NAMES), _NAMES)

_GET = "get them with `fedpriv data fetch mnist`, or name a folder with the four idx files"
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
    paths = find_files("mnist", CHOICES, argument, get=_GET)
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
