"""Raw frame -> blobs: checksum, sample, split, compress. The work of one frame, done by one thread.

Passes over the raw bytes: checksum (reads), split (reads, writes planes), then each coded plane chunk is compressed
and its output checksummed while it is in cache. A frame that does not pay is not split: its own bytes are stored.
Knows protocols only; never a file, never a loop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from s4async.codecs.base import find
from s4async.codecs.policy import Coded, Constant, PlaneChoice, all_raw, choose
from s4async.device.base import Bytes, Device
from s4async.device.pool import Pool
from s4async.format.manifest import CONSTANT, RAW
from s4async.format.planes import ROUNDED, WHOLE, dtype_of
from s4async.frame import ALIGNMENT, Blob, Extent, Frame
from s4async.trace import span

__all__ = ["Encoded", "Encoder"]

_PADDING = memoryview(bytes(ALIGNMENT))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A frame with its stored bytes. ``lease``: the planes' memory; ``release`` it once the bytes are written."""

    frame: Frame
    lease: Bytes | None
    seconds: float

    def release(self, pool: Pool) -> None:
        if self.lease is not None:
            pool.release(self.lease)


class Encoder:
    """Encodes frames with one device; safe to call from several threads."""

    def __init__(self, device: Device, pool: Pool, chunk_bytes: int) -> None:
        self._device = device
        self._pool = pool
        self._chunk_bytes = chunk_bytes

    def encode(self, frame: Frame, raw: Bytes, source: tuple[Extent, Bytes] | None = None) -> Encoded:
        """``raw``: the bytes of the frame's extents, in order. ``source``: float32 bytes that it may be rounded from,
        and where they lie."""
        start = time.perf_counter()
        with span("encode"):
            frame, lease = self._encode(frame, raw, source)
        return Encoded(frame, lease, time.perf_counter() - start)

    def _encode(self, frame: Frame, raw: Bytes, source: tuple[Extent, Bytes] | None) -> tuple[Frame, Bytes | None]:
        frame = replace(frame, extents=self._checked(frame.extents, raw))
        if source is not None and self._device.is_rounding(raw, source[1], frame.dtype):
            return replace(frame, layout=ROUNDED, source=source[0], data=()), None
        layout = dtype_of(frame.dtype).layout
        histograms = self._device.sample(raw, layout)
        choices = choose(histograms, layout, raw.size // layout.itemsize)
        if all_raw(choices):
            return replace(frame, layout=WHOLE.id, blobs=(self._whole(frame, raw),), data=_padded([raw.data])), None
        lease = None
        planes: Bytes = raw.reshape(1, -1)
        if layout.itemsize > 1:
            lease = self._pool.lease(raw.size)
            planes = lease.reshape(layout.itemsize, -1)
            self._device.split(raw, layout, planes)
        blobs: list[Blob] = []
        data: list[memoryview] = []
        for i, plane in enumerate(planes):
            blob, buffers = self._plane(i, plane, choices[i], histograms[i])
            blobs.append(blob)
            data += _padded(buffers)
        return replace(frame, layout=layout.id, blobs=tuple(blobs), data=tuple(data)), lease

    def _whole(self, frame: Frame, raw: Bytes) -> Blob:
        """The frame's bytes as its one blob; where it has one extent their checksum is known."""
        crc = frame.extents[0].crc32c if len(frame.extents) == 1 else self._device.checksum(raw)
        return Blob(0, RAW, raw.size, raw.size, crc)

    def _checked(self, extents: tuple[Extent, ...], raw: Bytes) -> tuple[Extent, ...]:
        checked, at = [], 0
        for extent in extents:
            checked.append(replace(extent, crc32c=self._device.checksum(raw[at : at + extent.nbytes])))
            at += extent.nbytes
        return tuple(checked)

    def _plane(
        self, index: int, plane: Bytes, choice: PlaneChoice, histogram: np.ndarray
    ) -> tuple[Blob, list[memoryview]]:
        if isinstance(choice, Constant):
            value = self._device.constant(plane)
            if value is not None:
                return Blob(index, CONSTANT, plane.size, 0, 0, params=bytes([value])), []
            choice = choice.otherwise
        if isinstance(choice, Coded):
            coded = self._coded(index, plane, choice.codec, histogram)
            if coded is not None:
                return coded
        return Blob(index, RAW, plane.size, plane.size, self._device.checksum(plane)), [plane.data]

    def _coded(
        self, index: int, plane: Bytes, codec_id: str, histogram: np.ndarray
    ) -> tuple[Blob, list[memoryview]] | None:
        """The plane chunk by chunk, each stored raw if coding does not shrink it; ``None`` if none shrank."""
        codec = find(codec_id, self._device.kind)
        params = codec.params(histogram)
        buffers: list[memoryview] = []
        crc = 0
        for at in range(0, plane.size, self._chunk_bytes):
            chunk = plane[at : at + self._chunk_bytes]
            stored: Bytes = np.frombuffer(codec.encode(chunk, params), np.uint8)
            if stored.size >= chunk.size:
                stored = chunk
            crc = self._device.checksum(stored, crc)
            buffers.append(stored.data)
        sizes = tuple(len(buffer) for buffer in buffers)
        if sum(sizes) + len(params) >= plane.size:
            return None
        return Blob(index, codec_id, plane.size, sum(sizes), crc, self._chunk_bytes, sizes, params), buffers


def _padded(buffers: list[memoryview]) -> list[memoryview]:
    """The buffers of one blob and the zeros up to the next blob."""
    odd = sum(len(buffer) for buffer in buffers) % ALIGNMENT
    return [*buffers, _PADDING[: ALIGNMENT - odd]] if odd else buffers
