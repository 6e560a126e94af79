"""The definition of Philox4x32-10 in NumPy."""

import numpy as np
import pytest


def _counted(key, counter, num):
    """The bits of `num` counters in a row, first words first: uint32 `(4 num,)`."""
    low = np.uint64(2**32 - 1)
    a = (np.uint64(counter[0]) + np.arange(num, dtype=np.uint64)) & low
    b, c, d = (np.full(num, word, np.uint64) for word in counter[1:])
    left, right = int(key[0]), int(key[1])
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, c = (second >> np.uint64(32)) ^ b ^ np.uint64(left), (first >> np.uint64(32)) ^ d
        c = c ^ np.uint64(right)
        b, d = second & low, first & low
        left, right = (left + 0x9E3779B9) % 2**32, (right + 0xBB67AE85) % 2**32
    return np.concatenate([a, b, c, d]).astype(np.uint32)


@pytest.fixture(scope="session")
def counted():
    return _counted
