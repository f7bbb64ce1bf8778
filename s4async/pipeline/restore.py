"""The read pipeline: fetch > decode into the memory that the tensors will own.

``restore_regions`` fills the given memory; ``verify_object`` reads and checks every byte and keeps none. Derived copies
come last, from their source's restored bytes, or from a second read of them where nobody wanted the source.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from s4async.device.base import Bytes
from s4async.format.manifest import CONSTANT, RAW, Manifest
from s4async.format.planes import ROUNDED
from s4async.frame import Extent, Frame
from s4async.pipeline.decode import Decoder
from s4async.pipeline.fetch import Reach, reaches
from s4async.pipeline.flow import Meter, in_thread, spread
from s4async.pipeline.save import Tools
from s4async.storage.base import ObjectReader

__all__ = ["restore_regions", "verify_object"]

_LEASE_STEP = 1 << 20  # reads are leased in whole MiB, so that buffers of slightly different reads are shared


async def restore_regions(
    reader: ObjectReader, manifest: Manifest, memory: Mapping[int, Bytes], tools: Tools, meter: Meter, where: str
) -> None:
    """Fill ``memory[region]`` (exactly the region's size) for every region in it; reads nothing else but sources.

    Raises ``CorruptionError`` and ``StorageError`` kinds; memory may be partly filled then.
    """
    wanted = [f for f in manifest.frames if any(e.region in memory for e in f.extents)]
    await _Restore(reader, manifest, memory, tools, meter, where).run(wanted)


async def verify_object(reader: ObjectReader, manifest: Manifest, tools: Tools, meter: Meter, where: str) -> None:
    """Read every frame, check stored and raw checksums. Raises ``CorruptionError`` for the first that differs."""
    await _Restore(reader, manifest, {}, tools, meter, where).run(list(manifest.frames))


class _Restore:
    """One run over the frames of an object; lives on the engine's loop."""

    def __init__(
        self,
        reader: ObjectReader,
        manifest: Manifest,
        memory: Mapping[int, Bytes],
        tools: Tools,
        meter: Meter,
        where: str,
    ) -> None:
        self.reader = reader
        self.manifest = manifest
        self.memory = memory
        self.tools = tools
        self.meter = meter
        self.decoder = Decoder(tools.device, tools.pool, manifest.regions, where)

    async def run(self, frames: list[Frame]) -> None:
        for codec in {blob.codec for frame in frames for blob in frame.blobs} - {RAW, CONSTANT}:
            self.decoder.codec(codec)  # an unknown one is told before anything is overwritten
        self.meter.frames = len(frames)
        self.meter.raw_nbytes = sum(frame.raw_nbytes for frame in frames)
        options = self.tools.options
        runners = max(2, options.window_bytes // max(options.read_bytes, options.frame_bytes))
        coded = [frame for frame in frames if frame.layout != ROUNDED]
        await spread(reaches(coded, options.read_bytes), self._reach, runners)
        await spread((f for f in frames if f.layout == ROUNDED), self._derived, options.worker_threads + 1)

    async def _reach(self, reach: Reach) -> None:
        buffer = await self._fetch(reach)
        try:
            await in_thread(self.tools.threads, self._decode, reach, buffer)
        finally:
            self.tools.pool.release(buffer)
        for frame in reach.frames:
            self.meter.add_frame(frame.dtype, frame.raw_nbytes, frame.stored_nbytes, 0.0)

    def _decode(self, reach: Reach, buffer: Bytes) -> None:
        """In a thread: all frames of one read."""
        for frame in reach.frames:
            targets = [self._target(extent) for extent in frame.extents]
            self.decoder.decode(frame, reach.stored(frame, buffer), targets)

    async def _derived(self, frame: Frame) -> None:
        if frame.source is None:
            return
        high = self._target(frame.source)
        if high is None:
            high = await self._source(frame.source)
        low = self._target(frame.extents[0])
        if low is None:
            low = np.empty(frame.raw_nbytes, np.uint8)
        await in_thread(self.tools.threads, self.decoder.derive, frame, high, low)
        self.meter.add_frame(frame.dtype, frame.raw_nbytes, 0, 0.0)

    async def _source(self, source: Extent) -> Bytes:
        """The bytes of an extent that is not in memory, from the frames that hold it."""
        whole = np.empty(source.nbytes, np.uint8)
        for frame in self._frames_of(source):
            parts: list[Bytes | None] = [
                np.empty(e.nbytes, np.uint8) if e.region == source.region else None for e in frame.extents
            ]
            (reach,) = reaches([frame], self.tools.options.read_bytes)
            buffer = await self._fetch(reach)
            try:
                await in_thread(self.tools.threads, self.decoder.decode, frame, reach.stored(frame, buffer), parts)
            finally:
                self.tools.pool.release(buffer)
            for extent, part in zip(frame.extents, parts, strict=True):
                if part is not None:
                    lo, hi = max(extent.offset, source.offset), min(_end(extent), _end(source))
                    if lo < hi:
                        whole[lo - source.offset : hi - source.offset] = part[lo - extent.offset : hi - extent.offset]
        return whole

    def _frames_of(self, source: Extent) -> list[Frame]:
        starts, frames = self._index[source.region]
        first = max(0, bisect_right(starts, source.offset) - 1)
        return frames[first : bisect_right(starts, _end(source) - 1)]

    @cached_property
    def _index(self) -> dict[int, tuple[list[int], list[Frame]]]:
        """Region -> where in it its frames begin, ascending, and those frames."""
        index: dict[int, tuple[list[int], list[Frame]]] = {}
        for frame in self.manifest.frames:
            for extent in frame.extents:
                starts, frames = index.setdefault(extent.region, ([], []))
                starts.append(extent.offset)
                frames.append(frame)
        return index

    async def _fetch(self, reach: Reach) -> Bytes:
        """A leased buffer whose first bytes are the reach's."""
        buffer = self.tools.pool.lease(-(-reach.nbytes // _LEASE_STEP) * _LEASE_STEP)
        try:
            if reach.nbytes:
                await self.reader.get_into(reach.offset, buffer.data[: reach.nbytes])
        except BaseException:
            self.tools.pool.release(buffer)
            raise
        return buffer

    def _target(self, extent: Extent) -> Bytes | None:
        memory = self.memory.get(extent.region)
        return None if memory is None else memory[extent.offset : _end(extent)]


def _end(extent: Extent) -> int:
    return extent.offset + extent.nbytes
