"""Objects taken apart and put together again with every checksum right: what a careful attacker writes.

A ``Forged`` is plain lists, as they are on the wire, so that anything can be put anywhere; the package's own records
would refuse most of it. ``sealed`` checks nothing.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import crc32c
import msgspec

from s4async.format.object import FOOTER_NBYTES, HEADER_NBYTES, parse_footer, parse_header, unpack_manifest

__all__ = ["BLOBS", "EXTENTS", "FRAMES", "REGIONS", "SKELETON", "Forged", "encode", "seal_record", "take_apart"]

UUID, FEATURES, REGIONS, FRAMES, SKELETON, INFO, METADATA = range(7)  # positions in a manifest
DTYPE, LAYOUT, TRANSFORM, SOURCE, EXTENTS, BLOBS = range(6)  # in a frame record

HEAD, TAIL = b"\x89S4A\r\n\x1a\n", b"S4A\x1aend\n"


def encode(value: Any) -> bytes:
    """msgpack, integers of more than 64 bits cut to what it can hold, nesting without end made plain nesting."""
    try:
        return msgspec.msgpack.encode(value)
    except RecursionError:
        return b"\x91" * 5000 + b"\xc0"
    except OverflowError:
        return msgspec.msgpack.encode(_cut(value))


def _cut(value: Any) -> Any:
    if type(value) is int:
        return min(max(value, -(1 << 63)), (1 << 64) - 1)
    if isinstance(value, list | tuple):
        return [_cut(part) for part in value]
    if isinstance(value, dict):
        return {key: _cut(part) for key, part in value.items()}
    return value


@dataclass
class Forged:
    """``manifest``: its seven fields. ``skeleton``: its four columns, or bytes that are no document. ``frames``: the
    object's bytes between header and manifest."""

    uuid: bytes
    frames: bytes
    manifest: list[Any]
    skeleton: Any
    version: int = 1
    reader: int = 1

    def sealed(self) -> bytes:
        """The object, with sizes and checksums of header, manifest and footer as they must be."""
        fields = list(self.manifest)
        if len(fields) > SKELETON:
            skeleton = self.skeleton
            fields[SKELETON] = skeleton if isinstance(skeleton, bytes) else encode(skeleton)
        return self.header() + self.frames + self.tail(encode(fields))

    def header(self) -> bytes:
        head = struct.pack("<8sHH16s", HEAD, self.version, self.reader, self.uuid)
        return head + struct.pack("<I", crc32c.crc32c(head))

    def tail(self, manifest: bytes, raw_nbytes: int | None = None, stored: bytes | None = None) -> bytes:
        """Manifest and footer. ``raw_nbytes``, ``stored``: lies about the manifest, or another stream for it."""
        stored = zlib.compress(manifest, 1) if stored is None else stored
        size = len(manifest) if raw_nbytes is None else raw_nbytes
        place = (HEADER_NBYTES + len(self.frames), len(stored), size, crc32c.crc32c(stored))
        return stored + footer(*place, self.version, self.reader)

    def blob_at(self, frame: int, blob: int) -> tuple[int, int]:
        """Where a blob begins and ends in ``frames``."""
        at = 0
        for index, record in enumerate(self.manifest[FRAMES]):
            for plane, found in enumerate(record[BLOBS]):
                if (index, plane) == (frame, blob):
                    return at, at + found[3]
                at += -(-found[3] // 16) * 16
        raise IndexError(frame, blob)

    def replace_blob(self, frame: int, blob: int, chunks: list[bytes]) -> None:
        """Other stored chunks for one blob: sizes, checksum and padding follow."""
        start, end = self.blob_at(frame, blob)
        data = b"".join(chunks)
        padded = data + bytes(-len(data) % 16)
        self.frames = self.frames[:start] + padded + self.frames[start + -(-(end - start) // 16) * 16 :]
        record = self.manifest[FRAMES][frame][BLOBS][blob]
        record[3:5] = [len(data), crc32c.crc32c(data)]
        record[6] = [len(chunk) for chunk in chunks]


def footer(offset: int, nbytes: int, raw_nbytes: int, crc: int, version: int = 1, reader: int = 1) -> bytes:
    """Any footer, its own checksum right."""
    head = struct.pack("<QQQIHH", offset, nbytes, raw_nbytes, crc, version, reader)
    return head + struct.pack("<I4x8s", crc32c.crc32c(head), TAIL)


def take_apart(data: bytes) -> Forged:
    """A good object's parts. Raises ``S4AsyncError`` or ``msgspec.DecodeError`` for one that is not."""
    header = parse_header(data[:HEADER_NBYTES], "seed")
    foot = parse_footer(data[-FOOTER_NBYTES:], len(data), "seed")
    raw = unpack_manifest(data[foot.offset : foot.offset + foot.nbytes], foot, "seed")
    manifest = msgspec.msgpack.decode(raw)
    skeleton = manifest[SKELETON]
    with contextlib.suppress(msgspec.DecodeError, ValueError, TypeError, RecursionError):
        skeleton = msgspec.msgpack.decode(skeleton)
    return Forged(header.uuid, data[HEADER_NBYTES : foot.offset], manifest, skeleton)


def seal_record(fields: dict[str, Any]) -> bytes:
    """A commit record with its checksum right."""
    checked = msgspec.json.encode({**fields, "crc32c": 0})
    return msgspec.json.encode({**fields, "crc32c": crc32c.crc32c(checked)})
