"""Gaussian noise in whole steps of a grid, exactly rounded.

Noise in floating point has gaps: of a sum on a grid plus float32 Gaussians some values cannot occur
unless a certain user took part, and anyone who sees one knows it surely (Mironov 2012). A sum S
of whole numbers needs no such noise. For a real Gaussian Z,

    S + rint(Z) = rint(S + Z),

so an answer S + rint(Z) is a rounding of the Gaussian mechanism's own answer, post-processing, and
its ε is that of real arithmetic. What is left to prove is that rint(Z) is drawn exactly.

Z = s √(-2 ln U) cos(2πV) for uniforms U and V in (0, 1), or the sine (Box and Muller 1958).

1. 64 bits of each uniform are read, and Z is computed in double precision with a bound of its
   error, the unread bits included (`fedpriv.kernels.rounded_normals`). Where all of that interval
   rounds to one whole number, that is the number.
2. Else, for a few numbers in a million, 256 more bits of each uniform are read at a time, and the
   interval is computed with 32 more digits than bits, until it rounds to one whole number.
3. At 1,088 bits the bits run out, and the lower end is taken: at each number with a probability
   below 2^-256.

Guarantee: given uniform bits, K is distributed as rint(s N(0, 1)) but for a probability below
2^-256 a number. Over T answers of d numbers it adds at most (1 + e^ε) T d 2^-256 to δ.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from fedpriv.libraries import library
from fedpriv.rng import Key, check_key, fill_blocks
from fedpriv.tree import Params, Tree

LARGEST_SCALE = 2.0**40
"""Far beyond any use: from here on double precision decides too few of the numbers."""

# Bits of each uniform: read at first, read more at a time, and read at most.
_FIRST_BITS, _MORE_BITS, _MOST_BITS = 64, 256, 1088
_CONTEXT = library("mpmath.ctx_mp").MPContext()
_CONTEXT_LOCK = Lock()  # the context's precision is its own, and changed here


def grid_noise(key: Key, template: Tree, *, stddev: float, granularity: float) -> Params:
    """Return Gaussian noise in whole steps of a grid, int64, of the template's shapes.

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
    return {
        name: rounded_gaussian(check_key(key).fold(name), tuple(template[name].shape), scale)
        for name in sorted(template)
    }


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
            whole[place] = _decide_by_more_bits(more, radius, angle, scale, sine=place >= size // 2)
        if whole is not block:
            block[:] = whole[: block.size]

    out = np.empty(int(np.prod(shape, dtype=np.int64)), np.int64)
    fill_blocks(out, fill, threads)
    return out.reshape(shape)


def _decide_by_more_bits(key: Key, radius: int, angle: int, scale: float, *, sine: bool) -> int:
    """Return rint of a Gaussian of which 64 bits of each uniform are known, by reading more.

    The lemma of `fedpriv.kernels.rounded_normals` with N bits in the place of 64, worked with 32
    more digits than bits: |X - x| <= s r (2^-(N - 18) + 1 / w).
    """
    num_bits = _FIRST_BITS
    per_read = _MORE_BITS // 64
    while True:
        lowest, highest = _possible_numbers(radius, angle, num_bits, scale, sine=sine)
        if lowest == highest or num_bits >= _MOST_BITS:
            return lowest
        words = key.words(2 * per_read, (num_bits - _FIRST_BITS) // _MORE_BITS).tolist()
        for first, second in zip(words[:per_read], words[per_read:], strict=True):
            radius, angle = radius << 64 | first, angle << 64 | second
        num_bits += _MORE_BITS


def _possible_numbers(
    radius: int, angle: int, num_bits: int, scale: float, *, sine: bool
) -> tuple[int, int]:
    """Return the whole numbers nearest to the least and the largest that a Gaussian may be."""
    least = min(radius, (1 << num_bits) - 1 - radius)
    with _CONTEXT_LOCK:
        _CONTEXT.prec = num_bits + 32
        last = _CONTEXT.mpf(2) ** -num_bits
        length = scale * _CONTEXT.sqrt(-2 * _CONTEXT.log((radius + _CONTEXT.mpf(0.5)) * last))
        turn = 2 * _CONTEXT.pi * (angle + _CONTEXT.mpf(0.5)) * last
        value = length * (_CONTEXT.sin(turn) if sine else _CONTEXT.cos(turn))
        half = _CONTEXT.mpf(0.5)
        if least == 0 and num_bits < _MOST_BITS:  # all bits alike: how far out is not known
            return 0, 1
        error = length * (_CONTEXT.mpf(2) ** (18 - num_bits) + _CONTEXT.mpf(1) / max(least, 1))
        return (
            int(_CONTEXT.floor(value - error + half)),
            int(_CONTEXT.floor(value + error + half)),
        )
