"""Images in folders: one folder a label, one a user, or one in the other.

The layout is that of many published sets of photographs, and what is exported from a phone; the
files are your own, or somebody's whose licence is theirs to state. Reading needs Pillow.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from fedpriv.datasets.partitions import examples_by_user, split_by_ids
from fedpriv.libraries import need

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
"""Endings of files that are read, in any case; others are left out."""

_FORMATS = ("BMP", "JPEG", "PNG", "WEBP")  # whose readers run no other program
_MOST_PIXELS = 1 << 26

Level = Literal["label", "user"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FolderImages:
    """Images read from folders.

    Attributes:
        x: Pixels, uint8 (n, channels, height, width).
        y: Labels, int64 (n,): places in `labels`; zeros where no level of folders is labels.
        ids: Each image's user (n,), text; empty texts where no level of folders is users.
        labels: Names of the folders of labels, sorted.
    """

    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    ids: np.ndarray = field(repr=False)
    labels: tuple[str, ...]

    def by_user(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return (pixels, labels) by user, as a `ModuleTask` takes them.

        Raises:
            ValueError: If no level of folders is users; a partition of `y` makes some.
        """
        if not all(self.ids):
            raise ValueError(
                "no level of folders is users; read them with levels=('user', 'label'), or split "
                "y among users by fedpriv.datasets.partitions"
            )
        return examples_by_user(self.x, self.y, split_by_ids(self.ids))


def read_image_folders(
    folder: str | os.PathLike[str],
    *,
    size: tuple[int, int],
    levels: Sequence[Level] = ("label",),
    grey: bool = False,
) -> FolderImages:
    """Return the images of a folder of folders, in the order of their paths.

    Args:
        folder: Holds the outer folders. Files above the innermost ones, and names that begin with
            a dot, are left out.
        size: (height, width) in pixels that every image is scaled to.
        levels: What the folders are called by, from the outside: ("label",), ("user",), or both in
            either order.
        grey: One channel instead of red, green and blue.

    Raises:
        ValueError: If there is no such folder or no image, levels are others, or a file is damaged,
            is none of `SUFFIXES` inside, or has more than 67,108,864 pixels; names the file. If
            Pillow is not installed.
    """
    need("PIL", "data", "a folder of images")
    from PIL import Image, UnidentifiedImageError

    root = Path(folder)
    if not levels or len(set(levels)) != len(levels) or set(levels) - {"label", "user"}:
        raise ValueError(f"levels {tuple(levels)!r} are not 'label', 'user' or both, once each")
    if not root.is_dir():
        raise ValueError(f"{root} is no folder; give one whose folders hold images")
    paths = [
        path
        for path in sorted(root.glob("/".join(["[!.]*"] * (len(levels) + 1))))
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    if not paths:
        raise ValueError(
            f"{root} has no image ({', '.join(SUFFIXES)}) {len(levels)} folder"
            f"{'s' * (len(levels) > 1)} deep; see levels"
        )
    pixels = np.empty((len(paths), 1 if grey else 3, *size), np.uint8)
    for place, path in enumerate(paths):
        try:
            with Image.open(path, formats=_FORMATS) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ValueError(f"has {image.width:,} by {image.height:,} pixels")
                scaled = image.convert("L" if grey else "RGB").resize((size[1], size[0]))
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as e:
            raise ValueError(f"{path} is damaged or no image of its kind ({e})") from None
        except ValueError as error:
            raise ValueError(f"{path} {error}; leave it out") from None
        pixels[place] = np.asarray(scaled).reshape(*size, -1).transpose(2, 0, 1)
    names = {
        level: np.array([path.parts[-len(levels) - 1 + place] for path in paths], np.str_)
        for place, level in enumerate(levels)
    }
    none = np.full(len(paths), "")
    labels, y = np.unique(names.get("label", none), return_inverse=True)
    return FolderImages(
        x=pixels,
        y=y.astype(np.int64),
        ids=names.get("user", none),
        labels=tuple(labels.tolist()) if "label" in names else (),
    )
