"""The vocabulary: Region, Extent, Blob, Frame. Read this first; nearly every module imports it.

A *region* is a run of bytes stored once, shared by one or more tied tensors of the state. A *frame* is the unit that
travels: extents of regions of one dtype, decodable alone (given its base). While it travels, ``Frame.data`` holds its
bytes; a manifest is the list of frames with ``data=None``. All values are frozen; a stage is ``Frame -> Frame``, made
with ``dataclasses.replace``. Offsets of blobs are not stored: blobs lie in order, each at the next multiple of
``ALIGNMENT``, so that holes and overlaps cannot be expressed (FORMAT.md, "Layout").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ALIGNMENT", "Blob", "Extent", "Frame", "Region", "align"]

ALIGNMENT = 16  # bytes; device codecs want 16-byte aligned chunks, and a frame is read with one copy to the device


def align(offset: int) -> int:
    """The next multiple of ``ALIGNMENT`` at or after ``offset`` (bytes)."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes stored once, whatever the number of tensors that share them."""

    name: str  # path of the first tensor in it, for messages and inspection
    dtype: str  # torch's name without "torch.", e.g. "bfloat16"; decides the plane layout
    nbytes: int
    location: str = "cpu"  # torch's location tag of the device it lived on, e.g. "cuda:1"


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range of one region, with the CRC32C of its raw bytes (0 until encoded)."""

    region: int
    offset: int
    nbytes: int
    crc32c: int = 0


@dataclass(frozen=True, slots=True)
class Blob:
    """One encoded plane: its chunks back to back.

    A chunk holds ``chunk_nbytes`` raw bytes (the last one fewer). A chunk whose stored size equals its raw size is
    stored as it is, whatever the codec. ``params`` is the codec's own record, e.g. a constant's value or a table.
    """

    plane: int
    codec: str
    raw_nbytes: int
    nbytes: int
    crc32c: int
    chunk_nbytes: int = 0
    chunk_sizes: tuple[int, ...] = ()
    params: bytes = b""


@dataclass(frozen=True, slots=True)
class Frame:
    """Extents of regions of one dtype and, once encoded, one blob per plane.

    ``layout`` names the plane split (``format.planes``). A frame with ``source`` is a derived copy: its elements are
    the roundings of the elements in that extent of a wider region, and it has no blobs. ``data``: the raw bytes (one
    buffer) before encoding, the stored bytes (buffers in order, padding included) after it, ``None`` in a manifest.
    """

    index: int
    dtype: str
    extents: tuple[Extent, ...]
    layout: str = ""
    transform: str = ""
    source: Extent | None = None
    blobs: tuple[Blob, ...] = ()
    offset: int = 0  # of the first blob, from the start of the object; set when the frame is placed
    data: Sequence[memoryview] | None = None

    @property
    def raw_nbytes(self) -> int:
        """Bytes of the tensors in this frame."""
        return sum(extent.nbytes for extent in self.extents)

    @property
    def stored_nbytes(self) -> int:
        """Bytes in the object, padding included; always a multiple of ``ALIGNMENT``."""
        return sum(align(blob.nbytes) for blob in self.blobs)
