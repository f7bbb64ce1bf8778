"""What every codec promises: exact, deterministic, safe from several threads, and unharmed by hostile data.

Subclass ``CodecContract`` and give it a ``codec`` fixture.
"""

from __future__ import annotations

import resource
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s4async.codecs.base import Codec
from s4async.device.base import Bytes
from s4async.errors import CorruptionError

GUARD = 64  # bytes on either side of a chunk that nobody may touch


def exponents(count: int, seed: int = 0) -> Bytes:
    """The exponent plane of normally distributed weights."""
    words = np.random.default_rng(seed).normal(0, 0.02, count).astype("<f4").view("<u4")
    return ((words >> 23) & 0xFF).astype(np.uint8)


def rows_with_zeros(count: int, seed: int = 0) -> Bytes:
    """Exponents of moments of an embedding: rows that no gradient has reached are zero."""
    plane = exponents(count, seed)
    for start in range(0, count, 1024):
        plane[start : start + 512] = 0
    return plane


def two_symbols(count: int) -> Bytes:
    return np.random.default_rng(0).integers(0, 2, count, dtype=np.uint8) * np.uint8(0x80)


CHUNKS = {
    "empty": np.zeros(0, np.uint8),
    "one byte": np.array([7], np.uint8),
    "two bytes": np.array([7, 8], np.uint8),
    "short": np.arange(9, dtype=np.uint8),
    "zeros": np.zeros(100_000, np.uint8),
    "one other": np.where(np.arange(100_000) == 77_777, 3, 255).astype(np.uint8),
    "noise": np.random.default_rng(0).integers(0, 256, 100_003, dtype=np.uint8),
    "exponents": exponents(1 << 18),
    "long": exponents((1 << 20) + 1),
    "rows with zeros": rows_with_zeros(1 << 18),
    "two symbols": two_symbols(1 << 17),
    "counting": np.arange(1 << 16, dtype=np.uint32).view(np.uint8),
}
every_chunk = pytest.mark.parametrize("chunk", CHUNKS.values(), ids=CHUNKS)


