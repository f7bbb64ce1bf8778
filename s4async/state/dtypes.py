"""Tensor dtypes by name: what a tensor record may say, and what a region of it is called.

A record names the tensor's own dtype; a region names it too where it has a plane layout, else ``uint8``. Sizes are
those of torch's elements, so packed dtypes count packed bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from s4async.format.planes import DTYPES as LAID_OUT

__all__ = ["DTYPES", "MAX_DIMS", "MAX_SIZE", "PACKED_INT", "QUANTIZED", "Dtype", "name_of"]

MAX_DIMS = 64  # torch's own limit for most operators
MAX_SIZE = 1 << 60  # of a dimension, a stride, and of their products: nothing overflows 63 bits

_NAMES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),  # containers of one byte
)


class Dtype(NamedTuple):
    """``region``: the dtype that a region holding mostly this one is given."""

    name: str
    dtype: torch.dtype
    itemsize: int
    region: str


def _table() -> dict[str, Dtype]:
    table = {}
    for name in _NAMES:
        dtype = getattr(torch, name, None)
        if isinstance(dtype, torch.dtype):  # older torch lacks some
            table[name] = Dtype(name, dtype, dtype.itemsize, name if name in LAID_OUT else "uint8")
    return table


DTYPES = _table()
_BY_DTYPE = {row.dtype: row for row in DTYPES.values()}

# The integers of quantized tensors lie in records of the plain dtype on the right.
QUANTIZED = {torch.qint8: "int8", torch.quint8: "uint8", torch.qint32: "int32"}

# An integer dtype of each element size, to move bytes without interpreting them.
PACKED_INT = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def name_of(dtype: torch.dtype) -> Dtype | None:
    """The row of a dtype that strided records can hold, ``None`` for any other."""
    return _BY_DTYPE.get(dtype)
