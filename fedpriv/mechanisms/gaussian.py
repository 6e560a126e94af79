"""Gaussian noise on the sum of a round, in float32 or exactly rounded to the sum's grid.

Guarantees:
    * Every coordinate of every tensor gets an independent N(0, stddev²), in one draw over the
      whole tree: never per tensor, never per user.
    * The draw depends on the key alone, so it may be made at any time after the round was charged,
      in any number of threads, and is the same on every backend.

Noise in floating point has gaps: of a sum on a grid plus float32 Gaussians some values cannot occur
unless a certain user took part, and whoever sees one has learnt it for sure (Mironov 2012). A sum S
of whole numbers needs no such noise. For a real Gaussian Z,

    S + rint(Z) = rint(S + Z),

so an answer S + rint(Z) is a rounding of the Gaussian mechanism's own answer, post-processing, and
its ε is that of real arithmetic. What is left to prove is that rint(Z) is drawn exactly: uniforms
are read 64 bits at first, and where those and double precision do not tell to which whole number
the real Gaussian rounds (a few in a million), 256 more bits at a time until they do.

Guarantee: given uniform bits, K is distributed as rint(s N(0, 1)) but for a probability below
2^-256 a number, at which the bits run out. Over T answers of d numbers it adds at most
(1 + e^ε) T d 2^-256 to δ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from fedpriv import tree
from fedpriv.libraries import library
from fedpriv.mechanisms.privatizer import Cost, Memory, Privatizer
from fedpriv.rng import Key, check_key, fill_blocks
from fedpriv.sums import BITS, PartialSum
from fedpriv.tree import Params, Tree

# |S + K| < 2^53: their sum below 2^52, and noise below 2^45.
_MOST_ON_GRID = 2 ** (52 - BITS)


def check_stddev(stddev: float) -> None:
    """Refuse a standard deviation of which noise cannot be drawn; 0 draws zeros.

    Raises:
        ValueError: If it is negative, not finite, or out of float32's comfortable range, where it
            would round to no noise at all.
    """
    if not (math.isfinite(stddev) and stddev >= 0):
        raise ValueError(f"stddev {stddev!r} must be finite and not negative")
    if stddev != 0 and not 1e-30 < stddev < 1e30:
        raise ValueError(
            f"stddev {stddev!r} is beyond what float32 noise can hold; scale the bound so that "
            "noise_multiplier times sensitivity lies between 1e-30 and 1e30"
        )


def gaussian(key: Key, template: Tree, stddev: float) -> dict[str, np.ndarray]:
    """Return noise of the template's shapes.

    Args:
        key: A key used for nothing else, folded by round and attempt.
        template: Names and shapes.
        stddev: Absolute standard deviation, `noise_multiplier * l2_bound`; 0 gives zeros.

    Returns:
        Dense float32 tensors.

    Raises:
        ValueError: As `check_stddev`.
    """
    check_stddev(stddev)
    noise: dict[str, np.ndarray] = {}
    for name in sorted(template):
        shape = tuple(template[name].shape)
        if stddev == 0:
            noise[name] = np.zeros(shape, np.float32)
            continue
        noise[name] = key.fold(name).normal(shape, np.float32, stddev=stddev)
    return noise


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedMean:
    """A released mean update.

    Attributes:
        update: Dense float32 tensors.
        squared_norm: Their sum of squares, found on the way.
    """

    update: Params = field(repr=False)
    squared_norm: float


def noised_mean(total: PartialSum, noise: Params | GridNoise, share: float) -> NoisedMean:
    """Return (total + noise) * share, of float32 noise in the noise's own memory.

    Where the sum lies on a grid the noise is rounded to it first, so that what is added to the
    integers is an integer. Noise in floating point has gaps all the same, which betray sums; noise
    that was drawn on the grid has none.

    Args:
        total: The raw sum.
        noise: Tensors of its names and shapes: float32, which become the mean in place, or drawn
            on the sum's own grid.
        share: One over the denominator.

    Raises:
        ValueError: If the noise was drawn for another grid than the sum's.
    """
    if isinstance(noise, GridNoise):
        return _mean_on_grid(total, noise, share)
    squared = 0.0
    for name, tensor in total.total.items():
        dense = tree.to_dense_tensor(tensor)
        squared += _add_and_scale(dense, noise[name], total.granularity, share)
    return NoisedMean(update=noise, squared_norm=squared)


def _mean_on_grid(total: PartialSum, noise: GridNoise, share: float) -> NoisedMean:
    """Return float32((S + K) granularity share): of S + K, which is whole, and of nothing else."""
    from fedpriv.kernels.sums import release_on_grid

    if total.granularity != noise.granularity:
        raise ValueError(
            f"noise on a grid of {noise.granularity!r} cannot be added to a sum on a grid of "
            f"{total.granularity!r}; sum what the mechanism's own bound has bounded"
        )
    if total.num_users > _MOST_ON_GRID:
        raise ValueError(
            f"{total.num_users} users are more than {_MOST_ON_GRID}, whose sum and noise float64 "
            "holds as whole numbers; draw a smaller cohort"
        )
    update, squared = dict[str, np.ndarray](), 0.0
    for name, tensor in total.total.items():
        dense = tree.to_dense_tensor(tensor)
        mean = np.empty(dense.shape, np.float32)
        squared += release_on_grid(
            np.ascontiguousarray(dense).reshape(-1),
            noise.numbers[name].reshape(-1),
            noise.granularity * share,
            mean.reshape(-1),
        )
        update[name] = mean
    return NoisedMean(update=update, squared_norm=squared)


def _add_and_scale(
    total: np.ndarray, noise: np.ndarray, granularity: float | None, share: float
) -> float:
    """Turn the noise of one tensor into its released mean, and return its sum of squares."""
    from fedpriv.kernels.sums import release_real, release_whole

    flat = np.ascontiguousarray(total).reshape(-1)
    if granularity is None:
        return release_real(flat, noise.reshape(-1), share)
    return release_whole(flat, noise.reshape(-1), granularity, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Privatizer):
    """Gaussian noise of standard deviation `noise_multiplier * sensitivity`, new in every attempt.

    Attributes:
        noise_multiplier: σ.

    Guarantees:
        * Each answer is a Gaussian mechanism of noise multiplier σ (Dwork and Roth 2014, A.1), at
          the sensitivity that the mechanism was given: of real arithmetic where it was drawn on the
          sum's grid, and rounded; else as far as floating point is that.
    """

    noise_multiplier: float

    name = "gaussian"
    on_grid = True

    @property
    def cost(self) -> Cost:
        """A Gaussian mechanism of σ."""
        return Cost(kind="gaussian", value=self.noise_multiplier)

    def scaled(self, noise_multiplier: float) -> Gaussian:
        """Return noise of another multiplier."""
        return Gaussian(noise_multiplier=noise_multiplier)

    def draw(
        self, memory: Memory, *, template: Tree, sensitivity: float, key: Key
    ) -> tuple[Params, Memory]:
        """Return noise of the attempt's own key."""
        return gaussian(key, template, self.noise_multiplier * sensitivity), memory

    def draw_on_grid(
        self, memory: Memory, *, template: Tree, sensitivity: float, granularity: float, key: Key
    ) -> tuple[GridNoise, Memory]:
        """Return noise of the attempt's own key, exactly rounded to whole numbers."""
        stddev = self.noise_multiplier * sensitivity
        return grid_noise(key, template, stddev=stddev, granularity=granularity), memory

    def release(self, total: PartialSum, drawn: Params | GridNoise, share: float) -> NoisedMean:
        """Return the noised mean."""
        return noised_mean(total, drawn, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprotected(Privatizer):
    """No privacy: sums released as they are, or with noise that gives no guarantee.

    Attributes:
        stddev: Absolute standard deviation of noise that is added for comparison only, as to an
            ideal that looks at clean gradients besides; 0 adds none.

    Guarantees:
        * None: ε is infinite.
    """

    stddev: float = 0.0

    name = "none"

    @property
    def cost(self) -> Cost:
        """None: ε is infinite."""
        return Cost(kind="nonprivate")

    def draw(
        self, memory: Memory, *, template: Tree, sensitivity: float, key: Key
    ) -> tuple[Params, Memory]:
        """Return the noise, or zeros."""
        return gaussian(key, template, self.stddev), memory

    def release(self, total: PartialSum, drawn: Params, share: float) -> NoisedMean:
        """Return the mean."""
        return noised_mean(total, drawn, share)


LARGEST_SCALE = 2.0**40
"""Far beyond any use: from here on double precision decides too few of the numbers."""

_FIRST, _MORE, _MOST = 64, 256, 1088
_REAL = library("mpmath.ctx_mp").MPContext()
_ONE_AT_A_TIME = Lock()  # the context's precision is its own, and changed here


@dataclass(frozen=True, slots=True, kw_only=True)
class GridNoise:
    """Noise in whole multiples of a grid's spacing.

    Attributes:
        numbers: int64 tensors by name.
        granularity: The spacing.
    """

    numbers: Mapping[str, np.ndarray] = field(repr=False)
    granularity: float


def grid_noise(key: Key, template: Tree, *, stddev: float, granularity: float) -> GridNoise:
    """Return Gaussian noise on a grid, of the template's shapes.

    Args:
        key: Used for nothing else.
        template: Names and shapes.
        stddev: Absolute; over the granularity it is rounded up, never down.
        granularity: The grid's spacing.

    Raises:
        ValueError: If the standard deviation is not positive, or above 2^40 granularities.
        TypeError: If the key is a generator of numbers, and no `fedpriv.rng.Key`.
    """
    check_scale(stddev, granularity)
    scale = float(np.nextafter(stddev / granularity, np.inf))
    numbers: dict[str, np.ndarray] = {}
    for name in sorted(template):
        shape = tuple(template[name].shape)
        numbers[name] = rounded_gaussian(check_key(key).fold(name), shape, scale)
    return GridNoise(numbers=numbers, granularity=granularity)


def check_scale(stddev: float, granularity: float) -> None:
    """Refuse noise that this grid cannot carry.

    Raises:
        ValueError: If the standard deviation is not positive, or above 2^40 granularities.
    """
    if not 0.0 < stddev / granularity < LARGEST_SCALE:
        raise ValueError(
            f"stddev {stddev!r} is {stddev / granularity:.3g} steps of a grid of {granularity!r}, "
            "and must be above 0 and below 2^40 of them; lower the noise multiplier below 65,000"
        )


def rounded_gaussian(
    key: Key, shape: tuple[int, ...], scale: float, *, threads: int | None = None
) -> np.ndarray:
    """Return rint(s N(0, 1)), int64, independent, exactly rounded.

    Args:
        key: Used for nothing else; in either mode its ChaCha20 key streams are read.
        shape: Of the array.
        scale: s, positive and at most `LARGEST_SCALE`.
        threads: As of `fedpriv.rng.Key.normal`.
    """
    from fedpriv.kernels.rounded_normals import UNDECIDED, rounded_normals

    further = key.fold("further bits")

    def fill(number: int, block: np.ndarray) -> None:
        size = block.size + block.size % 2
        bits = key.words(size, number)
        whole = block if size == block.size else np.empty(size, np.int64)
        rounded_normals(bits, scale, whole)
        for place in np.flatnonzero(whole == UNDECIDED).tolist():
            pair = place % (size // 2)
            more = further.fold(number).fold(pair)
            radius, angle = int(bits[pair]), int(bits[size // 2 + pair])
            whole[place] = _decide(more, radius, angle, scale, sine=place >= size // 2)
        if whole is not block:
            block[:] = whole[: block.size]

    out = np.empty(int(np.prod(shape, dtype=np.int64)), np.int64)
    fill_blocks(out, fill, threads)
    return out.reshape(shape)


def _decide(key: Key, radius: int, angle: int, scale: float, *, sine: bool) -> int:
    """Return rint of a Gaussian of which 64 bits of each uniform are known, by reading more.

    The lemma of `fedpriv.kernels.rounded_normals` with N bits in the place of 64, worked with 32
    more digits than bits: |X - x| <= s r (2^-(N - 18) + 1 / w).
    """
    num_bits = _FIRST
    per_read = _MORE // 64
    while True:
        close, far = _nearest(radius, angle, num_bits, scale, sine=sine)
        if close == far or num_bits >= _MOST:
            return close
        words = key.words(2 * per_read, (num_bits - _FIRST) // _MORE).tolist()
        for first, second in zip(words[:per_read], words[per_read:], strict=True):
            radius, angle = radius << 64 | first, angle << 64 | second
        num_bits += _MORE


def _nearest(
    radius: int, angle: int, num_bits: int, scale: float, *, sine: bool
) -> tuple[int, int]:
    """Return the whole numbers nearest to the least and the largest that a Gaussian may be."""
    least = min(radius, (1 << num_bits) - 1 - radius)
    with _ONE_AT_A_TIME:
        _REAL.prec = num_bits + 32
        last = _REAL.mpf(2) ** -num_bits
        length = scale * _REAL.sqrt(-2 * _REAL.log((radius + _REAL.mpf(0.5)) * last))
        turn = 2 * _REAL.pi * (angle + _REAL.mpf(0.5)) * last
        value = length * (_REAL.sin(turn) if sine else _REAL.cos(turn))
        half = _REAL.mpf(0.5)
        if least == 0 and num_bits < _MOST:  # all bits alike: there is no telling how far out
            return 0, 1
        error = length * (_REAL.mpf(2) ** (18 - num_bits) + _REAL.mpf(1) / max(least, 1))
        return (
            int(_REAL.floor(value - error + half)),
            int(_REAL.floor(value + error + half)),
        )
