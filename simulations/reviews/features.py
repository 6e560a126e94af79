"""Labelled reviews (IMDB, Amazon, synthetic) as a `Dataset`: a bag of words, or sequences.

Who is public is decided first, by position; then vocabulary and document frequencies are counted
over public rows, or, where asked (as the paper does), over private ones; the data set's provenance
names everything that private rows decided.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import tarfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedpriv.datasets.arrays import offsets
from fedpriv.datasets.cache import cached_arrays
from fedpriv.datasets.dataset import Dataset, Inputs, describe_public_part, split_public
from fedpriv.datasets.raw_files import (
    file_checksums,
    find_files,
    open_plain,
    read_file,
    read_lines,
    tar_members,
)
from fedpriv.hashes import Progress
from fedpriv.rng import Key
from simulations.reviews import bag_of_words as bags
from simulations.reviews.bag_of_words import (
    TOKENISER,
    Provenance,
    Texts,
    WordRows,
    word_rows,
)

Weights = Literal[
    "sequences", "padded-counts", "padded-shares", "counts", "binary", "tf-idf", "binary-tf-idf"
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reviews:
    """Labelled texts in two parts.

    Attributes:
        name: Of the data set.
        train: Training rows.
        test: Test rows, over the same table of words.
        provenance: JSON values.
        synthetic: Whether a generator made them.
    """

    name: str
    train: WordRows
    test: WordRows
    provenance: Mapping[str, Any]
    synthetic: bool = False


def review_features(
    reviews: Reviews,
    *,
    weights: Weights = "binary-tf-idf",
    unit_rows: bool = True,
    vocabulary: Provenance = "public",
    idf: Provenance = "public",
    size: int = 10_000,
    length: int = 290,
    public_share: float = 0.01,
    public_seed: int = 0,
    public: WordRows | None = None,
) -> Dataset:
    """Return reviews as sparse features, csr_matrix float32 (n, size), or as sequences of ids.

    `weights="padded-shares", unit_rows=False, vocabulary="private"` is how the paper's code ran;
    the defaults are the best features found that take nothing from private reviews.

    Args:
        reviews: What `load_imdb` or `synthetic_reviews` returned.
        weights: "sequences" for padded ids in Keras' convention, int32 (n, length), for an LSTM;
            "padded-counts" counts those, the first three reserved, and "padded-shares" divides the
            counts by the length; the others count whole texts, one column a vocabulary word: plain,
            0/1, or either times the inverse document frequency.
        unit_rows: Whether every row of a bag of words is scaled to L2 norm 1.
        vocabulary: Source of the reviews that choose the words.
        idf: Source of the reviews that document frequencies are counted over.
        size: Number of features. A small public set has fewer words; columns are then left empty.
        length: Of padded sequences.
        public_share: Share of the training set that is public, and removed from it; 0 for none.
        public_seed: Another choice of the same size.
        public: Public rows from elsewhere (`load_amazon`); nothing is then removed.

    Raises:
        ValueError: If something public is asked for and there are no public reviews, or an option
            is unknown.
    """
    if weights not in get_args(Weights):
        raise ValueError(f"unknown weights {weights!r}; one of {', '.join(get_args(Weights))}")
    in_order = weights == "sequences"
    padded = in_order or weights.startswith("padded")
    idf_of = idf if weights.endswith("tf-idf") else None
    private, public_part = reviews.train, None
    if public is not None:
        public_part = {"from": "another data set, nothing removed", "size": len(public)}
    elif public_share != 0:
        kept, held = split_public(len(private), public_share, public_seed)
        private, public = private.take(kept), private.take(held)
        public_part = describe_public_part(len(held), public_share, public_seed)
    rows_of = {"private": private, "public": public, None: private}
    decided = (("vocabulary", vocabulary), ("document frequencies", idf_of))
    for what, source in decided:
        if rows_of.get(source) is None:
            raise ValueError(
                f"{what} from {source!r}: there are no such reviews; choose private, or public "
                "with public rows or a public_share such as 0.01"
            )
    chooses, counts = rows_of[vocabulary], rows_of[idf_of]
    assert chooses is not None and counts is not None
    words = bags.most_frequent(chooses, size - bags.RESERVED if padded else size)
    scale = np.ones(size, np.float32)
    if idf_of is not None:
        frequency = bags.document_frequency(counts, words)
        scale[: len(words)] = bags.inverse_document_frequency(frequency, len(counts))

    def features(rows: WordRows) -> Inputs:
        if padded:
            ids = bags.padded_ids(rows, words, length=length, size=size)
            if in_order:
                return ids
            x = bags.count_ids(ids, size)
            if weights == "padded-shares":
                x = bags.scale_columns(x, np.full(size, 1 / length, np.float32))
        else:
            x = bags.count_words(rows, words, size)
        if weights.startswith("binary"):
            x = bags.binary(x)
        if idf_of is not None:
            x = bags.scale_columns(x, scale)
        return bags.unit_rows(x) if unit_rows else x

    about = {
        "weights": weights,
        "size": size,
        **({} if in_order else {"unit_rows": unit_rows}),
        **({"length": length} if padded else {}),
        **({} if idf_of is None else {"idf": idf_of}),
        "vocabulary": {"source": vocabulary, "words": len(words)},
    }
    return Dataset(
        name=reviews.name,
        x_train=features(private),
        y_train=private.labels,
        x_test=features(reviews.test),
        y_test=reviews.test.labels,
        provenance={
            **reviews.provenance,
            "features": about,
            "private_side_information": [what for what, source in decided if source == "private"],
            "public": public_part,
        },
        synthetic=reviews.synthetic,
        x_public=None if public is None else features(public),
        y_public=None if public is None else public.labels,
    )


_IMDB_ARCHIVE = "aclImdb_v1.tar.gz"
_IMDB_LINES = ("imdb_train.jsonl.xz", "imdb_test.jsonl.xz")
_IMDB_FILES = ((_IMDB_ARCHIVE,), _IMDB_LINES, ("imdb_train.jsonl", "imdb_test.jsonl"))

_GET_IMDB = "get them with `fedpriv data fetch imdb`, or name a folder with aclImdb_v1.tar.gz"
_LARGEST_SPLIT = 1 << 28
_LARGEST_REVIEW = 1 << 20
_IMDB_MEMBER = re.compile(r"(?:\./)?aclImdb/(train|test)/((?:pos|neg)/\d+)_\d+\.txt")

_Row = tuple[str, int, str]
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
    return _read_imdb(find_files("imdb", _IMDB_FILES, argument, get=_GET_IMDB), progress)


def load_imdb(
    argument: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
) -> Reviews:
    """Return the reviews as rows of words, tokenised once and then read from the cache.

    Args and Raises: as `read_imdb`; `progress` is also called with the texts tokenised.
    """
    paths = find_files("imdb", _IMDB_FILES, argument, get=_GET_IMDB)
    sha256 = file_checksums(paths, progress)

    def make() -> dict[str, np.ndarray]:
        train, test = word_rows(_read_imdb(paths, progress), progress=progress)
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
            labels=arrays[f"{part}_labels"],
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


def _read_imdb(paths: tuple[Path, ...], progress: Progress | None) -> tuple[Texts, Texts]:
    if paths[0].name == _IMDB_ARCHIVE:
        return _read_imdb_archive(paths[0], progress)
    train, test = (
        _sort_by_id(
            _parse_imdb_lines(path, read_file(path, at_most=_LARGEST_SPLIT, progress=progress)),
            path,
        )
        for path in paths
    )
    return train, test


def _read_imdb_archive(path: Path, progress: Progress | None) -> tuple[Texts, Texts]:
    found: dict[str, list[_Row]] = {"train": [], "test": []}
    members = tar_members(
        path,
        lambda name: _IMDB_MEMBER.fullmatch(name) is not None,
        at_most=_LARGEST_REVIEW,
        progress=progress,
    )
    for name, content in members:
        match = _IMDB_MEMBER.fullmatch(name)
        if match is not None:
            review = match[2]
            text = _utf8(content, f"{path}: {name}")
            found[match[1]].append((review, int(review.startswith("pos")), text))
    return _sort_by_id(found["train"], path), _sort_by_id(found["test"], path)


def _parse_imdb_lines(path: Path, content: bytes) -> Iterator[_Row]:
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


def _sort_by_id(rows: Iterable[_Row], path: Path) -> Texts:
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


_AMAZON_ARCHIVES = ("amazon_review_full_csv.tar.gz", "amazon_review_full_csv.tgz")
_AMAZON_ROWS = "train.csv"
_AMAZON_MEMBER = re.compile(r"(?:[^/]+/)*train\.csv")
_AMAZON_FILES = (*((name,) for name in _AMAZON_ARCHIVES), (_AMAZON_ROWS,))
_GET_AMAZON = (
    "get amazon_review_full_csv.tar.gz (640 MB), Amazon Reviews Full of Zhang, Zhao and LeCun "
    "(2015), from https://figshare.com/articles/dataset/Amazon_Reviews_Full/13232537/1, and put "
    "it, or its train.csv, into a folder `amazon` of FEDPRIV_DATA"
)
_LONGEST_LINE = 1 << 22
_LABEL_OF_STARS = {1: 0, 2: 0, 4: 1, 5: 1}


def load_amazon(
    argument: str | os.PathLike[str] | None = None,
    *,
    per_label: int = 125,
    progress: Progress | None = None,
) -> WordRows:
    """Return Amazon reviews as rows of words, in the order of the file; label 1 is good.

    The paper's data: rows of a class of 1 to 5 stars, a title and a text, of which classes 1 and 2
    are bad, 4 and 5 good, and the text alone is taken. The first `per_label` bad and the first
    `per_label` good ones are taken; reading stops there. Usually they are 1 % of IMDB's training
    set, as in the paper.

    Args:
        argument: The archive, its train.csv, or a folder with one; None to look around
            (`find_files`).
        per_label: How many of each label.
        progress: Called with the bytes read, then the texts tokenised.

    Raises:
        ValueError: If there is no such file, it is truncated or damaged, or a line is no review; or
            if it has fewer than `per_label` of a label.
    """
    [path] = find_files("amazon", _AMAZON_FILES, argument, get=_GET_AMAZON)
    texts = read_amazon(path, per_label=per_label, progress=progress)
    return word_rows([texts], progress=progress)[0]


def read_amazon(path: Path, *, per_label: int, progress: Progress | None = None) -> Texts:
    """Return the reviews of a file as text; see `load_amazon`."""
    texts: list[str] = []
    labels: list[int] = []
    taken = [0, 0]
    with closing(_amazon_lines(path, progress)) as lines:
        for number, line in lines:
            label, text = _parse_amazon(line, f"{path}, line {number:,}")
            if label is None or not text.strip() or taken[label] == per_label:
                continue
            texts.append(text)
            labels.append(label)
            taken[label] += 1
            if taken == [per_label, per_label]:
                break
    if min(taken) < per_label:
        raise ValueError(
            f"{path} has {taken[0]:,} bad and {taken[1]:,} good reviews, not {per_label:,} of each"
        )
    return Texts(texts=tuple(texts), labels=np.array(labels, dtype=np.int64))


def _amazon_lines(
    path: Path, progress: Progress | None
) -> Generator[tuple[int, bytes], None, None]:
    """Yield (number from 1, line) of the training rows, one a review, packed or not."""
    if path.name == _AMAZON_ROWS:
        yield from read_lines(path, longest=_LONGEST_LINE, progress=progress)
        return
    total = path.stat().st_size
    with open_plain(path) as (packed, plain), tarfile.open(fileobj=plain, mode="r|") as archive:
        for member in archive:
            rows = archive.extractfile(member) if _AMAZON_MEMBER.fullmatch(member.name) else None
            if rows is None:
                continue
            for number in itertools.count(1):
                line = rows.readline(_LONGEST_LINE + 1)
                if len(line) > _LONGEST_LINE:
                    raise ValueError(
                        f"{path}, line {number:,}: has more than {_LONGEST_LINE:,} bytes"
                    )
                if progress is not None and number % 1000 == 0:
                    progress(packed.tell(), total)
                if not line:
                    return
                yield number, line
    raise ValueError(f"{path} holds no {_AMAZON_ROWS}; {_GET_AMAZON}")


def _parse_amazon(line: bytes, where: str) -> tuple[int | None, str]:
    """Return (label or None for three stars, text)."""
    try:
        [row] = csv.reader([_utf8(line, where)], strict=True)
        stars, _, text = row
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{where} is no review of a class, a title and a text ({error!r})"
        ) from None
    if stars not in ("1", "2", "3", "4", "5"):
        raise ValueError(f"{where}: class {stars!r} is not 1 to 5 stars")
    return _LABEL_OF_STARS.get(int(stars)), text.replace("\\n", " ")


_GENERATOR = 1  # counts up when the same seed gives other reviews
_MEAN_LENGTH = 60  # words of a review
_INDICATIVE, _INDICATIVE_SHARE = 40, 0.08  # words that tell the label, half each label's


def synthetic_reviews(
    num_train: int = 2_000,
    num_test: int = 1_000,
    *,
    num_words: int = 2_000,
    truth: float = 0.8,
    seed: int = 0,
) -> Reviews:
    """Return synthetic labelled reviews; the same arguments give the same ones.

    Labels are drawn evenly. Lengths are geometric-like around a mean; words are Zipf, except that a
    share of them is drawn from the indicative words, of the review's own label with probability
    `truth` and of the other one else. Indicative words are spread over the middle ranks, so a good
    model has to weigh words that are neither the most frequent nor the rarest.

    Args:
        num_train: Training reviews.
        num_test: Test reviews.
        num_words: Words there are, at least 160.
        truth: How often an indicative word is of the review's label.
        seed: Of the generator.
    """
    rng = Key.simulation(seed).fold("synthetic reviews").fold(_GENERATOR).generator()
    weights = 1.0 / np.arange(1, num_words + 1)
    cumulative = np.cumsum(weights / weights.sum())
    cumulative[-1] = 1.0
    middle = rng.permutation(np.arange(num_words // 4, num_words // 2))
    by_label = middle[:_INDICATIVE].reshape(2, -1)
    names = tuple(f"word{number}" for number in range(num_words))

    def rows(n: int) -> WordRows:
        labels = rng.integers(0, 2, n)
        lengths = 1 + rng.poisson(rng.gamma(4.0, (_MEAN_LENGTH - 1) / 4.0, n))
        total = int(lengths.sum())
        ids = np.searchsorted(cumulative, rng.random(total), side="right").astype(np.int32)
        own = np.repeat(labels, lengths)
        chosen = np.flatnonzero(rng.random(total) < _INDICATIVE_SHARE)
        side = np.where(rng.random(len(chosen)) < truth, own[chosen], 1 - own[chosen])
        ids[chosen] = by_label[side, rng.integers(0, by_label.shape[1], len(chosen))]
        return WordRows(words=names, ids=ids, starts=offsets(lengths), labels=labels)

    train = rows(num_train)
    return Reviews(
        name="synthetic-reviews",
        train=train,
        test=rows(num_test),
        provenance={
            "source": f"made by a generator (version {_GENERATOR}), no real text",
            "seed": seed,
            "words": num_words,
            "licence": "none needed",
        },
        synthetic=True,
    )
