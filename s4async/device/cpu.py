"""The CPU device: every kernel in NumPy, and by that the definition that other devices are compared with.

Responsible for speed on one core and for letting others run: work goes block by block, small enough to stay in cache
and large enough that threads seldom meet at the GIL, which every call releases; temporaries are scratch that each
thread keeps. It must not know codecs, frames or files. Invariants: temporaries are bounded by a block, inputs are only
read, arrays may start at any address, and sizes are checked before the first write.

Words are taken apart and put together in halves (64 <-> 32 <-> 16 bits), because changing the width by two is the
cheapest vector operation there is; only 16-bit words meet bytes.
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

BLOCK_BYTES = 1 << 20  # raw bytes; a call then takes 20 us or more, so that threads seldom queue for the GIL
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
        planes = self._scratch.take("planes", 1, count * itemsize).view(np.uint8).reshape(itemsize, count)
        self.split(raw, layout, planes)
        histograms = np.empty((itemsize, 256), np.int64)
        for plane, histogram in zip(planes, histograms, strict=True):
            histogram[:] = np.bincount(plane, minlength=256)
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
        step = BLOCK_BYTES // itemsize
        for start in range(0, count, step):
            words = self._aligned(raw[start * itemsize : (start + step) * itemsize], itemsize)
            self._split_words(words, [row[start : start + step] for row in rows], layout.fields)

    def _split_words(self, words: Words, rows: list[Bytes], fields: bool) -> None:
        """``rows``: one per byte of a word, the least significant first. ``fields``: the top of a word is a float's."""
        size, count = words.itemsize // 2, words.size
        shifted = self._scratch.take("shifted", words.itemsize, count)
        if size > 1:
            half = self._scratch.take("half", size, count)
            np.copyto(half, words, casting="unsafe")
            self._split_words(half, rows[:size], False)
            np.right_shift(words, size * 8, out=shifted)
            np.copyto(half, shifted, casting="unsafe")
            self._split_words(half, rows[size:], fields)
        elif fields:
            np.right_shift(words, 7, out=shifted)
            np.copyto(rows[1], shifted, casting="unsafe")  # keeps bits 14..7, the exponent
            np.bitwise_and(words, 0x807F, out=shifted)
            np.multiply(shifted, 0x101, out=shifted)  # adds the fraction to the high byte, below the sign
            np.right_shift(shifted, 8, out=shifted)
            np.copyto(rows[0], shifted, casting="unsafe")
        else:
            np.copyto(rows[0], words, casting="unsafe")
            np.right_shift(words, 8, out=shifted)
            np.copyto(rows[1], shifted, casting="unsafe")

    def join(self, planes: list[Bytes | int], layout: Layout, raw: Bytes) -> None:
        """Undo ``split`` into ``raw`` in one pass; a constant plane is not read, and mostly not written either."""
        itemsize, count = layout.itemsize, _count(raw, layout)
        _check_planes(planes, layout, count)
        if itemsize == 1:
            np.copyto(raw, planes[0])
            return
        rows = [planes[i] for i in _significance(layout)]
        step = BLOCK_BYTES // itemsize
        for start in range(0, count, step):
            block = raw[start * itemsize : (start + step) * itemsize]
            words = target = block.view(WORDS[itemsize])
            if not target.flags.aligned:
                words = self._scratch.take("block", itemsize, target.size)
            parts = [row if isinstance(row, int) else row[start : start + step] for row in rows]
            self._join_words(parts, layout.fields, words)
            if words is not target:
                np.copyto(block, words.view(np.uint8))

    def _join_words(self, rows: list[Bytes | int], fields: bool, words: Words) -> None:
        """The inverse of ``_split_words``; a row may be the constant value of all its bytes."""
        size = words.itemsize // 2
        fields_here = fields and size == 1
        shift = 7 if fields_here else size * 8
        wide = self._scratch.take("shifted", words.itemsize, words.size)
        high = self._half(rows[size:], fields, words.size)
        if isinstance(high, int):
            words.fill(high << shift)
        else:
            np.copyto(wide, high)
            np.left_shift(wide, shift, out=words)
        low = self._half(rows[:size], False, words.size)
        if isinstance(low, int):
            if low:
                np.bitwise_or(words, _spread(low) if fields_here else low, out=words)
            return
        np.copyto(wide, low)
        if fields_here:
            np.multiply(wide, 0x101, out=wide)
            np.bitwise_and(wide, 0x807F, out=wide)
        np.bitwise_or(words, wide, out=words)

    def _half(self, rows: list[Bytes | int], fields: bool, count: int) -> Words | int:
        """Half of each word: a row itself, a constant, or joined in scratch (valid until the next half is asked)."""
        if len(rows) == 1:
            return rows[0]
        value = _constant_word(rows, fields)
        if value is not None:
            return value
        half = self._scratch.take("half", len(rows), count)
        self._join_words(rows, fields, half)
        return half

    def constant(self, plane: Bytes) -> int | None:
        """The value of every byte of ``plane``; stops at the first block that differs."""
        if plane.size == 0:
            return None
        value = int(plane[0])
        for start in range(0, plane.size, BLOCK_BYTES):
            block = plane[start : start + BLOCK_BYTES]
            differs = self._scratch.take("shifted", 1, block.size).view(np.bool_)
            if np.not_equal(block, value, out=differs).any():
                return None
        return value

    def checksum(self, data: Bytes, crc: int = 0) -> int:
        """CRC32C of ``data``, continued from ``crc``, by the processor's own instruction where it has one."""
        return crc32c.crc32c(data.data, crc)

    def is_rounding(self, low: Bytes, high: Bytes, dtype: str) -> bool:
        """Whether ``low`` is the rounding of ``high``; stops at the first block that differs or holds a NaN."""
        rounding, count = rounding_of(dtype), _pairs(low, high)
        step = BLOCK_BYTES // 4
        for start in range(0, count, step):
            words = self._aligned(high[start * 4 : (start + step) * 4], 4)
            rounded = self._scratch.take("half", 2, words.size)
            spare = self._scratch.take("shifted", 4, words.size)
            rounding(words, rounded, spare)
            if not np.array_equal(rounded, low[start * 2 : (start + step) * 2].view(WORDS[2])):
                return False
            if np.left_shift(words, 1, out=spare).max() > INFINITY_TWICE:
                return False
        return True

    def round_into(self, high: Bytes, dtype: str, low: Bytes) -> None:
        """Fill ``low`` with the roundings of ``high``."""
        rounding, count = rounding_of(dtype), _pairs(low, high)
        step = BLOCK_BYTES // 4
        for start in range(0, count, step):
            words = self._aligned(high[start * 4 : (start + step) * 4], 4)
            rounded = self._scratch.take("half", 2, words.size)
            rounding(words, rounded, self._scratch.take("shifted", 4, words.size))
            np.copyto(low[start * 2 : (start + step) * 2], rounded.view(np.uint8))

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


def _spread(byte: int) -> int:
    """A byte of sign and fraction -> its bits in a 16-bit word."""
    return (byte * 0x101) & 0x807F


def _constant_word(rows: list[Bytes | int], fields: bool) -> int | None:
    """The word that constant rows make, ``None`` if one of them is not constant."""
    word = 0
    for i, row in enumerate(rows):
        if not isinstance(row, int):
            return None
        if fields and i == len(rows) - 2:
            word |= _spread(row) << 8 * i
        else:
            word |= row << (8 * i - (fields and i == len(rows) - 1))
    return word
