"""From labelled reviews to a `Dataset`: a bag of words, or sequences for a recurrent model.

Who is public is decided first, by position; then vocabulary and document frequencies are counted
over public rows, or, where asked (as the paper does), over private ones; the data set's provenance
names everything that private rows decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse

from fedpriv.data.features import bag_of_words as bags
from fedpriv.data.features.bag_of_words import Provenance, RankedWords
from fedpriv.data.features.dataset import Dataset, Inputs, held_out, split_public
from fedpriv.data.features.word_rows import WordRows

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Parts:
    """Training rows that are private, and public rows, with what to say about them."""

    private: WordRows
    public: WordRows | None
    about: dict[str, Any] | None

    def of(self, provenance: Provenance, what: str) -> WordRows:
        """Return the rows that may decide something."""
        if provenance not in ("private", "public"):
            raise ValueError(f"{what} from {provenance!r}: choose private or public")
        if provenance == "private":
            return self.private
        if self.public is None:
            raise ValueError(
                f"a public {what} needs public reviews: give a public_share such as 0.01, public "
                "rows, or ask for a private one"
            )
        return self.public


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
    parts = _parts(reviews, public_share, public_seed, public)
    padded = weights == "padded-counts"
    words = bags.most_frequent(
        parts.of(vocabulary, "vocabulary"),
        size - bags.RESERVED if padded else size,
        source=vocabulary,
    )
    uses_idf = weights.endswith("tf-idf")
    scale = np.ones(size, np.float32)
    if uses_idf:
        counted = parts.of(idf, "document frequency")
        frequency = bags.document_frequency(counted, words)
        scale[: len(frequency)] = bags.inverse_document_frequency(frequency, len(counted))

    def features(rows: WordRows) -> sparse.csr_matrix:
        if padded:
            x = bags.count_ids(bags.padded_ids(rows, words, length=length, size=size), size)
        else:
            x = bags.count_words(rows, words, size)
        if weights.startswith("binary"):
            x = bags.binary(x)
        if uses_idf:
            x = bags.scale_columns(x, scale)
        return bags.unit_rows(x) if unit_rows else x

    about = {"weights": weights, "unit_rows": unit_rows, "size": size}
    about |= {"length": length} if padded else {}
    about |= {"idf": idf} if uses_idf else {}
    return _dataset(reviews, parts, words, features, about, idf if uses_idf else None)


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
    parts = _parts(reviews, public_share, public_seed, public)
    words = bags.most_frequent(
        parts.of(vocabulary, "vocabulary"), size - bags.RESERVED, source=vocabulary
    )

    def features(rows: WordRows) -> np.ndarray:
        return bags.padded_ids(rows, words, length=length, size=size)

    about = {"weights": "sequences", "size": size, "length": length}
    return _dataset(reviews, parts, words, features, about, None)


def _parts(reviews: Reviews, share: float, seed: int, public: WordRows | None) -> _Parts:
    if public is not None:
        about = {"from": "another data set, nothing removed", "size": len(public)}
        return _Parts(private=reviews.train, public=public, about=about)
    if share == 0:
        return _Parts(private=reviews.train, public=None, about=None)
    private, chosen = split_public(len(reviews.train), share, seed)
    return _Parts(
        private=reviews.train.take(private),
        public=reviews.train.take(chosen),
        about=held_out(len(chosen), share, seed),
    )


def _dataset(
    reviews: Reviews,
    parts: _Parts,
    words: RankedWords,
    features: Any,
    about: dict[str, Any],
    idf: Provenance | None,
) -> Dataset:
    decided = (("vocabulary", words.source), ("document frequencies", idf))
    x_public: Inputs | None = None if parts.public is None else features(parts.public)
    return Dataset(
        name=reviews.name,
        x_train=features(parts.private),
        y_train=parts.private.labels,
        x_test=features(reviews.test),
        y_test=reviews.test.labels,
        provenance={
            **reviews.provenance,
            "features": {
                **about,
                "vocabulary": {"source": words.source, "words": len(words.words)},
            },
            "private_side_information": [what for what, source in decided if source == "private"],
            "public": parts.about,
        },
        synthetic=reviews.synthetic,
        x_public=x_public,
        y_public=None if parts.public is None else parts.public.labels,
    )
