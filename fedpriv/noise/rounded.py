"""Gaussians rounded exactly to whole numbers: noise for sums of whole numbers, hardened.

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

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from mpmath.ctx_mp import MPContext

from fedpriv.rng import Key, check_key, fill_blocks
from fedpriv.tree import Tree

LARGEST_SCALE = 2.0**40
"""Far beyond any use: from here on double precision decides too few of the numbers."""

_FIRST, _MORE, _MOST = 64, 256, 1088
_REAL = MPContext()
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
    numbers = {}
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
            whole[place] = _decided(more, radius, angle, scale, sine=place >= size // 2)
        if whole is not block:
            block[:] = whole[: block.size]

    out = np.empty(int(np.prod(shape, dtype=np.int64)), np.int64)
    fill_blocks(out, fill, threads)
    return out.reshape(shape)


def _decided(key: Key, radius: int, angle: int, scale: float, *, sine: bool) -> int:
    """Return rint of a Gaussian of which 64 bits of each uniform are known, by reading more.

    The lemma of `fedpriv.kernels.rounded_normals` with N bits in the place of 64, worked with 32
    more digits than bits: |X - x| <= s r (2^-(N - 18) + 1 / w).
    """
    num_bits = _FIRST
    per_read = _MORE // 64
    while True:
        close, far = _at(radius, angle, num_bits, scale, sine=sine)
        if close == far or num_bits >= _MOST:
            return close
        words = key.words(2 * per_read, (num_bits - _FIRST) // _MORE).tolist()
        for first, second in zip(words[:per_read], words[per_read:], strict=True):
            radius, angle = radius << 64 | first, angle << 64 | second
        num_bits += _MORE


def _at(radius: int, angle: int, num_bits: int, scale: float, *, sine: bool) -> tuple[int, int]:
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
