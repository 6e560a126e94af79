"""Gaussians from bits: against a float64 oracle, in distribution, and on any number of threads.

Keys are fixed, so nothing flakes; each statistical test says its sample size and how often a fresh
key would fail it.
"""

import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from scipy import stats

from fedpriv.kernels.normals import box_muller, philox
from fedpriv.rng import Key
from tests.harness.combinations import each_once

BLOCK = 1 << 16
ALPHA = 1e-6
MODES = ("simulation", "secure")
TOP = 2**32 - 1
HALF_ROOT = math.isqrt(2**63)  # where the logarithm is taken another way
RADII = [0, 1, 2, 3, 255, 256, 2**16, 2**24, 2**30, HALF_ROOT - 1, HALF_ROOT, HALF_ROOT + 1]
RADII += [2**31 - 1, 2**31, 2**31 + 1, TOP - 2**24, TOP - 256, TOP - 2, TOP - 1, TOP]
RADII += [2**k + off for k in range(2, 32) for off in (-1, 0, 1)]
# Eighths of a turn are where sine and cosine change places or sign.
TURNS = [(eighth * 2**29 + off) % 2**32 for eighth in range(8) for off in range(-3, 4)]
TURNS += [2**k for k in range(3, 29)]


def transformed(bits):
    out = np.full(bits.size, np.nan, np.float32)
    box_muller(np.ascontiguousarray(bits, np.uint32), np.float32(1.0), out)
    return out


def oracle(bits):
    """The definition, in float64: u = (bits + 1/2) / 2^32 for radius and angle alike."""
    radius, angle = (bits.astype(np.float64).reshape(2, -1) + 0.5) * 2.0**-32
    length = np.sqrt(-2.0 * np.where(radius > 0.5, np.log1p(radius - 1.0), np.log(radius)))
    turn = 2.0 * np.pi * angle
    return np.concatenate([length * np.cos(turn), length * np.sin(turn)])


def is_normal(sample):
    """Kolmogorov-Smirnov against N(0, 1), with a false alarm for one key in 1e6."""
    heights = stats.norm.cdf(np.sort(sample.astype(np.float64)))
    steps = np.arange(sample.size + 1) / sample.size
    distance = max((steps[1:] - heights).max(), (heights - steps[:-1]).max())
    return distance < math.sqrt(math.log(2 / ALPHA) / (2 * sample.size))


def fixed(mode, number=0):
    return Key.from_bytes(Key.simulation(number).to_bytes(), mode).fold("noise")


@pytest.fixture(scope="module")
def sample():
    """2^24 Gaussians of one key: 256 blocks."""
    return fixed("simulation").normal((256 * BLOCK,), np.float32)


def counted(key, counter, num):
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
def test_known_answers(counter, key, answer):
    out = np.empty(4, np.uint32)
    philox(words(key), words(counter), out)
    np.testing.assert_array_equal(out, words(answer))
    np.testing.assert_array_equal(counted(words(key), words(counter), 1), words(answer))


@pytest.mark.parametrize("num", [1, 2, 3, 7, 8, 16, 31, 1000])
def test_many_counters_are_that_many_single_ones(num):
    rng = np.random.default_rng(num)
    key, counter = (rng.integers(0, 2**32, n, dtype=np.uint32) for n in (2, 4))
    counter[0] = 2**32 - 1 - num // 2  # the first word passes zero and carries nothing
    out = np.empty(4 * num, np.uint32)
    philox(key, counter, out)
    np.testing.assert_array_equal(out, counted(key, counter, num))


class TestTransform:
    @pytest.mark.parametrize("seed", range(4))
    def test_random_bits_equal_the_oracle(self, seed):
        bits = np.random.default_rng(seed).integers(0, 2**32, 1 << 18, dtype=np.uint32)
        np.testing.assert_allclose(transformed(bits), oracle(bits), rtol=0, atol=1e-6)

    def test_extreme_bits_equal_the_oracle(self):
        radii, turns = np.meshgrid(RADII, TURNS)
        bits = np.concatenate([radii.reshape(-1), turns.reshape(-1)]).astype(np.uint32)
        found, expected = transformed(bits), oracle(bits)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        # Where uniforms are near 1 the radii are tiny, and still right to a part in a million.
        length, true = (np.hypot(*x.reshape(2, -1).astype(np.float64)) for x in (found, expected))
        np.testing.assert_allclose(length, true, rtol=1e-6)
        assert true.min() < 2e-5 and 6.76 < true.max() < 6.77
        assert np.isfinite(found).all() and (found != 0).all()
        assert len(np.unique(np.sign(found.reshape(2, -1)), axis=1).T) == 4


