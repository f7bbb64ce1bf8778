"""State -> consistent copy in memory, on the caller's thread: once it returns, training may change anything.

The copy goes into one arena, laid out in the order of the frames, so that every frame is one run of bytes and small
tensors need no gathering later. The arena is kept from save to save, because fresh memory costs more than the copy.
``Live`` is the same interface over the caller's own memory, for the blocking ``save``, which needs no copy at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from s4async.device.base import Bytes
from s4async.device.pool import Arena
from s4async.errors import BudgetError
from s4async.frame import Extent, Frame
from s4async.state import Source
from s4async.trace import span

__all__ = ["Live", "Raw", "Snapshot"]

_ALIGNMENT = 64  # bytes; a cache line, and more than any element


class Raw(Protocol):
    """Raw bytes of regions, readable from any thread until released."""

    def frame(self, frame: Frame) -> Bytes:
        """The frame's raw bytes, one run."""
        ...

    def extent(self, extent: Extent) -> Bytes:
        """The bytes of an extent."""
        ...

    def release(self) -> None:
        """The bytes are no longer needed; idempotent."""
        ...


class Snapshot:
    """A copy of the sources in one arena."""

    def __init__(self, sources: Sequence[Source], frames: Sequence[Frame], arena: Arena) -> None:
        starts = [0] * len(sources)  # of each region in the arena
        self._frames = [0] * len(frames)  # start of each frame
        at = 0
        for frame in frames:
            at = -(-at // _ALIGNMENT) * _ALIGNMENT
            self._frames[frame.index] = at
            for extent in frame.extents:
                if extent.offset == 0:
                    starts[extent.region] = at
                at += extent.nbytes
        self._starts = starts
        self._owner = arena
        try:
            self._arena: Bytes | None = arena.lease(at)
        except MemoryError as error:
            raise BudgetError(f"no memory for a snapshot of {at} bytes; save() needs none") from error
        with span("snapshot"):
            _copy(sources, torch.from_numpy(self._arena), starts)

    def frame(self, frame: Frame) -> Bytes:
        return self._run(self._frames[frame.index], frame.raw_nbytes)

    def extent(self, extent: Extent) -> Bytes:
        return self._run(self._starts[extent.region] + extent.offset, extent.nbytes)

    def release(self) -> None:
        arena, self._arena = self._arena, None
        if arena is not None:
            self._owner.release(arena)

    def _run(self, at: int, nbytes: int) -> Bytes:
        if self._arena is None:
            raise BudgetError("the snapshot was released while a frame still needed it")
        return self._arena[at : at + nbytes]


def _copy(sources: Sequence[Source], arena: torch.Tensor, starts: Sequence[int]) -> None:
    """One multi-threaded copy per region, by torch, which knows strides and devices."""
    targets, tensors = [], []
    for source, start in zip(sources, starts, strict=True):
        tensor = source.tensor
        if tensor.numel():
            target = arena[start : start + source.region.nbytes]
            if tensor.dtype != torch.uint8 or tensor.dim() != 1:
                target = target.view(tensor.dtype).view(tensor.shape)
            targets.append(target)
            tensors.append(tensor)
    if targets:  # torch refuses an empty list
        with torch.no_grad():
            torch._foreach_copy_(targets, tensors)


class Live:
    """The caller's own memory where it is dense and on the host, a private copy elsewhere."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._regions = [_host_bytes(source) for source in sources]

    def frame(self, frame: Frame) -> Bytes:
        parts = [self.extent(extent) for extent in frame.extents]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def extent(self, extent: Extent) -> Bytes:
        return self._regions[extent.region][extent.offset : extent.offset + extent.nbytes]

    def release(self) -> None:
        self._regions = []


def _host_bytes(source: Source) -> Bytes:
    tensor = source.tensor.cpu().contiguous()
    flat: Bytes = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    return flat
