"""Amazon product reviews, as public data from elsewhere for the IMDB reviews.

One to two stars are bad (0), four to five good (1), three are left out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from fedpriv.data.features.word_rows import Texts, WordRows, word_rows
from fedpriv.data.files.cache import cache_dir
from fedpriv.data.files.folders import data_folders
from fedpriv.data.files.raw_files import read_lines
from fedpriv.data.files.unpack import Progress

GET = (
    "download a file of reviews by category (JSON lines with reviewText and overall, such as "
    "reviews_Movies_and_TV_5.json.gz, from https://jmcauley.ucsd.edu/data/amazon/), and name it or "
    "put it into a folder `amazon` of FEDPRIV_DATA"
)
_LONGEST_LINE = 1 << 22
_LABELS = {1: 0, 2: 0, 4: 1, 5: 1}


def load_amazon(
    argument: str | os.PathLike[str] | None = None,
    *,
    per_label: int | None = 1_000,
    progress: Progress | None = None,
) -> WordRows:
    """Return Amazon reviews as rows of words, in the order of the file; label 1 is good.

    Most reviews are good, so the first `per_label` bad and the first `per_label` good ones are
    taken; reading stops there.

    Args:
        argument: A .json or .json.gz file, or a folder with one; None to look for `amazon/*.json*`
            in the data folders and `downloads/amazon` in the cache.
        per_label: How many of each label; None for all there are.
        progress: Called with the bytes read, then the texts tokenised.

    Raises:
        ValueError: If there is no such file, it is truncated or damaged, or a line is no review; or
            if it has fewer than `per_label` of a label.
    """
    texts = read_amazon(_find(argument), per_label=per_label, progress=progress)
    return word_rows([texts], progress=progress)[0]


def read_amazon(
    path: Path, *, per_label: int | None = None, progress: Progress | None = None
) -> Texts:
    """Return the reviews of a file as text; see `load_amazon`."""
    if per_label is not None and per_label < 1:
        raise ValueError(f"per_label {per_label} is not positive; give a number, or None for all")
    texts: list[str] = []
    labels: list[int] = []
    taken = [0, 0]
    for number, line in read_lines(path, longest=_LONGEST_LINE, progress=progress):
        if not line.strip():
            continue
        label, text = _review(line, f"{path}, line {number:,}")
        if label is None or not text.strip() or taken[label] == per_label:
            continue
        texts.append(text)
        labels.append(label)
        taken[label] += 1
        if taken == [per_label, per_label]:
            break
    if min(taken) < (per_label or 1):
        wanted = "one" if per_label is None else f"{per_label:,}"
        raise ValueError(
            f"{path} has {taken[0]:,} bad and {taken[1]:,} good reviews, not {wanted} of each"
        )
    return Texts(texts=tuple(texts), labels=np.array(labels, dtype=np.int64))


def _review(line: bytes, where: str) -> tuple[int | None, str]:
    """Return (label or None for three stars, text)."""
    try:
        row = json.loads(line)
        stars, text = row["overall"], row.get("reviewText", "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{where} is no JSON review with reviewText and overall ({error!r})"
        ) from None
    if not isinstance(text, str):
        raise ValueError(f"{where}: reviewText is no string")
    if isinstance(stars, bool) or stars not in (1, 2, 3, 4, 5):
        raise ValueError(f"{where}: overall is {stars!r}, not 1 to 5 stars")
    return _LABELS.get(int(stars)), text


def _find(argument: str | os.PathLike[str] | None) -> Path:
    if argument is not None:
        path = Path(argument).expanduser()
        if path.is_file():
            return path
        folders = [path, path / "amazon"]
    else:
        own = [cache_dir() / "downloads" / "amazon"]
        folders = own + [folder / "amazon" for folder in data_folders()]
    for folder in folders:
        if files := sorted([*folder.glob("*.json.gz"), *folder.glob("*.json")]):
            return files[0]
    where = "here" if argument is None else f"in {argument}"
    raise ValueError(f"no Amazon reviews {where}; {GET}")
