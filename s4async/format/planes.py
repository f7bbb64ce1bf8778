"""dtype -> plane layouts: the table, without touching data. The bit layouts are FORMAT.md, "Planes".

A layout splits elements of ``itemsize`` bytes into ``itemsize`` planes of one byte per element. ``bytes:N`` is plain
byte planes, plane 0 the least significant byte. ``float:N`` first takes the top 16 bits of the element apart into an
exponent byte (bits 14..7) and a byte of sign and fraction (bit 15, then bits 6..0); the lower bytes stay byte planes.
So the exponent of bf16, fp32 (and the top 8 of fp64's 11 bits) is alone in a plane, and the sign lies beside fraction
bits, where it costs one bit, or none when it never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from s4async.errors import UnsupportedError

__all__ = ["DTYPES", "LAYOUTS", "ROUNDED", "WHOLE", "Dtype", "Layout", "dtype_of", "layout_of"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How elements are split. ``planes[i]`` is the human name of plane ``i``; the stored id is the index."""

    id: str
    itemsize: int
    planes: tuple[str, ...]
    fields: bool  # True: the top 16 bits are taken apart into exponent and sign+fraction


def _bytes(n: int) -> Layout:
    return Layout(f"bytes:{n}", n, tuple(f"byte{i}" for i in range(n)), False)


def _float(n: int) -> Layout:
    return Layout(f"float:{n}", n, ("exponent", "sign+fraction", *(f"byte{i}" for i in range(n - 2))), True)


LAYOUTS = {layout.id: layout for layout in (*map(_bytes, (1, 2, 4, 8)), *map(_float, (2, 4, 8)))}
WHOLE = LAYOUTS["bytes:1"]  # no split: the frame's bytes as they are
ROUNDED = "rounded"  # layout id of a derived copy: no planes, elements are roundings of a wider region


@dataclass(frozen=True, slots=True)
class Dtype:
    """``layout``: the split used when a plane of it pays. ``itemsize`` of the element, as torch counts it."""

    name: str
    itemsize: int
    layout: Layout


def _table() -> dict[str, Dtype]:
    rows: list[tuple[str, int, str]] = [
        ("bfloat16", 2, "float:2"),
        ("float32", 4, "float:4"),
        ("float64", 8, "float:8"),
        ("float16", 2, "bytes:2"),  # two plain bytes beat the field split for fp16 on trained weights
        ("complex32", 4, "bytes:2"),  # a complex number is two floats, split as its float
        ("complex64", 8, "float:4"),
        ("complex128", 16, "float:8"),
        ("bool", 1, "bytes:1"),
    ]
    rows += [(name, 1, "bytes:1") for name in ("uint8", "int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")]
    rows += [(name, 1, "bytes:1") for name in ("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")]
    rows += [(name, 1, "bytes:1") for name in ("qint8", "quint8", "quint4x2", "quint2x4", "bits8")]
    rows += [(f"{sign}int{bits}", bits // 8, f"bytes:{bits // 8}") for sign in ("", "u") for bits in (16, 32, 64)]
    rows += [("qint32", 4, "bytes:4"), ("bits16", 2, "bytes:2")]
    return {name: Dtype(name, size, LAYOUTS[layout]) for name, size, layout in rows}


DTYPES = _table()


def dtype_of(name: str) -> Dtype:
    """The record of a dtype name. Raises ``UnsupportedError`` for a name that this build does not know."""
    try:
        return DTYPES[name]
    except KeyError:
        raise UnsupportedError(f"dtype {name!r} is unknown to this build; a newer s4async may read it") from None


def layout_of(id: str) -> Layout:
    """The layout with this id. Raises ``UnsupportedError`` for an id that this build does not know."""
    try:
        return LAYOUTS[id]
    except KeyError:
        raise UnsupportedError(f"plane layout {id!r} is unknown to this build; a newer s4async may read it") from None
