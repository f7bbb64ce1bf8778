"""The write pipeline: raw bytes > encode > upload, up to the moment before commit.

Frames are encoded by threads and written in order while later ones are still being encoded. ``save_object`` returns
when the object is durable and visible; any failure or cancellation before that leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

from s4async.device.base import Bytes, Device
from s4async.device.pool import Pool
from s4async.format.manifest import Manifest
from s4async.frame import Extent, Frame
from s4async.options import Options
from s4async.pipeline.derive import find_sources
from s4async.pipeline.encode import Encoded, Encoder
from s4async.pipeline.flow import Meter, in_thread, ordered
from s4async.pipeline.snapshot import Raw
from s4async.pipeline.upload import ObjectWriter, nbytes_bound
from s4async.storage.base import ObjectInfo, Storage

__all__ = ["SaveJob", "Tools", "save_object"]


@dataclass(frozen=True, slots=True)
class Tools:
    """What every pipeline works with: the device, its buffers and the threads."""

    device: Device
    pool: Pool
    threads: Executor
    options: Options


@dataclass(frozen=True, slots=True)
class SaveJob:
    """One object to write. ``manifest``: everything but the frames. ``committing`` is called, once, right before the
    object becomes visible; it may raise to stop that, and after it a cancellation comes too late."""

    storage: Storage
    key: str
    if_absent: bool
    manifest: Manifest
    frames: tuple[Frame, ...]
    raw: Raw
    meter: Meter
    committing: Callable[[], None]


async def save_object(job: SaveJob, tools: Tools) -> tuple[ObjectInfo, Manifest]:
    """Run the pipeline for one object. Raises ``StorageError`` kinds."""
    encoder = Encoder(tools.device, tools.pool, tools.options.chunk_bytes)
    sources = await in_thread(tools.threads, find_sources, job.manifest.regions, job.raw, tools.device)

    def encode(frame: Frame) -> Encoded:
        return encoder.encode(frame, job.raw.frame(frame), _source(frame, sources, job.raw))

    bound = nbytes_bound(job.manifest, job.frames)
    async with job.storage.open_upload(job.key, if_absent=job.if_absent, nbytes_bound=bound) as upload:
        writer = ObjectWriter(upload, job.manifest, tools.pool, job.meter)
        await writer.begin()
        results = ordered(job.frames, encode, lambda f: f.raw_nbytes, tools.threads, tools.options.window_bytes)
        async with aclosing(results):
            async for encoded in results:
                await writer.add(encoded)
        manifest = await writer.finish()
        job.committing()
        return await writer.complete(), manifest


def _source(frame: Frame, sources: dict[int, int], raw: Raw) -> tuple[Extent, Bytes] | None:
    """The float32 extent that this frame may be the rounding of."""
    first = frame.extents[0]
    if len(frame.extents) > 1 or first.region not in sources:
        return None
    extent = Extent(sources[first.region], 2 * first.offset, 2 * first.nbytes)
    return extent, raw.extent(extent)
