"""Object -> manifest and frames' bytes: the two ends first, then ranged reads into leased buffers.

Reads the header, the end and, where it did not fit the first guess, the rest of the manifest; frames that lie together
are read together. Everything an object says is checked before it is believed (``format``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from s4async.device.base import Bytes
from s4async.errors import FormatError
from s4async.format.manifest import Manifest, decode
from s4async.format.object import (
    FOOTER_NBYTES,
    HEADER_NBYTES,
    parse_footer,
    parse_header,
    unpack_manifest,
)
from s4async.frame import Frame
from s4async.storage.base import ObjectReader

__all__ = ["Reach", "fetch_manifest", "reaches"]

_TAIL_GUESS = 64 << 10  # bytes; holds the manifest of a few hundred tensors, so one read is enough for most


async def fetch_manifest(reader: ObjectReader, where: str) -> Manifest:
    """Read and check header, footer and manifest. Raises ``IntegrityError`` kinds and ``UnsupportedError``."""
    nbytes = reader.nbytes
    header = parse_header(await _read(reader, 0, min(HEADER_NBYTES, nbytes)), where)
    start = max(HEADER_NBYTES, nbytes - _TAIL_GUESS)
    tail = await _read(reader, start, nbytes - start) if nbytes > start else b""
    footer = parse_footer(tail[-FOOTER_NBYTES:], nbytes, where)
    if footer.offset < start:
        tail = await _read(reader, footer.offset, start - footer.offset) + tail
        start = footer.offset
    stored = tail[footer.offset - start : footer.offset - start + footer.nbytes]
    manifest = decode(unpack_manifest(stored, footer, where), header, footer.offset, where)
    if not manifest.frames and footer.offset != HEADER_NBYTES:
        raise FormatError(f"{where}: rule 'frames fill the object up to the manifest'")
    return manifest


async def _read(reader: ObjectReader, start: int, nbytes: int) -> bytes:
    buffer = bytearray(nbytes)
    await reader.get_into(start, memoryview(buffer))
    return bytes(buffer)


@dataclass(frozen=True, slots=True)
class Reach:
    """One ranged read: the frames that lie in it."""

    offset: int
    nbytes: int
    frames: tuple[Frame, ...]

    def stored(self, frame: Frame, buffer: Bytes) -> Bytes:
        """The frame's part of the buffer that was read."""
        at = frame.offset - self.offset
        return buffer[at : at + frame.stored_nbytes]


def reaches(frames: Iterable[Frame], read_bytes: int) -> list[Reach]:
    """Neighbouring frames joined to reads of up to ``read_bytes``; a larger frame is one read. In object order."""
    found: list[Reach] = []
    group: list[Frame] = []
    for frame in frames:
        end = group[-1].offset + group[-1].stored_nbytes if group else 0
        if group and (frame.offset != end or end + frame.stored_nbytes - group[0].offset > read_bytes):
            found.append(_reach(group))
            group = []
        group.append(frame)
    return [*found, _reach(group)] if group else found


def _reach(frames: list[Frame]) -> Reach:
    end = frames[-1].offset + frames[-1].stored_nbytes
    return Reach(frames[0].offset, end - frames[0].offset, tuple(frames))
