"""Uniform random bits by counting: Philox4x32-10, as many counters at once as a register holds.

Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", section 3.3 and table 2: ten
rounds of a 32-bit multiplication each for two pairs of words, with a key that moves by Weyl's
constants. NumPy's Philox has 64-bit words, which processors multiply one at a time.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import numpy as np
from numba import njit, types

from fedpriv.kernels.bits import UINT32

_U, _W = np.uint32, np.uint64
_FIRST, _SECOND = _W(0xD2511F53), _W(0xCD9E8D57)
_GOLDEN, _ROOT = _U(0x9E3779B9), _U(0xBB67AE85)
_HIGH = _W(32)


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
    """
    num = out.size // 4
    for i in range(num):
        a, b, c, d = _U(counter[0] + _U(i)), counter[1], counter[2], counter[3]
        left, right = key[0], key[1]
        for _ in range(10):
            first, second = _FIRST * _W(a), _SECOND * _W(c)
            a, c = _U(second >> _HIGH) ^ b ^ left, _U(first >> _HIGH) ^ d ^ right
            b, d = _U(second), _U(first)
            left, right = _U(left + _GOLDEN), _U(right + _ROOT)
        out[i], out[num + i], out[2 * num + i], out[3 * num + i] = a, b, c, d