class TestDistribution:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("mode", "dtype"), each_once(MODES, {"float32": np.float32, "float64": np.float64})
    )
    def test_shape(self, mode, dtype):
        """n = 1e6: 2/3 and 3/2 of the stddev are rejected, and three per cent more or less."""
        drawn = fixed(mode, 1).normal((1_000_000,), dtype).astype(np.float64)
        assert is_normal(drawn)
        for wrong in (2 / 3, 3 / 2, 1.03, 0.97):
            assert not is_normal(drawn * wrong)
        assert not is_normal(np.abs(drawn)) and not is_normal(drawn + 0.01)
        assert (drawn != 0).all() and np.isfinite(drawn).all()

    @pytest.mark.slow
    @pytest.mark.parametrize("bound", [2.0, 3.0, 4.0, 5.0])
    def test_tails(self, sample, bound):
        """n = 2^24: counts beyond ± a bound are binomial; a side fails once in 1e6 keys.

        Beyond 5 there should be 4.8 on either side, so that none at all would pass; both sides
        together are held to α = 1e-3, under which none would not.
        """
        share = stats.norm.sf(bound)
        for found in ((sample > bound).sum(), (sample < -bound).sum()):
            low, high = stats.binom.interval(1 - ALPHA, sample.size, share)
            assert low <= found <= high
        both = stats.binom.interval(1 - 1e-3, sample.size, 2 * share)
        assert both[0] <= (np.abs(sample) > bound).sum() <= both[1]
        assert both[0] > 0


SIZES = [0, 1, 2, 3, 1001, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 5 * BLOCK + 17]


class TestStream:
    @pytest.mark.slow
    def test_threads_change_nothing(self, subtests):
        for mode in MODES:
            for size in SIZES:
                with subtests.test(mode=mode, size=size):
                    drawn = [
                        fixed(mode).normal((size,), np.float32, threads=t)
                        for t in (1, 2, 4, 7, None)
                    ]
                    assert all(item.tobytes() == drawn[0].tobytes() for item in drawn)
                    assert drawn[0].shape == (size,) and np.isfinite(drawn[0]).all()
                    assert (drawn[0] != 0).all()

    @pytest.mark.parametrize("size", [1, 2, 7, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
    def test_simulation_is_philox_by_blocks(self, size):
        """Key and upper half of the counter: the first 16 bytes; its second word: the block."""
        key = fixed("simulation", 3)
        words = np.frombuffer(key.to_bytes(), "<u4")
        expected = []
        for number, start in enumerate(range(0, size, BLOCK)):
            length = min(BLOCK, size - start)
            bits = counted(words[:2], [0, number, words[2], words[3]], -(-length // 4))
            expected.append(oracle(bits)[:length])
        found = key.normal((size,), np.float32)
        np.testing.assert_allclose(found, np.concatenate(expected), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("size", [1, 2, 7, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
    def test_secure_is_chacha20_by_blocks(self, size):
        """Nonce: the block's number in its second half; 53 bits a uniform."""
        key = fixed("secure", 3)
        expected = []
        for number, start in enumerate(range(0, size, BLOCK)):
            length = min(BLOCK, size - start)
            half = (length + 1) // 2
            nonce = bytes(8) + number.to_bytes(8, "little")
            stream = Cipher(ChaCha20(key.to_bytes(), nonce), mode=None).encryptor()
            words = np.frombuffer(stream.update(bytes(16 * half)), np.uint64)
            radius, angle = (((words >> np.uint64(11)) + 0.5) * 2.0**-53).reshape(2, -1)
            length_of = np.sqrt(-2 * np.log(radius))
            pair = [length_of * np.cos(2 * np.pi * angle), length_of * np.sin(2 * np.pi * angle)]
            expected.append(np.concatenate(pair)[:length])
        found = key.normal((size,), np.float64)
        np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-12, atol=1e-15)
