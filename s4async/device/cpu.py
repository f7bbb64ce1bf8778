"""The CPU device: every kernel in NumPy, and by that the definition that other devices are compared with.

Responsible for speed on one core and for letting others run. An element is taken apart and put together as 16-bit
parts, by few calls on many elements: each call releases the GIL, changes the width of integers on the way (``casting``
and ``dtype``: NumPy does that in a small buffer) and takes 50 us or more, so that threads seldom meet at the GIL.
It must not know codecs, frames or files. Invariants: temporaries are bounded by a block and kept by each thread,
inputs are only read, arrays may start at any address, and sizes are checked before the first write.
"""

from __future__ import annotations

import sys
import threading

import crc32c
import numpy as np
import numpy.typing as npt

from s4async.device.base import SAMPLE_RUN, SAMPLE_RUNS, Bytes, sample_starts
from s4async.device.rounding import Words, rounding_of
from s4async.errors import OperationalError, UsageError
from s4async.format.planes import Layout

__all__ = ["CpuDevice"]

BLOCK = 512 << 10  # elements; 16-bit temporaries of 1 MiB stay in a core's own cache
WORDS = {n: np.dtype(f"<u{n}") for n in (1, 2, 4, 8)}
INFINITY_TWICE = 0xFF000000  # a float32 shifted left by one: above this, all are NaNs


def _require_little_endian(byteorder: str) -> None:
    """Stored data is little endian, and the kernels view it in place."""
    if byteorder != "little":
        raise OperationalError(f"this machine is {byteorder} endian: s4async runs on little endian machines only")


_require_little_endian(sys.byteorder)


