"""Made-up reviews: Zipf words, a few of which carry the label. For tests, and runs without data."""

from __future__ import annotations

import numpy as np

from fedpriv.data.features.reviews import Reviews
from fedpriv.data.features.word_rows import WordRows
from fedpriv.data.files.arrays import offsets
from fedpriv.rng import Key

GENERATOR = 1  # counts up when the same seed gives other reviews


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
    rng = Key.simulation(seed).fold("synthetic reviews").fold(GENERATOR).generator()
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
            "source": f"made by a generator (version {GENERATOR}), no real text",
            "seed": seed,
            "words": num_words,
            "licence": "none needed",
        },
        synthetic=True,
    )
