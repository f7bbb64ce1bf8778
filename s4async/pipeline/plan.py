"""Regions -> frames: which bytes travel together. Pure: looks at sizes, dtypes and names, never at data.

A region larger than ``small_bytes`` is cut into frames of its own. Smaller ones share a frame with their likes (same
dtype, same last part of the name but for numbers, as all ``exp_avg`` or all ``bias``): a shared table costs little
among likes and a lot across kinds. Kinds of next to no bytes share one too. A small low-precision region that may be
the rounding of a float32 one keeps a frame of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from s4async.format.planes import dtype_of
from s4async.frame import Extent, Frame, Region

__all__ = ["SHARED_FRAME_NBYTES", "plan", "rounding_candidates"]

SHARED_FRAME_NBYTES = 1 << 20  # small regions share frames up to this size: enough to hide the cost of a frame
_KIND_MIN_NBYTES = 1 << 10  # a kind with less in all gains nothing by a frame: 0.1 ms and 100 bytes of record
LOW_DTYPES = ("bfloat16", "float16")
_DERIVE_MIN_NBYTES = 256  # a derived copy needs a frame of its own, about 60 bytes of record


def rounding_candidates(regions: Sequence[Region]) -> dict[int, tuple[int, ...]]:
    """For each bfloat16 or float16 region, the float32 regions with as many elements."""
    high: dict[int, list[int]] = {}
    for index, region in enumerate(regions):
        if region.dtype == "float32":
            high.setdefault(region.nbytes // 2, []).append(index)
    return {
        index: tuple(high[region.nbytes])
        for index, region in enumerate(regions)
        if region.dtype in LOW_DTYPES and region.nbytes >= _DERIVE_MIN_NBYTES and region.nbytes in high
    }


def plan(regions: Sequence[Region], frame_bytes: int, small_bytes: int) -> tuple[Frame, ...]:
    """Frames covering every byte of every region once, the extents of a region in order."""
    alone = rounding_candidates(regions)
    extents: list[tuple[str, tuple[Extent, ...]]] = []
    shared: dict[tuple[str, str], list[int]] = {}
    for index, region in enumerate(regions):
        dtype = _frame_dtype(region)
        if region.nbytes >= small_bytes or index in alone:
            extents += [(dtype, (e,)) for e in _cut(index, region.nbytes, frame_bytes)]
        elif region.nbytes:
            shared.setdefault((dtype, _kind(region.name)), []).append(index)
    for (dtype, _), members in _merged(shared, regions).items():
        extents += [(dtype, group) for group in _groups(members, regions)]
    return tuple(Frame(i, dtype, group) for i, (dtype, group) in enumerate(extents))


def _frame_dtype(region: Region) -> str:
    """The region's dtype, or plain bytes where views of several dtypes leave a broken element."""
    return region.dtype if region.nbytes % dtype_of(region.dtype).itemsize == 0 else "uint8"


def _kind(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[2].rstrip("0123456789")


def _merged(shared: dict[tuple[str, str], list[int]], regions: Sequence[Region]) -> dict[tuple[str, str], list[int]]:
    """The kinds that are worth a frame, and for each dtype one kind of all the others."""
    merged: dict[tuple[str, str], list[int]] = {}
    for (dtype, kind), members in shared.items():
        worth = sum(regions[index].nbytes for index in members) >= _KIND_MIN_NBYTES
        merged.setdefault((dtype, kind if worth else ""), []).extend(members)
    return merged


def _cut(index: int, nbytes: int, frame_bytes: int) -> list[Extent]:
    return [Extent(index, at, min(frame_bytes, nbytes - at)) for at in range(0, nbytes, frame_bytes)]


def _groups(members: list[int], regions: Sequence[Region]) -> list[tuple[Extent, ...]]:
    groups: list[tuple[Extent, ...]] = []
    group: list[Extent] = []
    nbytes = 0
    for index in members:
        if group and nbytes + regions[index].nbytes > SHARED_FRAME_NBYTES:
            groups.append(tuple(group))
            group, nbytes = [], 0
        group.append(Extent(index, 0, regions[index].nbytes))
        nbytes += regions[index].nbytes
    return [*groups, tuple(group)] if group else groups
