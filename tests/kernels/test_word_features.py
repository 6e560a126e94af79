"""Values of words and rows of pairs, against plain Python and small cases by hand."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.checkpoints.vocabulary import WordFeatures


def mixed(first, second):
    """SplitMix64's finaliser in whole numbers of Python."""
    x = ((first << 32 | second) + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def plainly(made, words, counts):
    """One example's rows and values by definition."""
    weights = made.weights
    each = zip(words, counts, strict=True)
    values = [math.sqrt(c) * weights[w] if len(weights) else c for w, c in each]
    found = dict(zip(words, map(float, values), strict=True))
    rarest = sorted(zip(words, values, strict=True))[max(len(words) - made.most_paired, 0) :]
    for (a, left), (b, right) in combinations(rarest if made.num_pairs else [], 2):
        row = made.num_words + mixed(a, b) % made.num_pairs
        found[row] = found.get(row, 0.0) + made.pair_weight * math.sqrt(left * right)
    return found


def asked(made, *examples):
    """Examples as dictionaries from words to counts; what is made of each, likewise."""
    indptr = np.cumsum([0, *map(len, examples)])
    words = np.array([w for e in examples for w in e], np.int32)
    counts = np.array([c for e in examples for c in e.values()], np.uint8)
    starts, rows, values = made.build(indptr, words, counts)
    assert (starts.dtype, rows.dtype, values.dtype) == (np.int64, np.int32, np.float32)
    found = []
    for at, to in pairwise(starts):
        assert (np.diff(rows[at:to]) > 0).all()
        found.append(dict(zip(rows[at:to].tolist(), values[at:to].tolist(), strict=True)))
    return found


def test_the_mix_is_a_known_one():
    # The first numbers of SplitMix64 from a state of 0, as its authors' code gives them.
    assert mixed(0, 0) == 0xE220A8397B1DCDAF


@given(
    seed=st.integers(0, 9999),
    number=st.integers(0, 6),
    num_pairs=st.sampled_from([0, 1, 7, 500]),
    most_paired=st.integers(0, 12),
    weighted=st.booleans(),
)
def test_any_examples_are_as_defined(seed, number, num_pairs, most_paired, weighted):
    rng = np.random.default_rng(seed)
    made = WordFeatures(
        num_words=40,
        weights=rng.uniform(0, 3, 40 * weighted).astype(np.float32),
        num_pairs=num_pairs,
        pair_weight=0.3,
        most_paired=most_paired,
    )
    examples = []
    for _ in range(number):
        words = np.sort(rng.choice(40, rng.integers(0, 14), replace=False)).tolist()
        examples.append(dict(zip(words, rng.integers(1, 9, len(words)).tolist(), strict=True)))
    found = asked(made, *examples)
    for example, one in zip(examples, found, strict=True):
        assert one == pytest.approx(plainly(made, [*example], [*example.values()]), rel=1e-5)
        assert asked(made, example) == [one]  # whoever stands beside it
