"""The two ends of an object: header and footer, and the version gate. FORMAT.md, "Layout".

Knows bytes and nothing else: no frames, no I/O. The header is checked before anything else is parsed, so that a newer
format is told apart from a damaged file. Every limit is checked before memory is allocated.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import crc32c

from s4async.errors import CorruptionError, FormatError, UnsupportedError

__all__ = [
    "FOOTER_NBYTES",
    "FORMAT_VERSION",
    "HEADER_NBYTES",
    "MAX_MANIFEST_NBYTES",
    "READER_VERSION",
    "Footer",
    "Header",
    "pack_header",
    "pack_tail",
    "parse_footer",
    "parse_header",
    "unpack_manifest",
]

FORMAT_VERSION = 1  # what this build writes, and the newest that it reads
READER_VERSION = 1  # the oldest format version that may read what this build writes (never above FORMAT_VERSION)

HEAD_MAGIC = b"\x89S4A\r\n\x1a\n"  # as PNG's: high bit, name, line ends, so that text-mode transfers break it visibly
TAIL_MAGIC = b"S4A\x1aend\n"
UUID_NBYTES = 16
MAX_MANIFEST_NBYTES = 128 << 20  # decompressed; 1 TB in 4 MiB frames needs about 30 MB

_HEADER = struct.Struct("<8sHH16sI")  # magic, version, reader, uuid, CRC32C of what precedes
_FOOTER = struct.Struct(
    "<QQQIHHI4x8s"
)  # offset, nbytes, raw nbytes, CRC32C of the manifest; version, reader; CRC; magic
HEADER_NBYTES = _HEADER.size
FOOTER_NBYTES = _FOOTER.size
_FOOTER_CHECKED = struct.calcsize("<QQQIHH")

_FOREIGN = (  # what people hand in by mistake, by its first bytes
    (b"PK\x03\x04", "a zip file, as torch.save writes: read it with torch.load"),
    (b"\x80\x02", "a pickle: read it with torch.load or pickle.load"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x28\xb5\x2f\xfd", "a zstd file"),
)


@dataclass(frozen=True, slots=True)
class Header:
    version: int
    uuid: bytes


@dataclass(frozen=True, slots=True)
class Footer:
    """Where the manifest lies: ``offset`` and ``nbytes`` as stored, ``raw_nbytes`` once decompressed."""

    offset: int
    nbytes: int
    raw_nbytes: int
    crc32c: int


def pack_header(uuid: bytes) -> bytes:
    """The first ``HEADER_NBYTES`` bytes of an object. ``uuid``: 16 bytes, different in every save."""
    head = _HEADER.pack(HEAD_MAGIC, FORMAT_VERSION, _reader_version(), uuid, 0)[:-4]
    return head + struct.pack("<I", crc32c.crc32c(head))


def pack_tail(manifest: bytes, offset: int) -> bytes:
    """The compressed manifest and the footer; ``offset`` is where they will stand in the object."""
    stored = zlib.compress(manifest, 6)
    head = _FOOTER.pack(
        offset, len(stored), len(manifest), crc32c.crc32c(stored), FORMAT_VERSION, _reader_version(), 0, TAIL_MAGIC
    )
    check = struct.pack("<I", crc32c.crc32c(head[:_FOOTER_CHECKED]))
    return stored + head[:_FOOTER_CHECKED] + check + head[_FOOTER_CHECKED + 4 :]


def parse_header(data: bytes, where: str) -> Header:
    """Check the first bytes of an object. Raises ``FormatError`` (not one of ours), ``UnsupportedError`` (newer)."""
    if not data:
        raise FormatError(f"{where}: the file is empty, so it is not an s4async object")
    if data[:8] != HEAD_MAGIC[: len(data)]:
        raise FormatError(f"{where}: not an s4async object; {_guess(data)}")
    if len(data) < HEADER_NBYTES:
        raise FormatError(f"{where}: truncated: {len(data)} bytes, a header has {HEADER_NBYTES}")
    _, version, reader, uuid, crc = _HEADER.unpack(data[:HEADER_NBYTES])
    actual = crc32c.crc32c(data[: HEADER_NBYTES - 4])
    if crc != actual:
        raise CorruptionError(f"{where}: header checksum: expected {crc:#010x}, actual {actual:#010x}")
    _gate(version, reader, where)
    return Header(version, uuid)


def parse_footer(data: bytes, object_nbytes: int, where: str) -> Footer:
    """Check the last ``FOOTER_NBYTES`` of an object of ``object_nbytes``. Raises ``IntegrityError`` kinds."""
    if object_nbytes < HEADER_NBYTES + FOOTER_NBYTES or len(data) != FOOTER_NBYTES:
        raise FormatError(f"{where}: truncated: {object_nbytes} bytes cannot hold a header and a footer")
    offset, nbytes, raw_nbytes, manifest_crc, version, reader, crc, magic = _FOOTER.unpack(data)
    if magic != TAIL_MAGIC:
        raise FormatError(f"{where}: the end mark is missing at byte {object_nbytes - 8}: truncated, or bytes appended")
    actual = crc32c.crc32c(data[:_FOOTER_CHECKED])
    if crc != actual or data[_FOOTER_CHECKED + 4 : _FOOTER_CHECKED + 8] != bytes(4):
        raise CorruptionError(f"{where}: footer checksum: expected {crc:#010x}, actual {actual:#010x}")
    _gate(version, reader, where)
    if offset + nbytes + FOOTER_NBYTES != object_nbytes or offset < HEADER_NBYTES:
        raise FormatError(
            f"{where}: rule 'header, frames, manifest, footer fill the object': the footer puts {nbytes} manifest "
            f"bytes at {offset}, the object has {object_nbytes}"
        )
    if raw_nbytes > MAX_MANIFEST_NBYTES:
        raise FormatError(f"{where}: manifest of {raw_nbytes} bytes, the limit is {MAX_MANIFEST_NBYTES}")
    return Footer(offset, nbytes, raw_nbytes, manifest_crc)


def unpack_manifest(stored: bytes, footer: Footer, where: str) -> bytes:
    """The manifest's bytes; never more than the footer promises. Raises ``CorruptionError``."""
    actual = crc32c.crc32c(stored)
    if actual != footer.crc32c:
        raise CorruptionError(f"{where}: manifest checksum: expected {footer.crc32c:#010x}, actual {actual:#010x}")
    engine = zlib.decompressobj()
    try:
        raw = engine.decompress(stored, footer.raw_nbytes + 1)
    except zlib.error as error:
        raise CorruptionError(f"{where}: manifest does not decompress: {error}") from error
    if len(raw) != footer.raw_nbytes or not engine.eof or engine.unused_data:
        raise CorruptionError(f"{where}: manifest decompresses to another size than the {footer.raw_nbytes} promised")
    return raw


def _reader_version() -> int:
    return max(READER_VERSION, FORMAT_VERSION)  # version 1 readers read nothing but version 1


def _gate(version: int, reader: int, where: str) -> None:
    if reader > FORMAT_VERSION:
        raise UnsupportedError(
            f"{where}: written in format version {version}, which needs a reader of version {reader}; this build of "
            f"s4async reads up to version {FORMAT_VERSION}. Upgrade s4async; the file itself is fine"
        )


def _guess(data: bytes) -> str:
    for magic, kind in _FOREIGN:
        if data.startswith(magic):
            return f"it looks like {kind}"
    if len(data) > 8 and data[8:9] == b"{" and int.from_bytes(data[:8], "little") < 1 << 32:
        return "it looks like a safetensors file: read it with safetensors.torch.load_file"
    return f"it begins with {data[:8].hex(' ')}"
