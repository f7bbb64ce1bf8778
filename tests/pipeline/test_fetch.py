"""The two ends of an object, and reads that join neighbours."""

import asyncio
from dataclasses import replace

import pytest

from s4async.errors import CorruptionError, FormatError, IntegrityError
from s4async.format import manifest as records
from s4async.format.object import pack_header, pack_tail
from s4async.frame import Blob, Extent, Frame, Region
from s4async.pipeline.fetch import fetch_manifest, reaches
from s4async.storage.memory import MemoryStorage
from s4async.storage.wrappers import Traced

UUID = b"u" * 16


def an_object(regions: int = 1, name: str = "w") -> bytes:
    names = tuple(Region(f"{name}{i}", "uint8", 16) for i in range(regions))
    frames = tuple(
        Frame(i, "uint8", (Extent(i, 0, 16),), "bytes:1", blobs=(Blob(0, "raw", 16, 16, 0),)) for i in range(regions)
    )
    manifest = records.Manifest(UUID, names, frames, b"skeleton")
    end = 32 + 16 * regions
    return pack_header(UUID) + bytes(end - 32) + pack_tail(records.encode(manifest), end)


def fetched(data: bytes) -> tuple[records.Manifest, int]:
    """The manifest, and how many reads it took."""

    async def main() -> tuple[records.Manifest, int]:
        storage = Traced(MemoryStorage())
        await storage.put("x", data)
        async with storage.open_object("x") as reader:
            manifest = await fetch_manifest(reader, "obj")
        return manifest, storage.count("get_into")

    return asyncio.run(main())


def test_a_small_manifest_takes_two_reads() -> None:
    manifest, reads = fetched(an_object())
    assert (len(manifest.frames), manifest.version, reads) == (1, 1, 2)


def test_a_manifest_beyond_the_first_guess_takes_one_more() -> None:
    data = an_object(4000, "".join(chr(0x4E00 + i * 37 % 20000) for i in range(60)))
    noisy = an_object(20_000)
    assert len(noisy) - (32 + 16 * 20_000) > 64 << 10
    manifest, reads = fetched(noisy)
    assert (len(manifest.frames), reads) == (20_000, 3)
    assert len(fetched(data)[0].frames) == 4000


@pytest.mark.parametrize("keep", [0, 1, 31, 32, 40, 79, 80, 100])
def test_truncated_objects_are_told(keep: int) -> None:
    with pytest.raises(IntegrityError, match="obj"):
        fetched(an_object()[:keep])


def test_an_empty_object_with_bytes_between_the_ends_is_told() -> None:
    manifest = records.Manifest(UUID, (), (), b"skeleton")
    good = pack_header(UUID) + pack_tail(records.encode(manifest), 32)
    assert fetched(good)[0] == replace(manifest, version=1)
    with pytest.raises(FormatError, match="fill the object"):
        fetched(pack_header(UUID) + bytes(16) + pack_tail(records.encode(manifest), 48))


def test_the_head_of_one_object_and_the_tail_of_another() -> None:
    other = pack_header(b"v" * 16) + an_object()[32:]
    with pytest.raises((FormatError, CorruptionError), match="one uuid"):
        fetched(other)


def frame(index: int, offset: int, nbytes: int) -> Frame:
    blobs = (Blob(0, "raw", nbytes, nbytes, 0),)
    return Frame(index, "uint8", (Extent(0, 0, nbytes),), "bytes:1", blobs=blobs, offset=offset)


def test_neighbours_are_read_together_up_to_the_limit() -> None:
    frames = [frame(0, 32, 16), frame(1, 48, 32), frame(2, 80, 64), frame(3, 200, 16), frame(4, 216, 500)]
    joined = reaches(frames, 64)
    assert [(r.offset, r.nbytes, len(r.frames)) for r in joined] == [
        (32, 48, 2),
        (80, 64, 1),
        (200, 16, 1),
        (216, 512, 1),
    ]
    assert reaches([], 64) == []
