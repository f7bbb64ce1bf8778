"""Which bytes strided views cover: density, overlap, and who shares an element with whom. Arithmetic on spans.

A *span* is a view without its memory: the byte offset of its first element, its element size, and its dimensions of
more than one element. Knows no torch; the only arrays are maps with one entry per unit of an interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

__all__ = ["Span", "families", "hidden_units", "is_dense", "self_overlaps", "span"]

_Dims = tuple[tuple[int, int], ...]  # (stride in elements, size), strides ascending; size > 1 and stride > 0


class Span(NamedTuple):
    """The bytes of one view."""

    offset: int
    itemsize: int
    dims: _Dims

    @property
    def nbytes(self) -> int:
        """Of its elements, counting shared ones as often as they have an index."""
        return math.prod(size for _, size in self.dims) * self.itemsize

    @property
    def end(self) -> int:
        """The byte after the last element."""
        return self.offset + (sum(stride * (size - 1) for stride, size in self.dims) + 1) * self.itemsize


def span(offset: int, itemsize: int, shape: Sequence[int], strides: Sequence[int]) -> Span:
    """The span of a view that has elements."""
    dims = sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1 and stride)
    return Span(offset, itemsize, tuple(dims))


def is_dense(dims: _Dims) -> bool:
    """Whether every byte between the first and the last element belongs to an element."""
    reach = 0
    for stride, size in dims:
        if stride > reach + 1:
            return False
        reach += stride * (size - 1)
    return True


def self_overlaps(dims: _Dims) -> bool:
    """Whether two indices may name one element, not counting stride 0. Errs on the side of yes."""
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def hidden_units(spans: Sequence[Span], start: int, end: int) -> tuple[int, npt.NDArray[np.bool_]]:
    """The unit in bytes, and for each unit of the interval whether no span covers it."""
    unit = gcd(start, end, *(s.itemsize for s in spans))
    hidden = np.ones((end - start) // unit, dtype=np.bool_)
    for s in spans:
        _window(hidden, s, start, unit)[...] = False
    return unit, hidden


def families(spans: Sequence[Span]) -> tuple[int, list[list[int]]]:
    """How many bytes the spans cover together, and which of them share elements, directly or through others.

    Looks at one period where all spans repeat with the same outermost stride and stay inside it (column slices of one
    matrix), so that the map of owners is a row and not the matrix.
    """
    repeats = 1
    while all(s.dims for s in spans) and len({(s.dims[-1], s.itemsize) for s in spans}) == 1:
        stride, size = spans[0].dims[-1]
        inner = [s._replace(dims=s.dims[:-1]) for s in spans]
        if max(s.end for s in inner) - min(s.offset for s in inner) > stride * spans[0].itemsize:
            break
        repeats *= size
        spans = inner
    start, end = min(s.offset for s in spans), max(s.end for s in spans)
    unit = gcd(start, end, *(s.itemsize for s in spans))
    owner = np.zeros((end - start) // unit, dtype=np.int32)  # number of the last span that took the unit, 0 for none
    parent = list(range(len(spans) + 1))
    for number, s in enumerate(spans, 1):
        window = _window(owner, s, start, unit)
        for met in np.flatnonzero(np.bincount(window.reshape(-1))):
            if met:
                parent[_root(parent, int(met))] = _root(parent, number)
        window[...] = number
    found: dict[int, list[int]] = {}
    for number in range(1, len(parent)):
        found.setdefault(_root(parent, number), []).append(number - 1)
    return repeats * int(np.count_nonzero(owner)) * unit, list(found.values())


def _window(array: npt.NDArray[Any], s: Span, start: int, unit: int) -> npt.NDArray[Any]:
    """The entries of ``array`` (one per ``unit`` bytes from ``start``) that the span covers."""
    step, item = array.itemsize, s.itemsize // unit
    shape = [size for _, size in s.dims] + [item]
    strides = [stride * item * step for stride, _ in s.dims] + [step]
    return as_strided(array[(s.offset - start) // unit :], shape, strides)


def _root(parent: list[int], number: int) -> int:
    while parent[number] != number:
        number = parent[number]
    return number
