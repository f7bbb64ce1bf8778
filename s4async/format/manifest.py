"""Manifest: the record of one object's regions and frames, to bytes and back. FORMAT.md, "Manifest".

Pure: no torch, no I/O. ``decode`` trusts nothing: every rule of FORMAT.md that a manifest alone can break is checked
here, by name, before anybody allocates by what it says; offsets are derived, so holes and overlaps cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from s4async.errors import FormatError, UnsupportedError
from s4async.format.object import HEADER_NBYTES, UUID_NBYTES, Header
from s4async.format.planes import ROUNDED, dtype_of, layout_of
from s4async.frame import Blob, Extent, Frame, Region, align

__all__ = ["CONSTANT", "MAX_FRAME_NBYTES", "MAX_REGION_NBYTES", "RAW", "Manifest", "decode", "encode", "place"]

RAW = "raw"  # codec id: the plane as it is
CONSTANT = "constant"  # codec id: every byte of the plane is params[0]; no stored bytes
MAX_REGION_NBYTES = 1 << 50
MAX_FRAME_NBYTES = 1 << 30  # raw; what a reader may have to hold to check one frame
KNOWN_FEATURES: frozenset[str] = frozenset()  # what a later writer may require of a reader; "delta" will be the first
_CRC_LIMIT = 1 << 32

T = TypeVar("T")
_Info = dict[str, str | int | float | bool | None]
_WireRegion = tuple[str, str, int, str]
_WireBlob = tuple[int, str, int, int, int, int, list[int], bytes]
_WireFrame = tuple[str, str, str, tuple[int, int] | None, list[tuple[int, int, int, int]], list[_WireBlob]]


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    uuid: bytes
    features: list[str]
    regions: list[_WireRegion]
    frames: list[_WireFrame]
    skeleton: bytes
    info: _Info
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """``skeleton``: the state's tree, opaque here. ``info``: who wrote it and when. ``metadata``: the caller's JSON."""

    uuid: bytes
    regions: tuple[Region, ...]
    frames: tuple[Frame, ...]
    skeleton: bytes
    info: _Info = field(default_factory=dict)
    metadata: bytes = b"{}"
    features: tuple[str, ...] = ()
    version: int = 0  # of the format, from the header; 0 until written

    @property
    def raw_nbytes(self) -> int:
        return sum(region.nbytes for region in self.regions)

    @property
    def stored_nbytes(self) -> int:
        """Bytes of all blobs, without header, manifest and footer."""
        return sum(frame.stored_nbytes for frame in self.frames)


def place(frame: Frame, offset: int) -> Frame:
    """The frame at ``offset`` in the object, without its bytes: what a manifest keeps."""
    return replace(frame, offset=offset, data=None)


def encode(manifest: Manifest) -> bytes:
    """msgpack of the manifest, positional. Frames must be in order and placed without gaps."""
    wire = _Wire(
        uuid=manifest.uuid,
        features=list(manifest.features),
        regions=[(r.name, r.dtype, r.nbytes, r.location) for r in manifest.regions],
        frames=[_wire_frame(f) for f in manifest.frames],
        skeleton=manifest.skeleton,
        info=manifest.info,
        metadata=manifest.metadata,
    )
    return msgspec.msgpack.encode(wire)


def _wire_frame(frame: Frame) -> _WireFrame:
    source = None if frame.source is None else (frame.source.region, frame.source.offset)
    extents = [(e.region, e.offset, e.nbytes, e.crc32c) for e in frame.extents]
    blobs: list[_WireBlob] = [
        (b.plane, b.codec, b.raw_nbytes, b.nbytes, b.crc32c, b.chunk_nbytes, list(b.chunk_sizes), b.params)
        for b in frame.blobs
    ]
    return (frame.dtype, frame.layout, frame.transform, source, extents, blobs)


def decode(data: bytes, header: Header, end: int, where: str) -> Manifest:
    """Check and build. ``header``: of the same object. ``end``: where the last frame must end (the manifest's offset).

    Raises ``FormatError`` naming the broken rule, ``UnsupportedError`` for a feature, layout or transform that this
    build does not know.
    """
    try:
        wire = msgspec.msgpack.decode(data, type=_Wire)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"{where}: the manifest breaks its schema: {error}") from error
    unknown = sorted(set(wire.features) - KNOWN_FEATURES)
    if unknown:
        raise UnsupportedError(f"{where}: needs {', '.join(unknown)}, which this build does not know; upgrade s4async")
    if wire.uuid != header.uuid or len(wire.uuid) != UUID_NBYTES:
        raise FormatError(f"{where}: rule 'one uuid': header {header.uuid.hex()}, manifest {wire.uuid.hex()}")
    regions = tuple(_region(r, i, where) for i, r in enumerate(wire.regions))
    frames: list[Frame] = []
    covered = [0] * len(regions)
    offset = align(HEADER_NBYTES)
    for index, record in enumerate(wire.frames):
        frame = _frame(record, index, offset, regions, f"{where}: frame {index}")
        for extent in frame.extents:
            if extent.offset != covered[extent.region]:
                _broken(where, index, "extents cover each region once, in order", extent)
            covered[extent.region] += extent.nbytes
        frames.append(frame)
        offset += frame.stored_nbytes
    for region, reached in zip(regions, covered, strict=True):
        if reached != region.nbytes:
            raise FormatError(f"{where}: region {region.name!r}: frames cover {reached} of {region.nbytes} bytes")
    if offset != end:
        raise FormatError(f"{where}: rule 'frames fill the object up to the manifest': end at {offset}, not {end}")
    return Manifest(
        wire.uuid,
        regions,
        tuple(frames),
        wire.skeleton,
        wire.info,
        wire.metadata,
        tuple(wire.features),
        header.version,
    )


def _region(record: _WireRegion, index: int, where: str) -> Region:
    name, dtype, nbytes, location = record
    _known(dtype_of, dtype, f"{where}: region {index} {name!r}")
    if not 0 <= nbytes <= MAX_REGION_NBYTES:
        raise FormatError(f"{where}: region {index} {name!r}: {nbytes} bytes, the limit is {MAX_REGION_NBYTES}")
    return Region(name, dtype, nbytes, location)


def _frame(record: _WireFrame, index: int, offset: int, regions: tuple[Region, ...], where: str) -> Frame:
    dtype, layout_id, transform, source_record, extent_records, blob_records = record
    _known(dtype_of, dtype, where)
    if transform:
        raise UnsupportedError(f"{where}: transform {transform!r} is unknown to this build; upgrade s4async")
    if not extent_records:
        raise FormatError(f"{where}: rule 'a frame has extents'")
    extents = tuple(_extent(e, regions, where) for e in extent_records)
    raw_nbytes = sum(e.nbytes for e in extents)
    if raw_nbytes > MAX_FRAME_NBYTES:
        raise FormatError(f"{where}: a frame of {raw_nbytes} raw bytes, the limit is {MAX_FRAME_NBYTES}")
    if layout_id == ROUNDED:
        source = _source(source_record, extents, blob_records, regions, where)
        return Frame(index, dtype, extents, ROUNDED, transform, source, (), offset)
    if source_record is not None:
        raise FormatError(f"{where}: rule 'only a derived frame has a source'")
    layout = _known(layout_of, layout_id, where)
    if any(e.nbytes % layout.itemsize or e.offset % layout.itemsize for e in extents):
        raise FormatError(f"{where}: rule 'extents hold whole elements': layout {layout_id}, extents {extents}")
    if [b[0] for b in blob_records] != list(range(layout.itemsize)):
        raise FormatError(f"{where}: rule 'one blob per plane, in order': planes {[b[0] for b in blob_records]}")
    plane_nbytes = raw_nbytes // layout.itemsize
    blobs = tuple(_blob(b, plane_nbytes, where) for b in blob_records)
    return Frame(index, dtype, extents, layout_id, transform, None, blobs, offset)


def _extent(record: tuple[int, int, int, int], regions: tuple[Region, ...], where: str) -> Extent:
    region, offset, nbytes, crc = record
    if not 0 <= region < len(regions):
        raise FormatError(f"{where}: extent of region {region}, there are {len(regions)}")
    if not (offset >= 0 and 0 < nbytes <= regions[region].nbytes - offset):
        raise FormatError(
            f"{where}: extent [{offset}, {offset + nbytes}) leaves region {regions[region].name!r} of "
            f"{regions[region].nbytes} bytes"
        )
    _check_crc(crc, where)
    return Extent(region, offset, nbytes, crc)


def _source(
    record: tuple[int, int] | None,
    extents: tuple[Extent, ...],
    blobs: list[_WireBlob],
    regions: tuple[Region, ...],
    where: str,
) -> Extent:
    if record is None or blobs or len(extents) != 1:
        raise FormatError(f"{where}: rule 'a derived frame has one extent, one source and no blobs'")
    low = regions[extents[0].region]
    source = _extent((record[0], record[1], 2 * extents[0].nbytes, 0), regions, where)
    high = regions[source.region]
    if low.dtype not in ("bfloat16", "float16") or high.dtype != "float32" or source.offset != 2 * extents[0].offset:
        raise FormatError(
            f"{where}: rule 'a derived copy is bfloat16 or float16, its source float32 at twice the offset': "
            f"{low.dtype} at {extents[0].offset} from {high.dtype} at {source.offset}"
        )
    return source


def _blob(record: _WireBlob, plane_nbytes: int, where: str) -> Blob:
    plane, codec, raw_nbytes, nbytes, crc, chunk_nbytes, sizes, params = record
    where = f"{where}: plane {plane}"
    if raw_nbytes != plane_nbytes or not 0 <= nbytes <= raw_nbytes:
        raise FormatError(f"{where}: {nbytes} stored for {raw_nbytes} raw bytes; the plane has {plane_nbytes}")
    _check_crc(crc, where)
    if codec == CONSTANT:
        good = nbytes == 0 and len(params) == 1 and not sizes and not chunk_nbytes
    elif codec == RAW:
        good = nbytes == raw_nbytes and not sizes and not chunk_nbytes and not params
    else:
        good = chunk_nbytes > 0 and len(sizes) == -(-raw_nbytes // chunk_nbytes) and sum(sizes) == nbytes
        good = good and all(0 < size <= chunk_nbytes for size in sizes[:-1])
        good = good and 0 < sizes[-1] <= raw_nbytes - chunk_nbytes * (len(sizes) - 1)
    if not good:
        raise FormatError(
            f"{where}: rule 'chunk sizes fit the blob': codec {codec!r}, {nbytes} of {raw_nbytes} bytes, chunks of "
            f"{chunk_nbytes}, {len(sizes)} sizes"
        )
    return Blob(plane, codec, raw_nbytes, nbytes, crc, chunk_nbytes, tuple(sizes), params)


def _known(find: Callable[[str], T], name: str, where: str) -> T:
    try:
        return find(name)
    except UnsupportedError as error:
        raise UnsupportedError(f"{where}: {error}") from error


def _check_crc(crc: int, where: str) -> None:
    if not 0 <= crc < _CRC_LIMIT:
        raise FormatError(f"{where}: checksum {crc} is not 32 bits")


def _broken(where: str, index: int, rule: str, what: object) -> None:
    raise FormatError(f"{where}: frame {index}: rule '{rule}': {what}")
