"""float32 -> bfloat16 and float16 in integer arithmetic: the definition of a derived copy.

Responsible for one thing: to nearest, ties to even, exactly as IEEE 754 has it, subnormal results and overflow to
infinity included, on every machine and in every floating point mode. Undefined for NaNs; the callers exclude them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from s4async.errors import UnsupportedError

__all__ = ["Rounding", "Words", "rounding_of"]

Words = npt.NDArray[np.unsignedinteger]
Rounding = Callable[[Words, Words, Words], None]
"""``rounding(high, low, spare)``: fill ``low`` (16-bit words) from ``high`` (32-bit words); ``spare`` like ``high``."""

OVERFLOW = 0x47800000  # 2**16: this and all above round to infinity in float16
NORMAL = 0x38800000  # 2**-14: below this, float16 has subnormals only
REBIAS = 0x38000000  # the exponent bias of float32 less that of float16, in place


def _bfloat16(high: Words, low: Words, spare: Words) -> None:
    """Add just less than half a unit of the last kept bit, a half if that bit is set, and cut."""
    np.right_shift(high, 16, out=spare)
    np.bitwise_and(spare, 1, out=spare)
    np.add(spare, 0x7FFF, out=spare)
    np.add(spare, high, out=spare)
    np.right_shift(spare, 16, out=low, casting="unsafe")


def _float16(high: Words, low: Words, spare: Words) -> None:
    """The same with 13 bits to cut, after clamping to 2**16 and changing the bias; subnormals one by one."""
    np.bitwise_and(high, 0x7FFFFFFF, out=spare)
    small = np.flatnonzero(spare < NORMAL)
    subnormals = _float16_subnormals(spare[small])
    np.minimum(spare, OVERFLOW, out=spare)
    last = np.right_shift(spare, 13)
    np.bitwise_and(last, 1, out=last)
    np.add(spare, last, out=spare)
    np.add(spare, (0xFFF - REBIAS) & 0xFFFFFFFF, out=spare)
    np.right_shift(spare, 13, out=low, casting="unsafe")
    low[small] = subnormals
    np.right_shift(high, 16, out=spare)
    np.bitwise_and(spare, 0x8000, out=spare)
    np.bitwise_or(low, spare, out=low, casting="unsafe")


def _float16_subnormals(magnitude: Words) -> Words:
    """Magnitudes below 2**-14 in units of 2**-24: a shift that depends on the exponent; from 25 bits on all is cut."""
    shift = np.minimum(126 - (magnitude >> 23), 25)
    significand = (magnitude & 0x7FFFFF) | 0x800000  # a float32 subnormal gains a bit here, and loses it to the cut
    half = np.left_shift(np.uint32(1), shift - 1) - 1 + ((significand >> shift) & 1)
    rounded: Words = (significand + half) >> shift
    return rounded


ROUNDINGS: dict[str, Rounding] = {"bfloat16": _bfloat16, "float16": _float16}


def rounding_of(dtype: str) -> Rounding:
    """The rounding from float32 to ``dtype``. Raises ``UnsupportedError`` for one that this build does not have."""
    try:
        return ROUNDINGS[dtype]
    except KeyError:
        raise UnsupportedError(
            f"rounding float32 to {dtype!r} is unknown to this build, which has {', '.join(ROUNDINGS)}"
        ) from None
