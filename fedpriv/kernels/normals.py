"""Gaussians from random bits, in single precision, and the counter that makes the bits.

`philox` is Philox4x32-10: ten rounds of a 32-bit multiplication each for two pairs of words, with a
key that moves by Weyl's constants. NumPy's Philox has 64-bit words, which processors multiply one
at a time.

`box_muller` is the Box-Muller transform: a fixed sequence of correctly rounded operations without
contraction, so that the same bits give the same Gaussians on any machine.

Reference: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", section 3.3, table 2.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import math

import numpy as np
from numba import float32, njit, types

from fedpriv.kernels.bits import UINT32, as_float32, as_int32

_F, _I, _U = np.float32, np.int32, np.uint32
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_SQRT_HALF = np.uint32(int(2**32 * math.sqrt(0.5)))
_QUARTER = np.float32(math.pi / 2 * 2.0**-30)


@njit([(UINT32, float32, float32[::1])], nogil=True, cache=True, error_model="numpy")
def box_muller(bits: np.ndarray, stddev: float, out: np.ndarray) -> None:
    """Fill `out` with Gaussians.

    The first half of the bits gives the radii, the second the angles; cosines fill the first half
    of `out` and sines the second.

    Args:
        bits: uint32 `(n,)`, uniform; n even.
        stddev: Their standard deviation, float32.
        out: float32 `(n,)`, overwritten. Magnitudes reach 6.76 stddev, beyond which a Gaussian
            lies with probability 1.4e-11; none is zero.

    Raises:
        ValueError: If n is odd, or there are not as many Gaussians as bits.
    """
    if bits.size % 2 != 0 or out.size != bits.size:
        raise ValueError("bits come in pairs, and make one Gaussian each")
    half = bits.size // 2
    for i in range(half):
        # u = (bits + 1/2) / 2^32, and its logarithm. Near 1 it is taken from 1 - u, which is the
        # exact one of the two there: otherwise the smallest radii would all be zero.
        lower, upper = bits[i], ~bits[i]
        near_one = lower > _SQRT_HALF
        uniform = (_F(lower) + _F(0.5)) * _F(2.0**-32)
        raw = as_int32(uniform)
        exponent = _I(0) if near_one else _I((raw - _SQRT_HALF_BITS) >> _I(23))
        mantissa = as_float32(_I(raw - (exponent << _I(23))))
        r = -(_F(upper) + _F(0.5)) * _F(2.0**-32) if near_one else mantissa - _F(1.0)
        # log(1 + r) for r in [√½ - 1, √2 - 1]: a polynomial accurate to single precision.
        z = r * r
        y = _F(7.0376836292e-2)
        y = y * r + _F(-1.1514610310e-1)
        y = y * r + _F(1.1676998740e-1)
        y = y * r + _F(-1.2420140846e-1)
        y = y * r + _F(1.4249322787e-1)
        y = y * r + _F(-1.6668057665e-1)
        y = y * r + _F(2.0000714765e-1)
        y = y * r + _F(-2.4999993993e-1)
        y = y * r + _F(3.3333331174e-1)
        y = y * r * z - _F(0.5) * z
        power = _F(exponent)
        logarithm = (r + (y + power * _F(-2.12194440e-4))) + power * _F(0.693359375)
        radius = math.sqrt(_F(-2.0) * logarithm) * stddev
        # The angle, 2π (bits + 1/2) / 2^32, as a quarter turn and what is left of it, within π/4
        # of 0 and never 0 itself: no Gaussian is exactly zero.
        turn = _I(bits[half + i])
        quarter = _I((turn + _I(1 << 29)) >> _I(30))
        x = (_F(_I(turn - _I(quarter << _I(30)))) + _F(0.5)) * _QUARTER
        z = x * x
        sine = _F(-1.9515295891e-4)
        sine = sine * z + _F(8.3321608736e-3)
        sine = sine * z + _F(-1.6666654611e-1)
        sine = x + x * (z * sine)
        cosine = _F(2.443315711809948e-5)
        cosine = cosine * z + _F(-1.388731625493765e-3)
        cosine = cosine * z + _F(4.166664568298827e-2)
        cosine = _F(1.0) + (z * (z * cosine) - _F(0.5) * z)
        odd = (quarter & _I(1)) != _I(0)
        along = sine if odd else cosine
        across = cosine if odd else sine
        flip_along = ((quarter + _I(1)) & _I(2)) != _I(0)
        flip_across = (quarter & _I(2)) != _I(0)
        out[i] = radius * (-along if flip_along else along)
        out[half + i] = radius * (-across if flip_across else across)


_FIRST, _SECOND = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_GOLDEN, _ROOT = _U(0x9E3779B9), _U(0xBB67AE85)
_HIGH = np.uint64(32)


@njit(
    [(UINT32, UINT32, types.Array(types.uint32, 1, "C"))],
    nogil=True,
    cache=True,
    error_model="numpy",
)
def philox(key: np.ndarray, counter: np.ndarray, out: np.ndarray) -> None:
    """Fill `out` with the bits of so many counters in a row.

    Args:
        key: uint32 `(2,)`.
        counter: uint32 `(4,)`, the first one; its first word counts up, without carrying.
        out: uint32 `(4 n,)`, overwritten: the first words of all n counters, then the second
            words, and so on.

    Raises:
        ValueError: If an array has another length.
    """
    if key.size != 2 or counter.size != 4 or out.size % 4 != 0:
        raise ValueError("Philox has a key of 2 words, a counter of 4, and makes 4 at a time")
    num = out.size // 4
    for i in range(num):
        a, b, c, d = _U(counter[0] + _U(i)), counter[1], counter[2], counter[3]
        left, right = key[0], key[1]
        for _ in range(10):
            first, second = _FIRST * np.uint64(a), _SECOND * np.uint64(c)
            a, c = _U(second >> _HIGH) ^ b ^ left, _U(first >> _HIGH) ^ d ^ right
            b, d = _U(second), _U(first)
            left, right = _U(left + _GOLDEN), _U(right + _ROOT)
        out[i], out[num + i], out[2 * num + i], out[3 * num + i] = a, b, c, d
