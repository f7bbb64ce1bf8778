"""Stored frame -> raw bytes in their final place: check, decompress, join, check again. One frame, one thread.

Stored checksums are verified before decoding, raw checksums after it, on the memory that the tensor will own. Writes
only into the arrays given; what it needs besides comes from the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from s4async.codecs.base import Codec, find
from s4async.device.base import Bytes, Device
from s4async.device.pool import Pool
from s4async.errors import CorruptionError, FormatError, UnsupportedError
from s4async.format.manifest import CONSTANT, RAW
from s4async.format.planes import WHOLE, layout_of
from s4async.frame import Blob, Extent, Frame, Region, align
from s4async.trace import span

__all__ = ["Decoder"]


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decodes frames of one object with one device; safe to call from several threads. ``where`` is for messages."""

    device: Device
    pool: Pool
    regions: Sequence[Region]
    where: str

    def decode(self, frame: Frame, stored: Bytes, targets: Sequence[Bytes | None]) -> None:
        """``stored``: the frame's bytes as in the object. ``targets``: one array per extent, ``None`` where nobody
        wants it (only its checksum is verified). Raises ``CorruptionError`` naming the frame, plane and values."""
        with span("decode"):
            self._decode(frame, stored, targets)

    def _decode(self, frame: Frame, stored: Bytes, targets: Sequence[Bytes | None]) -> None:
        if frame.layout == WHOLE.id and frame.blobs[0].codec == RAW and len(targets) == 1:
            self._copy(frame, stored, targets[0])
            return
        layout = layout_of(frame.layout)
        blobs = self._blobs(frame, stored)
        whole = targets[0] if len(targets) == 1 else None
        leases: list[Bytes] = []
        try:
            planes = [self._plane(frame, blob, data, leases) for blob, data in zip(frame.blobs, blobs, strict=True)]
            if whole is None:
                whole = self.pool.lease(frame.raw_nbytes)
                leases.append(whole)
            self.device.join(planes, layout, whole)
            self._deliver(frame, whole, targets)
        finally:
            for lease in leases:
                self.pool.release(lease)

    def codec(self, id: str) -> Codec:
        """The codec, or ``UnsupportedError`` naming the object too."""
        try:
            return find(id, self.device.kind)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.where}: {error}") from error

    def derive(self, frame: Frame, high: Bytes, target: Bytes) -> None:
        """Fill a derived copy from the restored bytes of its source extent."""
        self.device.round_into(high, self.regions[frame.extents[0].region].dtype, target)
        self._verify(frame, frame.extents[0], target)

    def _copy(self, frame: Frame, stored: Bytes, target: Bytes | None) -> None:
        """A frame stored as it is: one checksum, which must be both the blob's and the extent's, and one copy."""
        (data,) = self._blobs(frame, stored)
        if frame.blobs[0].crc32c != frame.extents[0].crc32c:
            self._verify(frame, frame.extents[0], data)
        if target is not None:
            target[:] = data

    def _deliver(self, frame: Frame, whole: Bytes, targets: Sequence[Bytes | None]) -> None:
        at = 0
        for extent, target in zip(frame.extents, targets, strict=True):
            part = whole[at : at + extent.nbytes]
            if target is not None and target is not whole:
                target[:] = part
                part = target
            self._verify(frame, extent, part)
            at += extent.nbytes

    def _verify(self, frame: Frame, extent: Extent, raw: Bytes) -> None:
        actual = self.device.checksum(raw)
        if actual != extent.crc32c:
            raise CorruptionError(
                f"{self.where}: frame {frame.index}, region {self.regions[extent.region].name!r} bytes "
                f"[{extent.offset}, {extent.offset + extent.nbytes}): checksum of the restored bytes: expected "
                f"{extent.crc32c:#010x}, actual {actual:#010x}"
            )

    def _blobs(self, frame: Frame, stored: Bytes) -> list[Bytes]:
        """The blobs' bytes, checked, and the padding between them, which must be zero."""
        blobs, at = [], 0
        for blob in frame.blobs:
            data = stored[at : at + blob.nbytes]
            actual = self.device.checksum(data)
            if actual != blob.crc32c:
                raise CorruptionError(
                    f"{self.where}: frame {frame.index} at byte {frame.offset + at}, plane {blob.plane} of region "
                    f"{self.regions[frame.extents[0].region].name!r}: checksum of {blob.nbytes} stored bytes: "
                    f"expected {blob.crc32c:#010x}, actual {actual:#010x}"
                )
            if stored[at + blob.nbytes : at + align(blob.nbytes)].any():
                raise FormatError(f"{self.where}: frame {frame.index}: rule 'padding is zero' at plane {blob.plane}")
            blobs.append(data)
            at += align(blob.nbytes)
        return blobs

    def _plane(self, frame: Frame, blob: Blob, data: Bytes, leases: list[Bytes]) -> Bytes | int:
        if blob.codec == CONSTANT:
            return blob.params[0]
        if blob.codec == RAW:
            return data
        codec = self.codec(blob.codec)
        plane = self.pool.lease(blob.raw_nbytes)
        leases.append(plane)
        at = 0
        for i, size in enumerate(blob.chunk_sizes):
            chunk = plane[i * blob.chunk_nbytes : (i + 1) * blob.chunk_nbytes]
            part = data[at : at + size]
            if size == chunk.size:
                chunk[:] = part
            else:
                try:
                    codec.decode(part, blob.params, chunk)
                except CorruptionError as error:
                    error.add_note(f"{self.where}: frame {frame.index}, plane {blob.plane}, chunk {i}")
                    raise
            at += size
        return plane
