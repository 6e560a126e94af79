"""Side information: public multipliers 1/A that say how much each word's row is worth.

AdaDPS divides gradients by A before they are bounded. Here A comes from what is known of the words
without looking at a rostered user: their ranks, frequencies or TF-IDF among public users. A
`SideInformation` remembers where it came from; `source="private"` marks one whose use the reported
ε does not cover.

Reference: Li et al., "Private Adaptive Optimization with Side Information" (2022), Section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInformation:
    """A public multiplier and its provenance.

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
    counts: np.ndarray, num_documents: int, *, cap: float = 1e4, power: float = 1.0
) -> np.ndarray:
    """Return min(cap, (max f / f)^power) for word frequencies f, float32 `(num_words,)`.

    Args:
        counts: Occurrences of each word in the public documents, `(num_words,)`.
        num_documents: How many public documents there are.
        cap: Largest multiplier.
        power: 1 divides by the frequency (the paper's A); 1/2 by its root, which is what RMSProp's
            second moment would be for sparse gradients of equal size.
    """
    if num_documents < 1:
        raise ValueError("token frequency needs public documents, and there are none; use 'rank'")
    frequency = (counts.astype(np.float64) + 0.1) / num_documents + 1e-10
    return np.minimum(cap, (frequency.max() / frequency) ** power).astype(np.float32)


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
    if num_documents < 1:
        raise ValueError("TF-IDF needs public documents, and there are none; use 'rank'")
    idf = np.log10(num_documents / np.maximum(num_containing.astype(np.float64), 0.1))
    weight = term_frequency * np.maximum(idf, 0.0)
    peak = weight.max(initial=0.0)
    if peak <= 0:
        raise ValueError("every public TF-IDF is zero; use 'rank'")
    return np.maximum(weight / peak, floor).astype(np.float32)
