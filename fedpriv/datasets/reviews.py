"""Labelled reviews (IMDB, Amazon, synthetic) as a `Dataset`: a bag of words, or sequences.

Who is public is decided first, by position; then vocabulary and document frequencies are counted
over public rows, or, where asked (as the paper does), over private ones; the data set's provenance
names everything that private rows decided.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import sparse

from fedpriv.datasets import bag_of_words as bags
from fedpriv.datasets.arrays import offsets
from fedpriv.datasets.bag_of_words import (
    TOKENISER,
    Provenance,
    RankedWords,
    Texts,
    WordRows,
    word_rows,
)
from fedpriv.datasets.cache import cache_dir, cached_arrays, data_folders
from fedpriv.datasets.dataset import Dataset, Inputs, describe_public_part, split_public
from fedpriv.datasets.raw_files import (
    file_checksums,
    find_files,
    read_file,
    read_lines,
    tar_members,
)
from fedpriv.hashes import Progress
from fedpriv.rng import Key

Weights = Literal["padded-counts", "counts", "binary", "tf-idf", "binary-tf-idf"]
WEIGHTS: tuple[Weights, ...] = ("padded-counts", "counts", "binary", "tf-idf", "binary-tf-idf")


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


def bag_of_words(
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
    """Return reviews as sparse features, csr_matrix float32 (n, size).

    `weights="padded-counts", unit_rows=False, vocabulary="private"` is how the paper ran; the
    defaults are the best features found that take nothing from private reviews.

    Args:
        reviews: What `load_imdb` or `synthetic_reviews` returned.
        weights: "padded-counts" counts padded ids, the first three reserved; the others count whole
            texts, one column a vocabulary word: plain, 0/1, or either times the inverse document
            frequency.
        unit_rows: Whether every row is scaled to L2 norm 1.
        vocabulary: Whose reviews choose the words.
        idf: Whose reviews the document frequencies are counted over.
        size: Number of features. A small public set has fewer words; columns are then left empty.
        length: Of padded sequences.
        public_share: Share of the training set that is public, and removed from it; 0 for none.
        public_seed: Another choice of the same size.
        public: Public rows from elsewhere (`load_amazon`); nothing is then removed.

    Raises:
        ValueError: If something public is asked for and there are no public reviews, or an option
            is unknown.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"unknown weights {weights!r}; one of {', '.join(WEIGHTS)}")
    padded, idf_of = weights == "padded-counts", idf if weights.endswith("tf-idf") else None
    scale = np.ones(size, np.float32)

    def features(rows: WordRows, words: RankedWords) -> sparse.csr_matrix:
        if padded:
            x = bags.count_ids(bags.padded_ids(rows, words, length=length, size=size), size)
        else:
            x = bags.count_words(rows, words, size)
        if weights.startswith("binary"):
            x = bags.binary(x)
        if idf_of is not None:
            x = bags.scale_columns(x, scale)
        return bags.unit_rows(x) if unit_rows else x

    def count_documents(rows: WordRows, words: RankedWords) -> None:
        frequency = bags.document_frequency(rows, words)
        scale[: len(frequency)] = bags.inverse_document_frequency(frequency, len(rows))

    about = {"weights": weights, "unit_rows": unit_rows, "size": size}
    about |= {"length": length} if padded else {}
    about |= {} if idf_of is None else {"idf": idf_of}
    return _make_dataset(
        reviews,
        (public_share, public_seed, public),
        features,
        vocabulary=vocabulary,
        num_words=size - bags.RESERVED if padded else size,
        idf=idf_of,
        count_documents=count_documents,
        about=about,
    )


def sequences(
    reviews: Reviews,
    *,
    vocabulary: Provenance = "public",
    size: int = 10_000,
    length: int = 290,
    public_share: float = 0.01,
    public_seed: int = 0,
    public: WordRows | None = None,
) -> Dataset:
    """Return reviews as padded ids in Keras' convention, int32 (n, length), for an LSTM.

    Args and Raises: as `bag_of_words`. `vocabulary="private"` is how the paper ran.
    """

    def features(rows: WordRows, words: RankedWords) -> np.ndarray:
        return bags.padded_ids(rows, words, length=length, size=size)

    return _make_dataset(
        reviews,
        (public_share, public_seed, public),
        features,
        vocabulary=vocabulary,
        num_words=size - bags.RESERVED,
        about={"weights": "sequences", "size": size, "length": length},
    )


