"""The contenders of the codec benchmark, one small class each. A peer that is not installed is left out."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import zstandard

from s4async.device.base import Bytes
from s4async.device.cpu import CpuDevice
from s4async.device.pool import Pool
from s4async.frame import Extent, Frame, Region
from s4async.options import Options
from s4async.pipeline.decode import Decoder
from s4async.pipeline.encode import Encoder

__all__ = ["Coder", "Ours", "coders"]

ROUNDS = 5  # enough work for two threads that the end, when one of them is idle, does not count


class Coder(Protocol):
    """One contender. ``ready`` makes the input (not timed), ``keep`` stored bytes that last (not timed)."""

    name: str

    def ready(self, raw: Bytes) -> Any: ...
    def encode(self, source: Any) -> Any: ...
    def keep(self, raw: Bytes) -> Any: ...
    def decode(self, stored: Any, raw: Bytes) -> None: ...
    def nbytes(self, stored: Any) -> int: ...


class Ours:
    """Frames as the pipeline makes them. Encoding ends where an upload would write from the buffers."""

    name = "s4async"

    def __init__(self, dtype: str) -> None:
        self._dtype, self._step = dtype, Options().frame_bytes
        device, self._pool = CpuDevice(), Pool(64 << 20)
        self._encoder = Encoder(device, self._pool, Options().chunk_bytes)
        self._decoder = Decoder(device, self._pool, [Region("", dtype, 0)], "benchmark")

    def ready(self, raw: Bytes) -> Bytes:
        return raw

    def encode(self, source: Bytes) -> None:
        for at in range(0, source.size, self._step):
            self._encode_frame(source[at : at + self._step])

    def keep(self, raw: Bytes) -> list[tuple[Frame, Bytes]]:
        return [self._encode_frame(raw[at : at + self._step], True) for at in range(0, raw.size, self._step)]

    def decode(self, stored: list[tuple[Frame, Bytes]], raw: Bytes) -> None:
        for i, frame in enumerate(stored):
            self._decode_frame(frame, raw[i * self._step : (i + 1) * self._step])

    def nbytes(self, stored: list[tuple[Frame, Bytes]]) -> int:
        return sum(data.size for _, data in stored)

    def parallel(
        self, items: Sequence[Bytes], kept: Sequence[list[tuple[Frame, Bytes]]], threads: int
    ) -> tuple[float, float]:
        """Seconds to encode and to decode all frames of ``items``, some rounds of them, with this many threads."""
        raws = [item[at : at + self._step] for item in items for at in range(0, item.size, self._step)]
        frames = [frame for stored in kept for frame in stored]
        encode = [partial(self._encode_frame, raw) for raw in raws]
        decode = [partial(self._decode_somewhere, frame) for frame in frames]
        return _timed(encode * ROUNDS, threads), _timed(decode * ROUNDS, threads)

    def _encode_frame(self, raw: Bytes, keep: bool = False) -> tuple[Frame, Bytes]:
        encoded = self._encoder.encode(Frame(0, self._dtype, (Extent(0, 0, raw.size),)), raw)
        data = np.frombuffer(b"".join(encoded.frame.data or ()), np.uint8) if keep else raw[:0]
        encoded.release(self._pool)
        return encoded.frame, data

    def _decode_frame(self, stored: tuple[Frame, Bytes], raw: Bytes) -> None:
        self._decoder.decode(stored[0], stored[1], [raw])

    def _decode_somewhere(self, stored: tuple[Frame, Bytes]) -> None:
        raw = self._pool.lease(stored[0].raw_nbytes)
        self._decode_frame(stored, raw)
        self._pool.release(raw)


def _timed(tasks: Sequence[Callable[[], object]], threads: int) -> float:
    """Seconds from the first start to the last end of ``threads`` threads that work off the tasks together. Each
    warms up with one task first, and reads the clock itself: the caller would get its turn too late."""
    left = deque(tasks)
    ready = Barrier(threads)

    def work() -> tuple[float, float]:
        tasks[0]()
        ready.wait()
        start = perf_counter()
        while left:
            try:
                task = left.popleft()
            except IndexError:  # another thread took the last one
                break
            task()
        return start, perf_counter()

    with ThreadPoolExecutor(threads) as crew:
        spans = [future.result() for future in [crew.submit(work) for _ in range(threads)]]
    return max(end for _, end in spans) - min(start for start, _ in spans)


class Zstd:
    """zstd on the raw bytes."""

    def __init__(self, level: int) -> None:
        self.name = f"zstd -{level}"
        self._compressor = zstandard.ZstdCompressor(level=level)
        self._decompressor = zstandard.ZstdDecompressor()

    def ready(self, raw: Bytes) -> Bytes:
        return raw

    def encode(self, source: Bytes) -> bytes:
        return self._compressor.compress(source.data)

    keep = encode

    def decode(self, stored: bytes, raw: Bytes) -> None:
        self._decompressor.stream_reader(stored).readinto(raw.data)

    def nbytes(self, stored: bytes) -> int:
        return len(stored)


class ZipNN:
    """The peer, in the mode for bytes of one dtype, one thread. It scribbles on its input and returns new memory; the
    copy into place is timed, because a restore needs the bytes there."""

    def __init__(self, dtype: str) -> None:
        with warnings.catch_warnings():  # importing it imports deprecated parts of others
            warnings.simplefilter("ignore")
            from zipnn import ZipNN as Peer

        self.name = "ZipNN"
        self._peer = Peer(input_format="byte", bytearray_dtype=dtype, threads=1)

    def ready(self, raw: Bytes) -> bytearray:
        return bytearray(raw.data)

    def encode(self, source: bytearray) -> bytes:
        stored: bytes = self._peer.compress(source)
        return stored

    def keep(self, raw: Bytes) -> bytes:
        return bytes(self.encode(self.ready(raw)))

    def decode(self, stored: bytes, raw: Bytes) -> None:
        raw[:] = np.frombuffer(self._peer.decompress(stored), np.uint8)

    def nbytes(self, stored: bytes) -> int:
        return len(stored)


class Copy:
    """No coding at all: the speed of memory."""

    name = "memcpy"

    def __init__(self) -> None:
        self._target = np.zeros(0, np.uint8)

    def ready(self, raw: Bytes) -> Bytes:
        if self._target.size < raw.size:
            self._target = np.zeros(raw.size, np.uint8)
        return raw

    def encode(self, source: Bytes) -> None:
        np.copyto(self._target[: source.size], source)

    def keep(self, raw: Bytes) -> Bytes:
        return raw

    def decode(self, stored: Bytes, raw: Bytes) -> None:
        np.copyto(raw, stored)

    def nbytes(self, stored: Bytes) -> int:
        return stored.size


def coders(dtype: str) -> Iterator[Coder]:
    """Ours first, then the peers that are installed."""
    yield Ours(dtype)
    with suppress(ImportError):
        yield ZipNN(dtype)
    yield Zstd(1)
    yield Zstd(3)
    yield Copy()
