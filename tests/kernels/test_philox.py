"""Philox4x32-10 against its authors' known answers and against the definition."""

import numpy as np
import pytest

from fedpriv.kernels.normals import philox

# From the known-answer tests of Random123: counter, key, answer.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text):
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer, counted):
    out = np.empty(4, np.uint32)
    philox(words(key), words(counter), out)
    np.testing.assert_array_equal(out, words(answer))
    np.testing.assert_array_equal(counted(words(key), words(counter), 1), words(answer))


@pytest.mark.parametrize("num", [1, 2, 3, 7, 8, 16, 31, 1000])
def test_many_counters_are_that_many_single_ones(num, counted):
    rng = np.random.default_rng(num)
    key, counter = (rng.integers(0, 2**32, n, dtype=np.uint32) for n in (2, 4))
    counter[0] = 2**32 - 1 - num // 2  # the first word passes zero and carries nothing
    out = np.empty(4 * num, np.uint32)
    philox(key, counter, out)
    np.testing.assert_array_equal(out, counted(key, counter, num))
