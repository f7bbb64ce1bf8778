"""Frames -> one object: header, frames as they come, manifest, footer; in one pass, front to back.

Sets the frames' offsets. The object becomes visible when the storage's upload completes, and at no other moment.
"""

from __future__ import annotations

import time
from dataclasses import replace

from s4async.device.pool import Pool
from s4async.format import manifest as records
from s4async.format.object import FOOTER_NBYTES, HEADER_NBYTES, pack_header, pack_tail
from s4async.frame import Frame, align
from s4async.pipeline.encode import Encoded
from s4async.pipeline.flow import Meter
from s4async.storage.base import ObjectInfo, Upload

__all__ = ["ObjectWriter", "nbytes_bound"]

_MANIFEST_FRAME_NBYTES = 4096  # generous bound of one frame's record: 8 planes of 64 chunk sizes
_MANIFEST_REGION_NBYTES = 512


class ObjectWriter:
    """Writes one object through an upload. Used by one task."""

    def __init__(self, upload: Upload, manifest: records.Manifest, pool: Pool, meter: Meter) -> None:
        self._upload = upload
        self._manifest = manifest  # without frames
        self._pool = pool
        self._meter = meter
        self._frames: list[Frame] = []
        self._offset = align(HEADER_NBYTES)

    async def begin(self) -> None:
        await self._write([memoryview(pack_header(self._manifest.uuid).ljust(self._offset, b"\0"))])

    async def add(self, encoded: Encoded) -> None:
        """Append one frame and release its buffers."""
        frame = encoded.frame
        try:
            if frame.data:
                await self._write(list(frame.data))
        finally:
            encoded.release(self._pool)
        self._frames.append(records.place(frame, self._offset))
        self._offset += frame.stored_nbytes
        self._meter.add_frame(frame.dtype, frame.raw_nbytes, frame.stored_nbytes, encoded.seconds)

    async def finish(self) -> records.Manifest:
        """Write manifest and footer; the upload can then be completed."""
        done = replace(self._manifest, frames=tuple(self._frames))
        tail = pack_tail(records.encode(done), self._offset)
        self._meter.stored_nbytes += len(tail) + align(HEADER_NBYTES)
        await self._write([memoryview(tail)])
        return done

    async def complete(self) -> ObjectInfo:
        start = time.perf_counter()
        info = await self._upload.complete()
        self._meter.commit_s += time.perf_counter() - start
        return info

    async def _write(self, buffers: list[memoryview]) -> None:
        start = time.perf_counter()
        await self._upload.write(buffers)
        self._meter.upload_s += time.perf_counter() - start


def nbytes_bound(manifest: records.Manifest, frames: tuple[Frame, ...]) -> int:
    """An upper bound of the object's size, for storages that plan by it. Encoding never expands a frame."""
    raw = sum(align(frame.raw_nbytes) + 16 * 8 for frame in frames)
    names = sum(len(region.name) for region in manifest.regions) + _MANIFEST_REGION_NBYTES * len(manifest.regions)
    records_nbytes = _MANIFEST_FRAME_NBYTES * len(frames) + names + len(manifest.skeleton) + len(manifest.metadata)
    return raw + records_nbytes + HEADER_NBYTES + FOOTER_NBYTES + 4096