def _make_dataset(
    reviews: Reviews,
    chosen: tuple[float, int, WordRows | None],
    features: Callable[[WordRows, RankedWords], Inputs],
    *,
    vocabulary: Provenance,
    num_words: int,
    about: Mapping[str, Any],
    idf: Provenance | None = None,
    count_documents: Callable[[WordRows, RankedWords], None] = lambda rows, words: None,
) -> Dataset:
    """Return reviews as a data set.

    Args:
        reviews: The rows.
        chosen: Share and seed of the public part, and public rows from elsewhere instead.
        features: From rows to inputs.
        vocabulary: Whose rows choose the words.
        num_words: How many words.
        about: The features, for the provenance.
        idf: Whose rows documents are counted over; None for no counts.
        count_documents: Takes those rows, before any inputs are made.
    """
    share, seed, public = chosen
    private, public_part = reviews.train, None
    if public is not None:
        public_part = {"from": "another data set, nothing removed", "size": len(public)}
    elif share != 0:
        kept, held = split_public(len(private), share, seed)
        private, public = private.take(kept), private.take(held)
        public_part = describe_public_part(len(held), share, seed)

    def rows_of(source: Provenance, what: str) -> WordRows:
        if source not in ("private", "public"):
            raise ValueError(f"{what} from {source!r}: choose private or public")
        rows = private if source == "private" else public
        if rows is None:
            raise ValueError(
                f"a public {what} needs public reviews: give a public_share such as 0.01, public "
                "rows, or ask for a private one"
            )
        return rows

    words = bags.most_frequent(rows_of(vocabulary, "vocabulary"), num_words, source=vocabulary)
    if idf is not None:
        count_documents(rows_of(idf, "document frequency"), words)
    decided = (("vocabulary", vocabulary), ("document frequencies", idf))
    return Dataset(
        name=reviews.name,
        x_train=features(private, words),
        y_train=private.labels,
        x_test=features(reviews.test, words),
        y_test=reviews.test.labels,
        provenance={
            **reviews.provenance,
            "features": {**about, "vocabulary": {"source": vocabulary, "words": len(words.words)}},
            "private_side_information": [what for what, source in decided if source == "private"],
            "public": public_part,
        },
        synthetic=reviews.synthetic,
        x_public=None if public is None else features(public, words),
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
    """Return the reviews as rows of words, tokenised once and then memory-mapped from the cache.

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


_GET_AMAZON = (
    "download a file of reviews by category (JSON lines with reviewText and overall, such as "
    "reviews_Movies_and_TV_5.json.gz, from https://jmcauley.ucsd.edu/data/amazon/), and name it or "
    "put it into a folder `amazon` of FEDPRIV_DATA"
)
_LONGEST_LINE = 1 << 22
_LABEL_OF_STARS = {1: 0, 2: 0, 4: 1, 5: 1}


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
    texts = read_amazon(_find_amazon(argument), per_label=per_label, progress=progress)
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
        label, text = _parse_amazon(line, f"{path}, line {number:,}")
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


def _parse_amazon(line: bytes, where: str) -> tuple[int | None, str]:
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
    return _LABEL_OF_STARS.get(int(stars)), text


def _find_amazon(argument: str | os.PathLike[str] | None) -> Path:
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
    raise ValueError(f"no Amazon reviews {where}; {_GET_AMAZON}")


_GENERATOR = 1  # counts up when the same seed gives other reviews


def synthetic_reviews(
    num_train: int = 2_000,
    num_test: int = 1_000,
    *,
    num_words: int = 2_000,
    mean_length: int = 60,
    num_telling: int = 40,
    telling_share: float = 0.08,
    truth: float = 0.8,
    seed: int = 0,
) -> Reviews:
    """Return synthetic labelled reviews; the same arguments give the same ones.

    Labels are drawn evenly. Lengths are geometric-like around `mean_length`; words are Zipf, except
    that a share of them is drawn from the telling words, of the review's own label with probability
    `truth` and of the other one else. Telling words are spread over the middle ranks, so a good
    model has to weigh words that are neither the most frequent nor the rarest.

    Args:
        num_train: Training reviews.
        num_test: Test reviews.
        num_words: Words there are.
        mean_length: Mean number of words of a review.
        num_telling: How many words carry the label, half of them each label's.
        telling_share: Share of a review's words drawn from them.
        truth: How often a telling word tells the truth.
        seed: Of the generator.

    Raises:
        ValueError: If a number is out of range.
    """
    if min(num_train, num_test, mean_length) < 1:
        raise ValueError("synthetic reviews need at least one training review, test review, word")
    if not 2 <= num_telling <= num_words // 4:
        raise ValueError(
            f"{num_telling} telling words of {num_words:,}: give 2 up to a quarter of all words"
        )
    if not (0.0 <= telling_share <= 1.0 and 0.0 <= truth <= 1.0):
        raise ValueError("telling_share and truth are probabilities; give them between 0 and 1")
    rng = Key.simulation(seed).fold("synthetic reviews").fold(_GENERATOR).generator()
    weights = 1.0 / np.arange(1, num_words + 1)
    cumulative = np.cumsum(weights / weights.sum())
    cumulative[-1] = 1.0
    telling = rng.permutation(np.arange(num_words // 4, num_words // 2))[: num_telling // 2 * 2]
    by_label = telling.reshape(2, -1)
    names = tuple(f"word{number}" for number in range(num_words))

    def rows(n: int) -> WordRows:
        labels = rng.integers(0, 2, n)
        lengths = 1 + rng.poisson(rng.gamma(4.0, (mean_length - 1) / 4.0, n))
        total = int(lengths.sum())
        ids = np.searchsorted(cumulative, rng.random(total), side="right").astype(np.int32)
        own = np.repeat(labels, lengths)
        tells = np.flatnonzero(rng.random(total) < telling_share)
        side = np.where(rng.random(len(tells)) < truth, own[tells], 1 - own[tells])
        ids[tells] = by_label[side, rng.integers(0, by_label.shape[1], len(tells))]
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
