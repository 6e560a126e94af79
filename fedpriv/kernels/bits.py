"""Types of arguments, and reinterpretation of 32-bit numbers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Arguments that are only read may be views of a file or of shared memory.
INT32 = types.Array(types.int32, 1, "C", readonly=True)
INT64 = types.Array(types.int64, 1, "C", readonly=True)
UINT8 = types.Array(types.uint8, 1, "C", readonly=True)
UINT16 = types.Array(types.uint16, 1, "C", readonly=True)
UINT32 = types.Array(types.uint32, 1, "C", readonly=True)
FLOAT32 = types.Array(types.float32, 1, "C", readonly=True)
MATRIX32 = types.Array(types.float32, 2, "C", readonly=True)

# The compiler vectorises multiplications and bit operations, but not calls into the C library: a
# logarithm or exponential made of the former is several times faster inside a loop.


@intrinsic
def as_int32(typing_context: Any, value: Any) -> Any:
    """Return the int32 whose bits are those of a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def as_float32(typing_context: Any, value: Any) -> Any:
    """Return the float32 whose bits are those of an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate
