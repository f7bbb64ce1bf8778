"""Encode and decode of one frame: every way a frame can be stored, and every byte of it checked."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from s4async.codecs.zstd import ZstdCodec
from s4async.device.base import Bytes
from s4async.device.cpu import CpuDevice
from s4async.device.pool import Pool
from s4async.errors import CorruptionError, FormatError, UnsupportedError
from s4async.format.manifest import CONSTANT, RAW, place
from s4async.frame import Extent, Frame, Region, align
from s4async.pipeline.decode import Decoder
from s4async.pipeline.encode import Encoder
from tests.vectors.states import bell, words

CHUNK = 4096
DEVICE, POOL = CpuDevice(), Pool(1 << 24)


def raw_of(tensor: torch.Tensor) -> Bytes:
    flat: Bytes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def encoded(raw: Bytes, dtype: str, cuts: tuple[int, ...] = (), **source: object) -> tuple[Frame, Bytes]:
    """One frame of regions that end at ``cuts``, and its stored bytes."""
    ends = [*cuts, raw.size]
    extents = tuple(Extent(i, 0, end - begin) for i, (begin, end) in enumerate(zip([0, *cuts], ends, strict=True)))
    done = Encoder(DEVICE, POOL, CHUNK).encode(Frame(0, dtype, extents), raw, **source)  # type: ignore[arg-type]
    assert done.frame.data is not None
    stored = np.frombuffer(b"".join(done.frame.data), np.uint8).copy()
    done.release(POOL)
    assert stored.size == done.frame.stored_nbytes
    return place(done.frame, 32), stored


def decoded(frame: Frame, stored: Bytes, dtype: str = "float32") -> Bytes:
    regions = [Region(f"r{e.region}", dtype, e.nbytes) for e in frame.extents]
    targets = [np.empty(e.nbytes, np.uint8) for e in frame.extents]
    Decoder(DEVICE, POOL, regions, "obj").decode(frame, stored, targets)
    return np.concatenate(targets)


NORMAL = torch.randn(9000, generator=torch.Generator().manual_seed(1)) * 0.02  # fractions that are noise

CASES: dict[str, tuple[torch.Tensor, list[str]]] = {
    "fp32 weights": (NORMAL, ["zstd", RAW, RAW, RAW]),
    "bf16 weights": (bell(9000).bfloat16(), ["zstd", RAW]),
    "second moments": (NORMAL.square(), ["zstd", "zstd", RAW, RAW]),
    "noise": (words(9000, torch.float32), [RAW]),
    "bytes of noise": (words(9000, torch.uint8), [RAW]),
    "zeros": (torch.zeros(9000), [CONSTANT] * 4),
    "ones": (torch.ones(9000, dtype=torch.bfloat16), [CONSTANT] * 2),
    "index": (torch.arange(9000), [RAW, "zstd", *[CONSTANT] * 6]),
    "one element": (torch.tensor([1.5]), [CONSTANT] * 4),
}


@pytest.mark.parametrize("name", CASES)
def test_each_way_of_storing_comes_back(name: str) -> None:
    tensor, codecs = CASES[name]
    dtype = str(tensor.dtype).removeprefix("torch.")
    frame, stored = encoded(raw_of(tensor), dtype)
    assert [blob.codec for blob in frame.blobs] == codecs
    assert decoded(frame, stored, dtype).tobytes() == raw_of(tensor).tobytes()


def test_an_almost_constant_plane_is_not_taken_for_constant() -> None:
    tensor = torch.zeros(40_000)
    tensor[23_456] = 2.0  # the sample does not see it
    frame, stored = encoded(raw_of(tensor), "float32")
    assert decoded(frame, stored).tobytes() == raw_of(tensor).tobytes()


def test_extents_of_a_shared_frame_are_checked_one_by_one() -> None:
    raw = raw_of(bell(3000))
    frame, stored = encoded(raw, "float32", cuts=(400, 8000))
    assert [e.crc32c for e in frame.extents] == [DEVICE.checksum(part) for part in np.split(raw, [400, 8000])]
    assert decoded(frame, stored).tobytes() == raw.tobytes()
    swapped = replace(frame, extents=(frame.extents[0], replace(frame.extents[1], crc32c=1), frame.extents[2]))
    with pytest.raises(CorruptionError, match="'r1'.*expected 0x00000001"):
        decoded(swapped, stored)


def test_a_chunk_that_does_not_shrink_is_stored_as_it_is() -> None:
    plane = np.concatenate([np.zeros(CHUNK, np.uint8), raw_of(words(CHUNK, torch.uint8)), np.zeros(CHUNK, np.uint8)])
    frame, stored = encoded(plane, "uint8")
    (blob,) = frame.blobs
    assert blob.codec == "zstd" and blob.chunk_sizes[1] == CHUNK and max(blob.chunk_sizes[::2]) < 100
    assert decoded(frame, stored, "uint8").tobytes() == plane.tobytes()


def test_a_rounding_is_stored_as_a_reference() -> None:
    high = bell(5000)
    low = raw_of(high.bfloat16())
    source = Extent(7, 0, 20_000)
    frame, stored = encoded(low, "bfloat16", source=(source, raw_of(high)))
    assert (frame.layout, frame.source, frame.blobs, stored.size) == ("rounded", source, (), 0)
    target = np.empty(low.size, np.uint8)
    decoder = Decoder(DEVICE, POOL, [Region("m", "bfloat16", low.size)], "obj")
    decoder.derive(frame, raw_of(high), target)
    assert target.tobytes() == low.tobytes()
    with pytest.raises(CorruptionError, match="'m'"):
        decoder.derive(frame, raw_of(high + 1), target)


def test_one_different_bit_is_no_rounding() -> None:
    high = bell(5000)
    low = raw_of(high.bfloat16()).copy()
    low[4321] ^= 1
    frame, _ = encoded(low, "bfloat16", source=(Extent(7, 0, 20_000), raw_of(high)))
    assert frame.layout == "float:2" and frame.source is None


@pytest.mark.parametrize("name", ["fp32 weights", "noise", "index"])
def test_every_flipped_bit_is_found(name: str) -> None:
    tensor, _ = CASES[name]
    tensor = tensor[:700]
    dtype = str(tensor.dtype).removeprefix("torch.")
    frame, stored = encoded(raw_of(tensor), dtype)
    for at in range(stored.size):
        bad = stored.copy()
        bad[at] ^= 1 << at % 8
        with pytest.raises((CorruptionError, FormatError), match="obj: frame 0"):
            decoded(frame, bad, dtype)


def test_padding_must_be_zero() -> None:
    frame, stored = encoded(raw_of(words(9, torch.uint8)), "uint8")
    assert align(9) == stored.size
    stored[-1] = 1
    with pytest.raises(FormatError, match="padding is zero"):
        decoded(frame, stored, "uint8")


def test_a_chunk_that_decodes_wrongly_names_its_place() -> None:
    frame, stored = encoded(raw_of(CASES["bf16 weights"][0]), "bfloat16")
    first = frame.blobs[0]
    garbage = ZstdCodec().encode(np.zeros(77, np.uint8), b"")
    bad = stored.copy()
    bad[: len(garbage)] = np.frombuffer(garbage, np.uint8)
    crc = DEVICE.checksum(bad[: first.nbytes])
    lying = replace(frame, blobs=(replace(first, crc32c=crc), *frame.blobs[1:]))
    with pytest.raises(CorruptionError) as caught:
        decoded(lying, bad, "bfloat16")
    assert any("obj: frame 0, plane 0, chunk 0" in note for note in caught.value.__notes__)


def test_an_unknown_codec_is_named_with_the_object() -> None:
    frame, stored = encoded(raw_of(CASES["bf16 weights"][0]), "bfloat16")
    future = replace(frame, blobs=(replace(frame.blobs[0], codec="zstd-of-2031"), *frame.blobs[1:]))
    with pytest.raises(UnsupportedError, match="obj.*zstd-of-2031"):
        decoded(future, stored, "bfloat16")


@given(st.binary(min_size=1, max_size=3000), st.sampled_from(["uint8", "int16", "float16", "float32", "float64"]))
def test_any_bytes_come_back_and_never_grow(data: bytes, dtype: str) -> None:
    itemsize = getattr(torch, dtype).itemsize
    raw = np.frombuffer(data * itemsize, np.uint8)
    frame, stored = encoded(raw, dtype)
    assert decoded(frame, stored, dtype).tobytes() == raw.tobytes()
    assert sum(blob.nbytes + len(blob.params) for blob in frame.blobs) <= raw.size + len(frame.blobs)
