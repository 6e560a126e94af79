"""Side information for AdaDPS: public multipliers 1/A of words and features.

AdaDPS divides gradients by A before they are bounded. Here A comes from what is known of words and
features beforehand: their ranks, frequencies, magnitudes or TF-IDF. Counted among public users or
rows nothing is learnt of a private one; the paper counts some of it on the private training set and
yet calls it known. A `SideInformation` remembers which; `source="private"` marks one whose use the
reported ε does not cover.

Reference: Li et al., "Private Adaptive Optimization with Side Information" (2022), Section 4,
Option 2, and Section 6.1.2. The text gives no formulas: those called the reference code's are of
its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedpriv.ranges import positive_float


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInformation:
    """A multiplier and its provenance.

    Attributes:
        multiplier: For some tensor names a positive float32 array that broadcasts against the
            tensor along its first axis; tensors without one are multiplied by 1.
        source: "public" (from users outside the roster, or fixed beforehand) or "private".
        description: One sentence for the privacy statement.
    """

    multiplier: Mapping[str, np.ndarray] = field(repr=False)
    source: Literal["public", "private"]
    description: str

    def __post_init__(self) -> None:
        for name, array in self.multiplier.items():
            if not (np.isfinite(array).all() and (array > 0).all()):
                raise ValueError(
                    f"the multiplier of {name!r} must be positive and finite everywhere; "
                    "raise the floor under A or cap the multiplier"
                )

    def inverse(self) -> dict[str, np.ndarray]:
        """Return A, the inverse of the multiplier."""
        return {name: (1.0 / array).astype(np.float32) for name, array in self.multiplier.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicWords:
    """Public word counts of a model's input words, in the order of their rows.

    Attributes:
        counts: Occurrences of each word, `(num_words,)`.
        sentences: Sentences in which each occurs, `(num_words,)`.
        num_sentences: How many sentences were counted.
        source: "public", or "private" where rostered users were counted too.
        where: Who was counted, for the privacy statement.
        num_pairs: Rows behind the words' that pairs of words share; each is taken to be as rare as
            the rarest word.
    """

    counts: np.ndarray = field(repr=False)
    sentences: np.ndarray = field(repr=False)
    num_sentences: int
    source: Literal["public", "private"]
    where: str
    num_pairs: int = 0


def rank_multiplier(num_words: int, *, top: int = 100, gain: float = 200.0) -> np.ndarray:
    """Return 1 for the `top` most frequent words and `gain` for the rest, float32 `(num_words,)`.

    The words must be in order of frequency. The rule of the AdaDPS reference code for federated
    StackOverflow.
    """
    if not 0 <= top <= num_words:
        raise ValueError(f"top {top} must lie between 0 and the {num_words} words there are")
    multiplier = np.full(num_words, gain, np.float32)
    multiplier[:top] = 1.0
    return multiplier


def frequency_multiplier(
    counts: np.ndarray,
    num_documents: int,
    *,
    cap: float = 1e4,
    power: float = 1.0,
    division: float = 1.0,
) -> np.ndarray:
    """Return min(cap, (max f / f)^power) / division for frequencies f, float32 `(num_words,)`.

    f = (count + 0.1) / documents + 1e-10, as in the reference code.

    Args:
        counts: Occurrences of each word in the documents, `(num_words,)`.
        num_documents: How many documents there are.
        cap: Largest ratio.
        power: 1 divides by the frequency (the paper's A, "proportional to" it); 1/2 by its root,
            which is what RMSProp's second moment would be for sparse gradients of equal size.
        division: Divides all multipliers.

    Raises:
        ValueError: If there are no documents, or the cap or division is not positive.
    """
    if num_documents < 1:
        raise ValueError("token frequency needs documents, and there are none; use 'rank'")
    frequency = (counts.astype(np.float64) + 0.1) / num_documents + 1e-10
    return _rarity(frequency, cap, power, division)


def magnitude_multiplier(
    magnitude: np.ndarray, *, cap: float = 1e4, division: float = 1.0
) -> np.ndarray:
    """Return min(cap, max a / a_j) / division for magnitudes a, float32 `(num_features,)`.

    For a linear model the gradient of weight j is proportional to `x_ij`, so the mean of
    `abs(x_ij)` estimates its scale. A feature that is 0 in every row gets the cap.

    Args:
        magnitude: Mean of `abs(x_ij)` over rows i, `(num_features,)`.
        cap: Largest ratio.
        division: Divides all multipliers.

    Raises:
        ValueError: If no feature is ever set, or the cap or division is not positive.
    """
    if not magnitude.any():
        raise ValueError("every feature is 0 in every row; there is no magnitude to learn from")
    return _rarity(magnitude, cap, 1.0, division)


def tf_idf_multiplier(
    term_frequency: np.ndarray,
    num_containing: np.ndarray,
    num_documents: int,
    *,
    floor: float = 1e-3,
) -> np.ndarray:
    """Return each word's total TF-IDF, relative to the largest and at least `floor`, float32.

    Args:
        term_frequency: Occurrences of each word in the public documents; a common scale (the
            reference divides by one padded length) cancels.
        num_containing: Number of public documents that contain the word.
        num_documents: How many public documents there are.
        floor: Smallest multiplier, so that a word never seen in public can still be learnt.
    """
    weight = term_frequency * np.maximum(_idf(num_containing, num_documents), 0.0)
    peak = weight.max(initial=0.0)
    if peak <= 0:
        raise ValueError("every public TF-IDF is zero; use 'rank'")
    return np.maximum(weight / peak, floor).astype(np.float32)


def tf_idf_mass_multiplier(
    term_frequency: np.ndarray,
    num_containing: np.ndarray,
    num_documents: int,
    *,
    times: float = 1.0,
    reserved: int = 0,
) -> np.ndarray:
    """Return 10 (sum of TF-IDF + 1e-10), the reserved ids' forced to 0.01, float32.

    As the reference code has it, where A is inversely proportional to TF-IDF (Section 6.1.2;
    Section 4 says proportional): this gives *much* weight to tokens of large TF-IDF mass, unlike
    `frequency_multiplier`.

    Args:
        term_frequency: Each token's occurrences over all rows, divided by the length of one.
        num_containing: Document frequencies, of as many tokens.
        num_documents: How many documents those were counted over.
        times: The sum is multiplied by it: the formula grows with the number of rows, so 250
            public rows need 100 here to give multipliers as large as those of 25,000.
        reserved: How many first ids are no words; 0 where columns are words.

    Raises:
        ValueError: If there are no documents, or the frequencies do not fit.
    """
    if num_containing.shape != term_frequency.shape:
        raise ValueError(
            f"{len(term_frequency):,} features but document frequencies {num_containing.shape}"
        )
    if num_containing.max() > num_documents or num_containing.min() < 0:
        raise ValueError(f"a document frequency is outside 0 to {num_documents:,} documents")
    mass = term_frequency * _idf(num_containing, num_documents) * times
    multiplier = (10.0 * (mass + 1e-10)).astype(np.float32)
    # A token of every document has an idf, and so a mass, of 0: its multiplier is tiny, not zero.
    multiplier[:reserved] = 0.01
    return multiplier


def _rarity(scale: np.ndarray, cap: float, power: float, division: float) -> np.ndarray:
    """Return how much rarer than the commonest each is; what never occurs is as rare as may be."""
    cap, division = positive_float("cap", cap), positive_float("division", division)
    with np.errstate(divide="ignore"):
        ratio = (scale.max() / scale) ** power
    return (np.minimum(cap, ratio) / division).astype(np.float32)


def _idf(num_containing: np.ndarray, num_documents: int) -> np.ndarray:
    """Return log10(documents / df), with 0.1 for a df of 0."""
    if num_documents < 1:
        raise ValueError("TF-IDF needs documents, and there are none; use 'rank'")
    return np.log10(num_documents / np.maximum(num_containing.astype(np.float64), 0.1))
