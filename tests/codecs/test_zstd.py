"""The zstd codec keeps the contract, writes frames that any zstd reads, and is as small as an entropy coder can be."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from s4async.codecs.base import find
from s4async.codecs.policy import entropy_bits
from s4async.codecs.zstd import ZstdCodec, _has_runs
from s4async.device.base import Bytes
from s4async.errors import CorruptionError
from tests.contracts.codec import (
    CHUNKS,
    CodecContract,
    decoded,
    encoded,
    every_chunk,
    exponents,
    histogram_of,
    rows_with_zeros,
    two_symbols,
)


class TestZstdCodec(CodecContract):
    @pytest.fixture
    def codec(self) -> ZstdCodec:
        return ZstdCodec()


@pytest.fixture
def codec() -> ZstdCodec:
    return ZstdCodec()


def as_array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def bits(codec: ZstdCodec, chunk: Bytes) -> float:
    return 8 * encoded(codec, chunk)[0].size / chunk.size


def test_it_is_registered() -> None:
    assert isinstance(find("zstd", "cpu"), ZstdCodec)


@every_chunk
def test_frames_are_standard(codec: ZstdCodec, chunk: Bytes) -> None:
    data, _ = encoded(codec, chunk)
    assert zstandard.get_frame_parameters(data.data).content_size == chunk.size
    assert zstandard.ZstdDecompressor().decompress(data.data, allow_extra_data=False) == chunk.tobytes()


@pytest.mark.parametrize("level", [1, 3, 19])
def test_frames_of_others_are_read(codec: ZstdCodec, level: int) -> None:
    """A device that writes zstd frames its own way may share the id."""
    for chunk in (exponents(300_000), rows_with_zeros(300_000)):
        for checksum in (False, True):
            frame = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(chunk.tobytes())
            assert np.array_equal(decoded(codec, as_array(frame), b"", chunk.size), chunk)


def test_never_much_larger(codec: ZstdCodec) -> None:
    assert encoded(codec, CHUNKS["noise"])[0].size <= CHUNKS["noise"].size + 32


def test_literals_are_within_a_few_percent_of_their_entropy(codec: ZstdCodec) -> None:
    """Huffman codes of whole bits: 2 % on exponents, next to nothing on flat planes or on one bit a byte."""
    for chunk, excess in ((exponents(1 << 18), 1.025), (two_symbols(1 << 18), 1.01), (half_flat(), 1.01)):
        assert bits(codec, chunk) <= excess * entropy_bits(histogram_of(chunk))


def test_runs_cost_next_to_nothing(codec: ZstdCodec) -> None:
    """Half of each row is zero: order-0 coding would spend a bit on each."""
    assert bits(codec, rows_with_zeros(1 << 18)) < 0.54 * bits(codec, exponents(1 << 18))
    assert bits(codec, CHUNKS["zeros"]) < 0.01
    assert bits(codec, CHUNKS["one other"]) < 0.01


def test_runs_are_seen_where_they_are() -> None:
    assert _has_runs(rows_with_zeros(1 << 18))
    assert not any(_has_runs(CHUNKS[name]) for name in ("exponents", "two symbols", "noise", "empty", "short"))


def test_skippable_frames_hold_nothing(codec: ZstdCodec) -> None:
    frame = b"\x50\x2a\x4d\x18" + (100).to_bytes(4, "little") + bytes(100)
    with pytest.raises(CorruptionError, match="states 0 bytes"):
        decoded(codec, as_array(frame), b"", 100)


def test_a_frame_without_its_size_is_refused(codec: ZstdCodec) -> None:
    chunk = exponents(1000)
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(chunk.tobytes())
    with pytest.raises(CorruptionError, match="states None bytes"):
        decoded(codec, as_array(frame), b"", chunk.size)


def test_a_frame_that_needs_a_dictionary_is_refused(codec: ZstdCodec) -> None:
    samples: list[bytes | bytearray | memoryview[int]] = [exponents(2000, seed).tobytes() for seed in range(50)]
    dictionary = zstandard.train_dictionary(2000, samples)
    frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(samples[0])
    with pytest.raises(CorruptionError):
        decoded(codec, as_array(frame), b"", 2000)


def test_parameters_are_refused(codec: ZstdCodec) -> None:
    data, _ = encoded(codec, exponents(1000))
    with pytest.raises(CorruptionError, match="3 bytes of parameters: expected none"):
        decoded(codec, data, b"abc", 1000)


def half_flat() -> Bytes:
    """Sign and fraction of second moments: the sign never changes."""
    return np.random.default_rng(0).integers(0, 128, 1 << 18, dtype=np.uint8)
