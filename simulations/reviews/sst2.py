"""SST-2 as GLUE publishes it: sentences from film reviews, good or bad."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.raw_files import file_checksums, find_files, read_file
from fedpriv.hashes import Progress
from simulations.reviews.bag_of_words import Texts

ARCHIVE = "SST-2.zip"
CHOICES = ((ARCHIVE,), ("train.tsv", "dev.tsv"), ("SST-2/train.tsv", "SST-2/dev.tsv"))

_GET = "get them with `fedpriv data fetch sst2`, or name a folder with train.tsv and dev.tsv"
_HEADER = "sentence\tlabel"
_LARGEST = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextSplits:
    """Texts to train on and to test on, for a model with a tokeniser of its own.

    Attributes:
        name: Of the data set.
        train: Training texts.
        test: Test texts.
        provenance: JSON values.
        synthetic: Whether a generator made them.
    """

    name: str
    train: Texts
    test: Texts
    provenance: Mapping[str, Any]
    synthetic: bool = False


def load_sst2(
    argument: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
) -> TextSplits:
    """Return SST-2: 67,349 training sentences, and the 872 of the development set to test on.

    GLUE keeps the labels of its own test set to itself.

    Args:
        argument: `SST-2.zip`, a folder with it or with `train.tsv` and `dev.tsv`; None to look
            around.
        progress: Called with the bytes read.

    Raises:
        ValueError: If the files are not there, truncated, damaged, or not of the form
            `sentence<TAB>label`.
    """
    paths = find_files("sst2", CHOICES, argument, get=_GET)
    if paths[0].name == ARCHIVE:
        contents = _from_archive(paths[0])
    else:
        contents = [
            (str(path), read_file(path, at_most=_LARGEST, progress=progress)) for path in paths
        ]
    train, test = (read_tsv(content, where) for where, content in contents)
    return TextSplits(
        name="sst2",
        train=train,
        test=test,
        provenance={
            "source": file_checksums(paths),
            "credit": "Socher et al. 2013 (Stanford Sentiment Treebank), as in GLUE",
            "licence": "as GLUE",
            "test": "the development set",
        },
    )


def read_tsv(content: bytes, where: str) -> Texts:
    """Return the sentences of a GLUE file; quotes in it are quotes, not markup.

    Args:
        content: `sentence<TAB>label` with that line first, UTF-8.
        where: What to call it in an error.

    Raises:
        ValueError: If it is anything else, or cut off in the middle of its last line.
    """
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text ({error})") from None
    if lines[0].rstrip("\r") != _HEADER:
        raise ValueError(f"{where} begins with {lines[0][:60]!r}, not {_HEADER!r}")
    if lines[-1] == "":
        lines.pop()
    texts, labels = [], []
    for number, line in enumerate(lines[1:], 2):
        sentence, tab, label = line.rstrip("\r").rpartition("\t")
        if not tab or label not in ("0", "1") or not sentence.strip():
            raise ValueError(
                f"{where}, line {number:,}: {line[:60]!r} is not a sentence, a tab, and 0 or 1"
            )
        texts.append(sentence.strip())
        labels.append(int(label))
    if not texts:
        raise ValueError(f"{where} has no sentences")
    return Texts(texts=tuple(texts), labels=np.array(labels, dtype=np.int64))


def _from_archive(path: Path) -> list[tuple[str, bytes]]:
    contents = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in ("SST-2/train.tsv", "SST-2/dev.tsv"):
                with archive.open(name) as member:
                    content = member.read(_LARGEST + 1)
                if len(content) > _LARGEST:
                    raise ValueError(f"{path}: {name} has more than {_LARGEST:,} bytes")
                contents.append((f"{path}: {name}", content))
    except KeyError as error:
        raise ValueError(f"{path} is not GLUE's SST-2 ({error.args[0]})") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{path} is truncated or damaged ({error}); fetch it again") from None
    return contents