class _Scratch(threading.local):
    """One thread's temporaries, by role and element size; they grow once and stay."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, int], Words] = {}

    def take(self, role: str, itemsize: int, count: int) -> Words:
        """An aligned array of ``count`` words with undefined content, valid until the role is taken again."""
        array = self._arrays.get((role, itemsize))
        if array is None or array.size < count:
            array = self._arrays[role, itemsize] = np.empty(count, WORDS[itemsize])
        return array[:count]


class CpuDevice:
    """Kernels on NumPy arrays in host memory. Safe to use from several threads."""

    kind = "cpu"

    def __init__(self) -> None:
        self._scratch = _Scratch()

    def sample(self, raw: Bytes, layout: Layout) -> npt.NDArray[np.int64]:
        """Histograms of the planes of a fixed sample; the rest of ``raw`` is not read."""
        itemsize, count = layout.itemsize, _count(raw, layout)
        if starts := sample_starts(count):
            shape, strides = (SAMPLE_RUNS, SAMPLE_RUN * itemsize), (starts.step * itemsize, 1)
            runs = np.ndarray(shape, np.uint8, raw.data, starts[0] * itemsize, strides)
            count = SAMPLE_RUNS * SAMPLE_RUN
            raw = self._scratch.take("sample", 1, count * itemsize).view(np.uint8)
            np.copyto(raw.reshape(shape), runs)
        histograms = np.empty((itemsize, 256), np.int64)
        lower = 2 * layout.fields  # the first plane that is a byte of the element, as it lies in memory
        for i in range(lower, itemsize):
            histograms[i] = np.bincount(raw[i - lower :: itemsize], minlength=256)
        if layout.fields:
            top = self._aligned(raw, itemsize).view(WORDS[2])[itemsize // 2 - 1 :: itemsize // 2]
            planes = self._scratch.take("planes", 1, 2 * count).view(np.uint8).reshape(2, count)
            self._split_block(top, [planes[1], planes[0]], True)
            for i, plane in enumerate(planes):
                histograms[i] = np.bincount(plane, minlength=256)
        return histograms

    def split(self, raw: Bytes, layout: Layout, planes: Bytes) -> None:
        """Fill ``planes`` from ``raw`` in one pass."""
        itemsize, count = layout.itemsize, _count(raw, layout)
        if planes.shape != (itemsize, count):
            raise UsageError(f"split ({layout.id}) into planes of shape {planes.shape}: expected {(itemsize, count)}")
        if itemsize == 1:
            np.copyto(planes[0], raw)
            return
        rows = [planes[i] for i in _significance(layout)]
        for start in range(0, count, BLOCK):
            words = self._aligned(raw[start * itemsize : (start + BLOCK) * itemsize], itemsize)
            self._split_block(words, [row[start : start + BLOCK] for row in rows], layout.fields)

    def _split_block(self, words: Words, rows: list[Bytes], fields: bool) -> None:
        """``rows``: one per byte of a word, the least significant first. ``fields``: the top of a word is a float's."""
        for i in range(0, words.itemsize, 2):
            part = words
            if words.itemsize > 2:
                part = self._scratch.take("part", 2, words.size)
                if i:
                    np.right_shift(words, 8 * i, out=part, casting="unsafe")
                else:
                    np.copyto(part, words, casting="unsafe")
            if fields and i == words.itemsize - 2:
                np.right_shift(part, 7, out=rows[i + 1], casting="unsafe")  # keeps bits 14..7, the exponent
                spare = part if part is not words else self._scratch.take("part", 2, words.size)
                np.bitwise_and(part, 0x807F, out=spare)
                np.multiply(spare, 0x101, out=spare)  # adds the fraction to the high byte, below the sign
                np.right_shift(spare, 8, out=rows[i], casting="unsafe")
            else:
                np.copyto(rows[i], part, casting="unsafe")
                np.right_shift(part, 8, out=rows[i + 1], casting="unsafe")

    def join(self, planes: list[Bytes | int], layout: Layout, raw: Bytes) -> None:
        """Undo ``split`` into ``raw`` in one pass; a constant plane is not read, and mostly not written either."""
        itemsize, count = layout.itemsize, _count(raw, layout)
        _check_planes(planes, layout, count)
        if itemsize == 1:
            np.copyto(raw, planes[0])
            return
        rows = [planes[i] for i in _significance(layout)]
        for start in range(0, count, BLOCK):
            block = raw[start * itemsize : (start + BLOCK) * itemsize]
            words = target = block.view(WORDS[itemsize])
            if not target.flags.aligned:
                words = self._scratch.take("block", itemsize, target.size)
            parts = [row if isinstance(row, int) else row[start : start + BLOCK] for row in rows]
            self._join_block(parts, layout.fields, words)
            if words is not target:
                np.copyto(block, words.view(np.uint8))

    def _join_block(self, rows: list[Bytes | int], fields: bool, words: Words) -> None:
        """The inverse of ``_split_block``; a row may be the constant value of all its bytes. From the top part down:
        shift what is there, or in the next. ``value``: what is there, while that is constant."""
        value: int | None = 0
        part = words if words.itemsize == 2 else self._scratch.take("part", 2, words.size)
        for i in range(words.itemsize - 2, -1, -2):
            constant = self._join_part(rows[i], rows[i + 1], fields and i == words.itemsize - 2, part)
            if value is not None and constant is not None:
                value = value << 16 | constant
            elif part is words:
                return
            elif value is not None:
                np.bitwise_or(part, value << 16, out=words, dtype=words.dtype)
                value = None
            else:
                np.left_shift(words, 16, out=words)
                np.bitwise_or(words, part if constant is None else constant, out=words)
        if value is not None:
            words.fill(value)

    def _join_part(self, low: Bytes | int, high: Bytes | int, fields: bool, part: Words) -> int | None:
        """Fill ``part`` with the 16-bit parts of ``low`` and ``high``, or return their value if both are constant."""
        shift = 7 if fields else 8
        if isinstance(low, int):
            low = (low * 0x101) & 0x807F if fields else low
            if isinstance(high, int):
                return high << shift | low
            np.left_shift(high, shift, out=part, dtype=part.dtype)
            if low:
                np.bitwise_or(part, low, out=part)
            return None
        rest = self._scratch.take("spare", 2, part.size) if fields else low
        if fields:
            np.multiply(low, 0x101, out=rest, dtype=part.dtype)  # sign to bit 15, fraction to bits 6..0, and more
            np.bitwise_and(rest, 0x807F, out=rest)
        if isinstance(high, int):
            np.bitwise_or(rest, high << shift, out=part, dtype=part.dtype)
        else:
            np.left_shift(high, shift, out=part, dtype=part.dtype)
            np.bitwise_or(part, rest, out=part)
        return None

    def constant(self, plane: Bytes) -> int | None:
        """The value of every byte of ``plane``; stops at the first block that differs."""
        if plane.size == 0:
            return None
        value = int(plane[0])
        for start in range(0, plane.size, BLOCK):
            block = plane[start : start + BLOCK]
            differs = self._scratch.take("spare", 1, block.size).view(np.bool_)
            if np.not_equal(block, value, out=differs).any():
                return None
        return value

    def checksum(self, data: Bytes, crc: int = 0) -> int:
        """CRC32C of ``data``, continued from ``crc``, by the processor's own instruction where it has one."""
        return crc32c.crc32c(data.data, crc)

    def is_rounding(self, low: Bytes, high: Bytes, dtype: str) -> bool:
        """Whether ``low`` is the rounding of ``high``; stops at the first block that differs or holds a NaN."""
        rounding, count = rounding_of(dtype), _pairs(low, high)
        for start in range(0, count, BLOCK):
            words = self._aligned(high[start * 4 : (start + BLOCK) * 4], 4)
            rounded, spare = self._scratch.take("part", 2, words.size), self._scratch.take("spare", 4, words.size)
            rounding(words, rounded, spare)
            if not np.array_equal(rounded, low[start * 2 : (start + BLOCK) * 2].view(WORDS[2])):
                return False
            if np.left_shift(words, 1, out=spare).max() > INFINITY_TWICE:
                return False
        return True

    def round_into(self, high: Bytes, dtype: str, low: Bytes) -> None:
        """Fill ``low`` with the roundings of ``high``."""
        rounding, count = rounding_of(dtype), _pairs(low, high)
        for start in range(0, count, BLOCK):
            words = self._aligned(high[start * 4 : (start + BLOCK) * 4], 4)
            rounded, spare = self._scratch.take("part", 2, words.size), self._scratch.take("spare", 4, words.size)
            rounding(words, rounded, spare)
            np.copyto(low[start * 2 : (start + BLOCK) * 2], rounded.view(np.uint8))

    def _aligned(self, block: Bytes, itemsize: int) -> Words:
        """The words of ``block``, copied if they lie at an odd address: else NumPy would buffer every operation."""
        words: Words = block.view(WORDS[itemsize])
        if words.flags.aligned:
            return words
        copy = self._scratch.take("block", itemsize, words.size)
        np.copyto(copy.view(np.uint8), block)
        return copy