def histogram_of(chunk: Bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.bincount(chunk, minlength=256).astype(np.int64)


def encoded(codec: Codec, chunk: Bytes) -> tuple[Bytes, bytes]:
    params = codec.params(histogram_of(chunk))
    return np.frombuffer(codec.encode(chunk, params), np.uint8), params


def decoded(codec: Codec, data: Bytes, params: bytes, nbytes: int) -> Bytes:
    """Decode into the middle of guarded memory, at an odd address."""
    memory = np.full(nbytes + 2 * GUARD + 1, 0xA5, np.uint8)
    chunk = memory[GUARD + 1 : GUARD + 1 + nbytes]
    try:
        codec.decode(data, params, chunk)
    finally:
        assert (memory[: GUARD + 1] == 0xA5).all()
        assert (memory[GUARD + 1 + nbytes :] == 0xA5).all()
    return chunk


def survives(codec: Codec, data: Bytes, params: bytes, nbytes: int) -> bool:
    """Whether damaged ``data`` decodes; anything but that and ``CorruptionError`` fails the test."""
    try:
        decoded(codec, data, params, nbytes)
    except CorruptionError:
        return False
    return True


class CodecContract:
    """Tests of one codec."""

    @pytest.fixture
    def codec(self) -> Codec:
        raise NotImplementedError

    @every_chunk
    def test_round_trip(self, codec: Codec, chunk: Bytes) -> None:
        data, params = encoded(codec, chunk)
        assert np.array_equal(decoded(codec, data, params, chunk.size), chunk)

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])  # a codec keeps nothing
    @given(data=st.binary(max_size=2000), repeat=st.integers(1, 50))
    def test_round_trip_of_anything(self, codec: Codec, data: bytes, repeat: int) -> None:
        chunk = np.frombuffer(data * repeat, np.uint8)
        stored, params = encoded(codec, chunk)
        assert np.array_equal(decoded(codec, stored, params, chunk.size), chunk)

    @every_chunk
    def test_a_part_of_a_read_only_plane(self, codec: Codec, chunk: Bytes) -> None:
        plane = np.concatenate([np.zeros(3, np.uint8), chunk, np.zeros(5, np.uint8)])
        plane.flags.writeable = False
        data, params = encoded(codec, plane[3 : 3 + chunk.size])
        assert np.array_equal(decoded(codec, data, params, chunk.size), chunk)

    def test_equal_input_gives_equal_bytes(self, codec: Codec) -> None:
        """Whatever came before, a failure included, and in whatever thread."""
        first = {name: encoded(codec, chunk)[0].tobytes() for name, chunk in CHUNKS.items()}
        for name in reversed(CHUNKS):
            survives(codec, np.frombuffer(b"not a frame", np.uint8), b"", 100)
            assert encoded(codec, CHUNKS[name])[0].tobytes() == first[name]
        with ThreadPoolExecutor(3) as crew:
            again = crew.map(lambda chunk: encoded(codec, chunk)[0].tobytes(), CHUNKS.values())
            for name, data in zip(CHUNKS, again, strict=True):
                assert data == first[name]

    def test_threads_do_not_meet(self, codec: Codec) -> None:
        def work(seed: int) -> bool:
            chunk = exponents(50_000 + seed, seed)
            data, params = encoded(codec, chunk)
            return all(np.array_equal(decoded(codec, data, params, chunk.size), chunk) for _ in range(5))

        with ThreadPoolExecutor(4) as crew:
            assert all(crew.map(work, range(24)))

    @every_chunk
    def test_another_size_is_corruption(self, codec: Codec, chunk: Bytes) -> None:
        data, params = encoded(codec, chunk)
        for nbytes in {0, chunk.size - 1, chunk.size + 1, 2 * chunk.size + 100} - {-1, chunk.size}:
            with pytest.raises(CorruptionError):
                decoded(codec, data, params, nbytes)

    def test_truncated_anywhere(self, codec: Codec) -> None:
        chunk = exponents(3000)
        data, params = encoded(codec, chunk)
        for nbytes in range(data.size):
            with pytest.raises(CorruptionError):
                decoded(codec, data[:nbytes], params, chunk.size)

    def test_more_than_one_chunk(self, codec: Codec) -> None:
        """Trailing bytes, and a second chunk after the first, are not ignored."""
        chunk = exponents(3000)
        data, params = encoded(codec, chunk)
        for extra in (b"\0", b"garbage", data.tobytes()):
            longer = np.frombuffer(data.tobytes() + extra, np.uint8)
            for nbytes in (chunk.size, 2 * chunk.size):
                with pytest.raises(CorruptionError):
                    decoded(codec, longer, params, nbytes)

    @pytest.mark.parametrize("chunk", [exponents(300), rows_with_zeros(4096), two_symbols(600)], ids=["a", "b", "c"])
    def test_any_flipped_bit(self, codec: Codec, chunk: Bytes) -> None:
        """Checksums are the caller's; a codec only must not do harm."""
        data, params = encoded(codec, chunk)
        for bit in range(data.size * 8):
            damaged = data.copy()
            damaged[bit // 8] ^= 1 << bit % 8
            survives(codec, damaged, params, chunk.size)
        assert np.array_equal(decoded(codec, data, params, chunk.size), chunk)

    @settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(garbage=st.binary(max_size=300), kept=st.integers(0, 40), nbytes=st.integers(0, 5000))
    def test_garbage(self, codec: Codec, garbage: bytes, kept: int, nbytes: int) -> None:
        """Alone, and after a true beginning."""
        chunk = exponents(2000)
        data, params = encoded(codec, chunk)
        survives(codec, np.frombuffer(garbage, np.uint8), params, nbytes)
        survives(codec, np.frombuffer(data[:kept].tobytes() + garbage, np.uint8), params, chunk.size)

    def test_hostile_data_takes_no_memory(self, codec: Codec) -> None:
        """Each byte of the beginning at its largest, alone and together: a claimed size must not be believed."""
        data, params = encoded(codec, exponents(1 << 18))
        before = peak_bytes()
        for start in range(16):
            for end in range(start + 1, 17):
                damaged = data.copy()
                damaged[start:end] = 0xFF
                survives(codec, damaged, params, 1 << 18)
        assert peak_bytes() - before < 32 << 20


def peak_bytes() -> int:
    """The most memory that this process ever had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
