"""Gaussians rounded to whole numbers: the very numbers that real arithmetic gives.

Keys are fixed, so nothing here flakes; each statistical test says its sample size and the
false-alarm rate for a fresh key.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from fedpriv.kernels.rounded_normals import UNDECIDED, rounded_normals
from fedpriv.mechanisms import rounded_gaussian as sampler
from fedpriv.mechanisms.rounded_gaussian import grid_noise, rounded_gaussian
from fedpriv.rng import Key
from tests.harness.refusals import refuses

ALPHA = 1e-6
SCALE = 2.0**26  # σ = 4 of a bound of 2^24 steps
REAL = mpmath.mp.clone()
REAL.prec = 500


def key(number=0):
    return Key.from_bytes(Key.simulation(number).to_bytes(), "secure").fold("rounded")


def real(radius, angle, num_bits, scale):
    """Return the two Gaussians of a pair of uniforms of which so many bits are given."""
    unit = REAL.mpf(2) ** -num_bits
    length = scale * REAL.sqrt(-2 * REAL.log((radius + REAL.mpf(0.5)) * unit))
    turn = 2 * REAL.pi * (angle + REAL.mpf(0.5)) * unit
    return length * REAL.cos(turn), length * REAL.sin(turn)


def nearest(value):
    return int(REAL.floor(value + REAL.mpf(0.5)))


def longer(own, number, pair, radius, angle):
    """Return both uniforms with the 512 bits that come after their first 64."""
    more = own.fold("further bits").fold(number).fold(pair)
    for stream in (0, 1):
        words = more.words(8, stream).tolist()
        for first, second in zip(words[:4], words[4:], strict=True):
            radius, angle = radius << 64 | first, angle << 64 | second
    return radius, angle


def equal_at_many_bits(size, scale):
    """Return how many of so many numbers the first 64 bits left undecided; all are checked."""
    own = key()
    found = rounded_gaussian(own, (size,), scale, threads=1)
    undecided = 0
    for number, first in enumerate(range(0, size, 1 << 16)):
        block = found[first : first + (1 << 16)]
        bits = own.words(block.size, number)
        early = np.empty(block.size, np.int64)
        rounded_normals(bits, scale, early)
        undecided += int(np.count_nonzero(early == UNDECIDED))
        half = block.size // 2
        for pair in range(half):
            uniforms = longer(own, number, pair, int(bits[pair]), int(bits[half + pair]))
            expected = [nearest(value) for value in real(*uniforms, 64 + 512, scale)]
            assert [int(block[pair]), int(block[half + pair])] == expected, (number, pair)
    return undecided


@pytest.mark.parametrize(
    ("size", "scale"),
    [
        *((2_000, scale) for scale in (0.3, 1.0, SCALE, 3.0 * 2.0**33)),
        pytest.param(100_000, SCALE, marks=pytest.mark.slow),
    ],
)
def test_equals_real_arithmetic_to_500_bits(size, scale):
    equal_at_many_bits(size, scale)


def test_what_64_bits_leave_open_is_decided_by_more():
    """At the largest scale the error of 64 bits is a large part of a whole number."""
    assert equal_at_many_bits(2_000, sampler.LARGEST_SCALE) > 20


class _Given:
    """A key whose further words are known."""

    def __init__(self, bits):
        self.bits, self.read = bits, 0

    def words(self, count, stream):
        self.read += 1
        places = range(4 * stream, 4 * stream + 4)
        half = [[bits >> 64 * (15 - at) & 2**64 - 1 for at in places] for bits in self.bits]
        assert count == 8
        return np.array([*half[0], *half[1]], np.uint64)


def decided(radius, angle, more, scale, *, sine):
    """Return what more bits of a pair decide, what is right, and how often they are read."""
    further = _Given(more)
    found = sampler._decide_by_more_bits(further, radius, angle, scale, sine=sine)
    uniforms = (radius << 1024) + more[0], (angle << 1024) + more[1]
    with REAL.workprec(64 + 1024 + 100):
        expected = nearest(real(*uniforms, 64 + 1024, scale)[sine])
    return found, expected, further.read


@pytest.mark.parametrize("sine", [False, True])
@pytest.mark.parametrize(("digits", "reads"), [(40, 0), (150, 1), (300, 1), (310, 1), (560, 2)])
@pytest.mark.parametrize("side", [1, -1])
def test_next_to_a_half_it_reads_on_until_it_knows(sine, digits, reads, side):
    """A pair whose number lies 2^-digits from a half, on either side: by 64 bits it is a half."""
    num_bits, mask = 64 + 16 * 64, (1 << 16 * 64) - 1
    with REAL.workprec(num_bits + 100):
        radius = 0x5A5A5A5A5A5A5A5A << 16 * 64 | 12345
        unit = REAL.mpf(2) ** -num_bits
        length = SCALE * REAL.sqrt(-2 * REAL.log((radius + REAL.mpf(0.5)) * unit))
        target = REAL.mpf(10**7) + REAL.mpf(0.5) + side * REAL.mpf(2) ** -digits
        turn = (REAL.asin if sine else REAL.acos)(target / length) / (2 * REAL.pi)
        angle = int(REAL.floor(turn / unit))
    first = radius >> 16 * 64, angle >> 16 * 64
    found, expected, read = decided(*first, (radius & mask, angle & mask), SCALE, sine=sine)
    assert found == expected == (10**7 + 1 if side > 0 else 10**7)
    assert max(reads, 1) <= read <= reads + 1
    early = np.empty(2, np.int64)
    rounded_normals(np.array(first, np.uint64), SCALE, early)
    assert early[int(sine)] == UNDECIDED


class _Tail:
    """A key of which some radii begin with 64 zeros; its further words are its own."""

    PAIRS = (0, 1, 7, 8)

    def __init__(self, own):
        self.own, self.fold = own, own.fold

    def words(self, count, stream):
        bits = self.own.words(count, stream).copy()
        bits[list(self.PAIRS)] = 0
        bits[[count // 2 + pair for pair in self.PAIRS]] = 2**60  # a sixteenth of a turn
        return bits


def test_every_undecided_place_has_further_bits_of_its_own():
    """Two blocks, four pairs each whose first bits are the same: what they become is not.

    Both numbers of a pair are of the same further bits, as Box and Muller want it.
    """
    size = (1 << 16) + 64
    own, scale = key(5), sampler.LARGEST_SCALE
    found = rounded_gaussian(_Tail(own), (size,), scale, threads=1)
    seen = []
    for number, (first, half) in enumerate(((0, 1 << 15), (1 << 16, 32))):
        for pair in _Tail.PAIRS:
            uniforms = longer(own, number, pair, 0, 2**60)
            expected = [nearest(value) for value in real(*uniforms, 64 + 512, scale)]
            assert [int(found[first + pair]), int(found[first + half + pair])] == expected
            seen.append(expected[0])
    assert len(set(seen)) == 8


def test_without_the_check_some_numbers_are_wrong():
    """The power of the tests above: rounding in double precision alone errs."""
    scale, own = sampler.LARGEST_SCALE, key()
    size = 1 << 16
    uniform = (own.words(size, 0).astype(np.float64) + 0.5) * 2.0**-64
    radius, angle = np.sqrt(-2 * np.log(uniform[: size // 2])), uniform[size // 2 :]
    plain = np.rint(scale * radius * np.cos(2 * np.pi * angle)).astype(np.int64)
    exact = rounded_gaussian(own, (size,), scale, threads=1)[: size // 2]
    assert 0 < np.count_nonzero(plain != exact) < 1_000


def test_extreme_bits_are_never_decided_early():
    """The first and last intervals of the radius are as wide as the tail."""
    top = 2**64 - 1
    for radius in (0, 1, 2**11 - 1, top, top - 2**11 + 1):
        early = np.empty(2, np.int64)
        rounded_normals(np.array([radius, 2**63 + 12345], np.uint64), SCALE, early)
        assert (early == UNDECIDED).all()
        more = 7 << 960  # in the first of 16 words
        found, expected, _ = decided(radius, 2**63 + 12345, (more, more), SCALE, sine=False)
        assert found == expected


@pytest.mark.parametrize("sine", [False, True])
@pytest.mark.parametrize("radius", [0, 2**64 - 1])
def test_the_last_bits_of_a_radius_count_where_it_is_next_to_zero_or_one(radius, sine):
    """At the largest scale the first 64 bits of such a radius leave hundreds of whole numbers."""
    further = 0xABCDEF0123456789 << 960
    found, expected, read = decided(radius, 2**61, (further, 0), sampler.LARGEST_SCALE, sine=sine)
    assert found == expected and read == 1


@pytest.mark.parametrize("further", [0, 1])
def test_unread_bits_of_a_small_radius_are_not_taken_for_decided(further):
    """The ends of its interval lie on two sides of a half: u = 2^-18, where 1 / w is 2^-46."""
    radius, bits = 2**46, (2**1024 - 1) * further
    middle = real(radius, 0, 64, 1.0)[0]
    scale = float((REAL.floor(middle * 2**40) + REAL.mpf(0.5)) / middle)
    ends = [nearest(real((radius << 1024) + end, 0, 1088, scale)[0]) for end in (0, 2**1024 - 1)]
    assert ends[0] == ends[1] + 1
    found, expected, _ = decided(radius, 0, (bits, 0), scale, sine=False)
    assert found == expected == ends[further]


def test_where_all_bits_run_out_it_ends():
    more = _Given((0, 0))
    sampler._decide_by_more_bits(more, 0, 2**61, 16.0, sine=False)
    assert more.read == 4  # 64 bits and four times 256 more


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_and_any_size(threads):
    for shape in ((), (0,), (1,), (3, 5), ((1 << 16) + 1,)):
        found = rounded_gaussian(key(), shape, SCALE, threads=threads)
        assert (found.shape, found.dtype) == (shape, np.int64)
        np.testing.assert_array_equal(found, rounded_gaussian(key(), shape, SCALE, threads=1))


@pytest.fixture(scope="module")
def drawn():
    return rounded_gaussian(key(7), (TestDistribution.N,), SCALE)


class TestDistribution:
    """One million numbers, α = 1e-6 each."""

    N = 1_000_000

    def test_variance_and_not_one_percent_off(self, drawn):
        squares = float(np.square(drawn / SCALE).sum())
        low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], self.N)
        assert low < squares < high
        for wrong in (0.99, 1.01):
            assert not low < squares * wrong**2 < high

    def test_shape(self, drawn):
        assert stats.kstest(drawn / SCALE, "norm").pvalue > ALPHA

    def test_neighbours_and_halves_are_unrelated(self, drawn):
        for lag in (1, 2, 1 << 15, 1 << 16):
            found = np.corrcoef(drawn[lag:], drawn[:-lag])[0, 1] * math.sqrt(self.N - lag)
            assert abs(found) < stats.norm.isf(ALPHA / 2)

    @pytest.mark.parametrize("power", range(1, 9))
    @pytest.mark.parametrize("beyond", [0.0, 2.0])
    def test_last_bits_are_uniform_far_out_too(self, drawn, power, beyond):
        chosen = drawn[np.abs(drawn) > beyond * SCALE]
        counts = np.bincount(chosen % 2**power, minlength=2**power)
        assert counts.size == 2**power
        assert stats.chisquare(counts).pvalue > ALPHA

    @pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
    def test_small_scales_have_the_probabilities_of_a_rounded_gaussian(self, scale):
        found = rounded_gaussian(key(3), (100_000,), scale)
        most = math.floor(3 * scale)  # and beyond it, both ways, together
        inside = np.arange(-most, most + 1)
        probability = stats.norm.cdf((inside + 0.5) / scale) - stats.norm.cdf(
            (inside - 0.5) / scale
        )
        counts = [np.count_nonzero(found == number) for number in inside]
        counts.append(found.size - sum(counts))
        expected = np.append(probability, 1 - probability.sum()) * found.size
        assert stats.chisquare(counts, expected).pvalue > ALPHA


class TestGridNoise:
    TEMPLATE = {"b": np.zeros(3), "w": np.zeros((4, 2))}  # noqa: RUF012 - never written

    def test_every_tensor_has_its_own_stream(self):
        noise = grid_noise(key(), self.TEMPLATE, stddev=4.0, granularity=2.0**-24)
        assert {n: t.shape for n, t in noise.items()} == {"b": (3,), "w": (4, 2)}
        assert len({int(x) for t in noise.values() for x in t.reshape(-1)}) == 11

    def test_a_standard_deviation_is_never_rounded_down(self, monkeypatch):
        seen = []
        monkeypatch.setattr(
            sampler, "rounded_gaussian", lambda key, shape, scale: seen.append(scale)
        )
        for stddev, granularity in ((1.0, 3.0), (0.1, 0.3 * 2.0**-24), (7e-3, 1e-9)):
            grid_noise(key(), {"w": np.zeros(1)}, stddev=stddev, granularity=granularity)
            exact = REAL.mpf(stddev) / REAL.mpf(granularity)
            assert exact <= seen[-1] <= exact * (1 + 1e-15)

    @pytest.mark.parametrize("stddev", [0.0, -1.0, math.nan, math.inf, 2.0**40])
    def test_what_no_grid_can_carry_is_refused(self, stddev):
        with refuses(ValueError, stddev, 1.0):
            grid_noise(key(), self.TEMPLATE, stddev=stddev, granularity=1.0)

    @pytest.mark.parametrize(
        "other", [np.random.default_rng(0), np.random.RandomState(0), 7, None, b"0" * 32]
    )
    def test_generators_and_seeds_are_refused_by_type(self, other):
        with refuses(TypeError, type(other).__name__):
            grid_noise(other, self.TEMPLATE, stddev=4.0, granularity=1.0)
