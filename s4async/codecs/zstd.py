"""zstd on the CPU as an entropy coder: standard frames that any zstd decoder reads.

Planes of trained state have no repetitions that would pay for a search, so literals mode switches the search off and
leaves its Huffman coder alone: a quarter faster than the fastest level, and smaller by the matches that only cost.
Runs mode searches; it is for chunks with stretches of equal bytes (rows of an embedding that no gradient reached).
Must not know planes. Invariants: one frame per chunk, with its size; decoding accepts nothing else.

Two bindings of the one library, each for what the other lacks: ``compression.zstd`` (``backports.zstd`` before Python
3.14) sets any parameter, ``zstandard`` decodes into the caller's memory.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt
import zstandard

from s4async.codecs.base import ZSTD
from s4async.device.base import Bytes
from s4async.errors import CorruptionError, DeviceError, map_errors

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["ZstdCodec"]

_P = zstd.CompressionParameter
_LITERAL_COMPRESSION = 1002  # ZSTD_c_literalCompressionMode; 1: always, which fast steps would otherwise switch off
_RUNS = {
    _P.strategy: int(zstd.Strategy.fast),
    _P.hash_log: 6,  # the smallest, as few chance matches as can be
    _P.min_match: 7,
    _P.target_length: 0,
    _P.window_log: 18,
    _P.checksum_flag: 0,  # blobs have their own
    _P.content_size_flag: 1,
    _LITERAL_COMPRESSION: 1,
}
_LITERALS = {**_RUNS, _P.target_length: 128 << 10}  # step over a whole block at once
RUNS_SHARE = 1 / 16  # of the 8-byte words; below it, what matches cost elsewhere outweighs what runs save


class _Contexts(threading.local):
    """One thread's compressors and decompressor: zstd contexts are for one thread at a time, and costly to make."""

    def __init__(self) -> None:
        self.literals = zstd.ZstdCompressor(options=_LITERALS)
        self.runs = zstd.ZstdCompressor(options=_RUNS)
        self.decompressor = zstandard.ZstdDecompressor()


class ZstdCodec:
    """Codec ``zstd`` for devices of kind ``cpu``. Takes no ``params``."""

    id = ZSTD

    def __init__(self) -> None:
        self._contexts = _Contexts()

    def params(self, histogram: npt.NDArray[np.int64]) -> bytes:
        """Nothing is shared between chunks."""
        return b""

    def encode(self, chunk: Bytes, params: bytes) -> bytes:
        """One zstd frame; its size may exceed that of the chunk by a few bytes."""
        compressor = self._contexts.runs if _has_runs(chunk) else self._contexts.literals
        with map_errors({zstd.ZstdError: DeviceError}, f"compressing {chunk.size} bytes with zstd"):
            return compressor.compress(chunk.data, zstd.ZstdCompressor.FLUSH_FRAME)

    def decode(self, data: Bytes, params: bytes, chunk: Bytes) -> None:
        """Fill ``chunk`` from exactly one zstd frame that states exactly this size."""
        what = f"decompressing {data.size} bytes to {chunk.size} with zstd"
        with map_errors({(zstd.ZstdError, zstandard.ZstdError): CorruptionError}, what):
            if params:
                raise CorruptionError(f"{what}: {len(params)} bytes of parameters: expected none")
            frame_nbytes = zstd.get_frame_size(data.data)
            if frame_nbytes != data.size:
                raise CorruptionError(f"{what}: the frame ends after {frame_nbytes} bytes")
            claimed = zstd.get_frame_info(data.data).decompressed_size
            if claimed != chunk.size:
                raise CorruptionError(f"{what}: the frame states {claimed} bytes")
            filled = self._contexts.decompressor.stream_reader(data.data).readinto(chunk.data)
            if filled != chunk.size:
                raise CorruptionError(f"{what}: the frame holds {filled} bytes")


def _has_runs(chunk: Bytes) -> bool:
    """Whether a fair share of the chunk is stretches of equal bytes. Looks at every 16th pair of 8-byte words."""
    words = chunk[: chunk.size & ~7].view("<u8")
    later = words[1::16]
    return int(np.count_nonzero(later == words[:-1:16])) > RUNS_SHARE * later.size
