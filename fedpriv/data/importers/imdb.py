"""The IMDB reviews (Maas et al. 2011): 25,000 to train on, 25,000 to test on, half of them good.

Two forms are read: the canonical archive `aclImdb_v1.tar.gz`, and a pair of JSON-lines files with
`id`, `label` and `text`. Either way the reviews are sorted by id ("neg/0", "neg/1", "neg/10", ...),
so the same position is the same review.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedpriv.data.features.reviews import Reviews
from fedpriv.data.features.word_rows import TOKENISER, Texts, WordRows, word_rows
from fedpriv.data.files.array_cache import cached_arrays
from fedpriv.data.files.raw_files import checksums, find_files, read_file, tar_members
from fedpriv.data.files.unpack import Progress

ARCHIVE = "aclImdb_v1.tar.gz"
LINES = ("imdb_train.jsonl.xz", "imdb_test.jsonl.xz")
CHOICES = ((ARCHIVE,), LINES, ("imdb_train.jsonl", "imdb_test.jsonl"))

_GET = "get them with `fedpriv data fetch imdb`, or name a folder with aclImdb_v1.tar.gz"
_LARGEST_SPLIT = 1 << 28
_LARGEST_REVIEW = 1 << 20
_MEMBER = re.compile(r"(?:\./)?aclImdb/(train|test)/((?:pos|neg)/\d+)_\d+\.txt")

Row = tuple[str, int, str]
"""(id, label, text)."""


def read_imdb(
    argument: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
) -> tuple[Texts, Texts]:
    """Return the training and the test reviews as text, each sorted by id; label 1 is good.

    Args:
        argument: A folder with the files, or one of them; None to look around (`find_files`).
        progress: Called with the bytes read.

    Raises:
        ValueError: If the files are not there, truncated, damaged or not reviews.
    """
    return _read(find_files("imdb", CHOICES, argument, get=_GET), progress)


def load_imdb(
    argument: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
) -> Reviews:
    """Return the reviews as rows of words, tokenised once and then memory-mapped from the cache.

    Args and Raises: as `read_imdb`; `progress` is also called with the texts tokenised.
    """
    paths = find_files("imdb", CHOICES, argument, get=_GET)
    sha256 = checksums(paths, progress)

    def make() -> dict[str, np.ndarray]:
        train, test = word_rows(_read(paths, progress), progress=progress)
        words = np.frombuffer("\n".join(train.words).encode("ascii"), np.uint8)
        parts = {"train": train, "test": test}
        return {"words": words} | {
            f"{part}_{key}": getattr(rows, key)
            for part, rows in parts.items()
            for key in ("ids", "starts", "labels")
        }

    arrays = cached_arrays("imdb", {"sources": sha256, "tokeniser": TOKENISER}, make)
    words = tuple(arrays["words"].tobytes().decode("ascii").split("\n"))
    train, test = (
        WordRows(
            words=words,
            ids=arrays[f"{part}_ids"],
            starts=arrays[f"{part}_starts"],
            labels=np.array(arrays[f"{part}_labels"]),
        )
        for part in ("train", "test")
    )
    return Reviews(
        name="imdb",
        train=train,
        test=test,
        provenance={
            "source": sha256,
            "credit": "Maas et al. 2011, Learning Word Vectors for Sentiment Analysis",
            "licence": "research use",
            "tokeniser": TOKENISER,
        },
    )


def _read(paths: tuple[Path, ...], progress: Progress | None) -> tuple[Texts, Texts]:
    if paths[0].name == ARCHIVE:
        return _from_archive(paths[0], progress)
    train, test = (
        _sorted(_from_lines(path, read_file(path, at_most=_LARGEST_SPLIT, progress=progress)), path)
        for path in paths
    )
    return train, test


def _from_archive(path: Path, progress: Progress | None) -> tuple[Texts, Texts]:
    found: dict[str, list[Row]] = {"train": [], "test": []}
    members = tar_members(
        path,
        lambda name: _MEMBER.fullmatch(name) is not None,
        at_most=_LARGEST_REVIEW,
        progress=progress,
    )
    for name, content in members:
        match = _MEMBER.fullmatch(name)
        if match is not None:
            review = match[2]
            text = _utf8(content, f"{path}: {name}")
            found[match[1]].append((review, int(review.startswith("pos")), text))
    return _sorted(found["train"], path), _sorted(found["test"], path)


def _from_lines(path: Path, content: bytes) -> Iterator[Row]:
    for number, line in enumerate(_utf8(content, str(path)).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number:,}"
        try:
            row = json.loads(line)
            review, label, text = row["id"], row["label"], row["text"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{where} is no review with id, label and text ({error!r})") from None
        if not isinstance(review, str) or not isinstance(text, str):
            raise ValueError(f"{where}: id and text must be strings")
        if isinstance(label, bool) or label not in (0, 1):
            raise ValueError(f"{where}: label {label!r} is neither 0 nor 1")
        yield review, int(label), text


def _sorted(rows: Iterable[Row], path: Path) -> Texts:
    ordered = sorted(rows)
    for (before, _, _), (after, _, _) in pairwise(ordered):
        if before == after:
            raise ValueError(f"{path} has the review {after!r} twice")
    labels = np.array([label for _, label, _ in ordered], dtype=np.int64)
    if len(set(labels.tolist())) < 2:
        raise ValueError(
            f"{path} has {len(ordered):,} reviews in a split, not both good and bad ones; is it "
            "the right file?"
        )
    return Texts(texts=tuple(text for _, _, text in ordered), labels=labels)


def _utf8(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text ({error})") from None
