"""Gaussians rounded to whole numbers, and which of them double precision leaves undecided.

With real uniforms U, V in (0, 1), X = s √(-2 ln U) cos 2πV and Y = s √(-2 ln U) sin 2πV are two
independent Gaussians of standard deviation s (Box and Muller 1958). Here 64 bits of each uniform
are read: U lies in [b, b + 1] 2^-64, and x and y are computed at the middle of the two intervals.

Lemma. With w = min(b, 2^64 - 1 - b) >= 2^11 and r the computed radius √(-2 ln u),

    |X - x| and |Y - y| are at most s r (2^-46 + 1 / w),

unread bits and double precision together, which rounds by h = 2^-53 at most:

* u, or 1 - u where u > 0.7, is that of a whole number below 2^64 and one half: 2h relative.
* ln(1 + f) = 2 artanh(f / (2 + f)) with |f / (2 + f)| <= 0.172; the series after its eleventh term
  is below 2^-60 of it, and its terms have one sign: within 12h. The exponent's part is of the other
  sign at most with u in [½, 0.7], where it triples that: -ln u is within 45h, √ of it within 24h.
* The interval of U moves √(-2 ln U) by at most r / w: by 0.61 / b where u <= 0.71 and r >= 0.82,
  by 0.36 r / w near one.
* The angle is reduced to |φ| <= π/4 in whole numbers, so it is within 5h |φ| and the unread 2^-62;
  Taylor's polynomials leave out less than 2^-58 there, and their sums round by less than 8h: cosine
  and sine are within 14h of the real angle's.
* Two products round by 2h.

Together they stay below s r (2^-47 + 1 / w), of which the bound is twice the first part: that
absorbs the rounding of the bound itself. Where [x - e, x + e] holds no half-integer, rint(x) is
rint(X). No operation is contracted or reordered, so every machine decides alike.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import math

import numpy as np
from numba import float64, int64, njit, types

_U64 = types.Array(types.uint64, 1, "C", readonly=True)
_U = np.uint64

#: Placeholder of a number that is not decided; no rounded Gaussian is so far out.
UNDECIDED = -(2**63)

_HALF_TURN, _WHOLE = _U(1 << 61), _U(62)
_LEAST = _U(1 << 11)
_NEAR_ONE = _U(int(0.7 * 2**64))
_UNIT = 2.0**-64
_ANGLE = 2.0 * math.pi * 2.0**-64
_ROUNDOFF = 2.0**-46
_LN2 = math.log(2.0)
_SQRT_HALF = math.sqrt(0.5)

_A3, _A5, _A7, _A9, _A11 = 1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11
_A13, _A15, _A17, _A19, _A21 = 1 / 13, 1 / 15, 1 / 17, 1 / 19, 1 / 21
_S3, _S5, _S7, _S9 = -1 / 6, 1 / 120, -1 / 5040, 1 / 362880
_S11, _S13, _S15, _S17 = (
    -1 / 39916800, 1 / 6227020800, -1 / 1307674368000, 1 / 355687428096000
)  # fmt: skip
_C2, _C4, _C6, _C8 = -1 / 2, 1 / 24, -1 / 720, 1 / 40320
_C10, _C12, _C14, _C16 = -1 / 3628800, 1 / 479001600, -1 / 87178291200, 1 / 20922789888000


@njit([(_U64, float64, int64[::1])], nogil=True, cache=True, error_model="numpy")
def rounded_normals(bits: np.ndarray, scale: float, out: np.ndarray) -> None:
    """Fill `out` with rint of Gaussians; `UNDECIDED` where 64 bits do not tell which it is.

    The first half of the bits gives the radii, the second the angles; cosines fill the first half
    of `out` and sines the second.

    Args:
        bits: uint64 `(n,)`, uniform; n even.
        scale: Their standard deviation s, at most 2^40.
        out: int64 `(n,)`, overwritten.

    Raises:
        ValueError: If n is odd, or there are not as many numbers as bits.
    """
    if bits.size % 2 != 0 or out.size != bits.size:
        raise ValueError("bits come in pairs, and make one number each")
    half = bits.size // 2
    for i in range(half):
        below = bits[i]
        above = ~below
        # ln u = exponent ln 2 + ln(1 + f), and near one ln(1 - (1 - u)).
        exponent = 0.0
        if below > _NEAR_ONE:
            fraction = -((np.float64(above) + 0.5) * _UNIT)
        else:
            mantissa, power = math.frexp((np.float64(below) + 0.5) * _UNIT)
            if mantissa < _SQRT_HALF:
                mantissa *= 2.0
                power -= 1
            fraction = mantissa - 1.0
            exponent = np.float64(power)
        z = fraction / (2.0 + fraction)
        q = z * z
        series = _A19 + q * _A21
        series = _A17 + q * series
        series = _A15 + q * series
        series = _A13 + q * series
        series = _A11 + q * series
        series = _A9 + q * series
        series = _A7 + q * series
        series = _A5 + q * series
        series = _A3 + q * series
        logarithm = exponent * _LN2 + 2.0 * (z + z * (q * series))
        radius = math.sqrt(-2.0 * logarithm)
        # 2πV as quarter turns and what is left, within π/4 of zero: exact in whole numbers.
        turn = bits[half + i]
        quarter = np.int64((turn + _HALF_TURN) >> _WHOLE)
        left = np.int64(turn - (_U(quarter) << _WHOLE))
        x = (np.float64(left) + 0.5) * _ANGLE
        q = x * x
        sine = _S15 + q * _S17
        sine = _S13 + q * sine
        sine = _S11 + q * sine
        sine = _S9 + q * sine
        sine = _S7 + q * sine
        sine = _S5 + q * sine
        sine = _S3 + q * sine
        sine = x + x * (q * sine)
        cosine = _C14 + q * _C16
        cosine = _C12 + q * cosine
        cosine = _C10 + q * cosine
        cosine = _C8 + q * cosine
        cosine = _C6 + q * cosine
        cosine = _C4 + q * cosine
        cosine = 1.0 + q * (_C2 + q * cosine)
        odd = (quarter & 1) != 0
        along = sine if odd else cosine
        across = cosine if odd else sine
        if ((quarter + 1) & 2) != 0:
            along = -along
        if (quarter & 2) != 0:
            across = -across
        length = scale * radius
        least = min(below, above)
        error = length * (_ROUNDOFF + 1.0 / np.float64(least)) if least >= _LEAST else 1.0
        for place, value in ((i, length * along), (half + i, length * across)):
            whole = np.rint(value)
            decided = abs(value - whole) + error < 0.5  # the difference is exact
            out[place] = np.int64(whole) if decided else UNDECIDED