def _count(raw: Bytes, layout: Layout) -> int:
    """Elements in ``raw``."""
    count, rest = divmod(raw.size, layout.itemsize)
    if raw.ndim != 1 or rest:
        raise UsageError(
            f"raw array of shape {raw.shape}: expected one dimension, a multiple of {layout.itemsize} bytes"
        )
    return count


def _pairs(low: Bytes, high: Bytes) -> int:
    """Elements in ``low`` and ``high`` alike."""
    if low.size % 2 or low.size * 2 != high.size:
        raise UsageError(f"rounding of {high.size} bytes beside {low.size}: expected 4 bytes of float32 for every 2")
    return low.size // 2


def _check_planes(planes: list[Bytes | int], layout: Layout, count: int) -> None:
    """``planes`` are those of ``count`` elements."""
    found = [plane if isinstance(plane, int) else plane.shape for plane in planes]
    if len(found) != layout.itemsize or any(not 0 <= f < 256 if isinstance(f, int) else f != (count,) for f in found):
        raise UsageError(f"join ({layout.id}) of planes {found}: expected {layout.itemsize}, each a constant of one "
                         f"byte or an array of shape {(count,)}")  # fmt: skip


def _significance(layout: Layout) -> list[int]:
    """Indices of the planes, the least significant byte of an element first; an exponent lies above its fraction."""
    lower = list(range(2 * layout.fields, layout.itemsize))
    return [*lower, 1, 0] if layout.fields else lower
