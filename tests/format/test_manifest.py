"""Manifest: round trip, and every rule of FORMAT.md that a manifest alone can break."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4async.errors import FormatError, S4AsyncError, UnsupportedError
from s4async.format import manifest as m
from s4async.format.object import HEADER_NBYTES, Header
from s4async.frame import Blob, Extent, Frame, Region

UUID = b"0123456789abcdef"
HEADER = Header(1, UUID)


def sample() -> m.Manifest:
    """Two regions: a float32 of 16 bytes in two frames, and its bfloat16 rounding of 8 bytes."""
    regions = (Region("master", "float32", 16), Region("model", "bfloat16", 8, "cuda:0"))
    planes = tuple(Blob(i, "raw", 2, 2, i) for i in range(4))
    coded = (
        Blob(0, "zstd", 2, 1, 7, 4096, (1,), b"table"),
        Blob(1, "constant", 2, 0, 0, params=b"\x80"),
        *planes[2:],
    )
    frames = (
        Frame(0, "float32", (Extent(0, 0, 8, 11),), "float:4", blobs=planes, offset=32),
        Frame(1, "float32", (Extent(0, 8, 8, 12),), "float:4", blobs=coded, offset=96),
        Frame(2, "bfloat16", (Extent(1, 0, 8, 13),), "rounded", source=Extent(0, 0, 16), offset=144),
    )
    return m.Manifest(UUID, regions, frames, b"skeleton", {"writer": "test"}, b"{}", version=1)


END = 144


def reread(manifest: m.Manifest, end: int = END) -> m.Manifest:
    return m.decode(m.encode(manifest), HEADER, end, "obj")


def test_round_trip() -> None:
    assert reread(sample()) == sample()


def test_sizes() -> None:
    assert sample().raw_nbytes == 24
    assert sample().stored_nbytes == END - HEADER_NBYTES


def changed_frame(index: int, **changes: Any) -> m.Manifest:
    good = sample()
    frames = list(good.frames)
    frames[index] = replace(frames[index], **changes)
    return replace(good, frames=tuple(frames))


def changed_blob(**changes: Any) -> m.Manifest:
    blobs = sample().frames[1].blobs
    return changed_frame(1, blobs=(replace(blobs[0], **changes), *blobs[1:]))


E = Extent
BROKEN = {
    "extent leaves its region": changed_frame(0, extents=(E(0, 0, 24),)),
    "extent at 2**63": changed_frame(0, extents=(E(0, 1 << 63, 8),)),
    "extent of an unknown region": changed_frame(0, extents=(E(5, 0, 8),)),
    "negative region": changed_frame(0, extents=(E(-1, 0, 8),)),
    "negative offset": changed_frame(0, extents=(E(0, -8, 8),)),
    "empty extent": changed_frame(0, extents=(E(0, 0, 0),)),
    "no extents": changed_frame(0, extents=()),
    "hole between extents": changed_frame(1, extents=(E(0, 12, 4),)),
    "overlapping extents": changed_frame(1, extents=(E(0, 4, 8),)),
    "broken element": changed_frame(1, extents=(E(0, 8, 6),)),
    "region not covered": replace(sample(), regions=(*sample().regions, Region("more", "uint8", 1))),
    "region over the limit": replace(sample(), regions=(Region("big", "uint8", 1 << 51), *sample().regions[1:])),
    "negative region size": replace(sample(), regions=(Region("neg", "uint8", -1), *sample().regions[1:])),
    "planes out of order": changed_frame(0, blobs=sample().frames[0].blobs[::-1]),
    "plane missing": changed_frame(0, blobs=sample().frames[0].blobs[:3]),
    "blob larger than raw": changed_blob(nbytes=3, chunk_sizes=(3,)),
    "blob with another raw size": changed_blob(raw_nbytes=4),
    "chunks do not add up": changed_blob(chunk_sizes=(2,)),
    "too many chunks": changed_blob(chunk_sizes=(1, 0)),
    "no chunks": changed_blob(chunk_sizes=()),
    "chunk size 0": changed_blob(chunk_nbytes=0),
    "negative chunk": changed_blob(chunk_nbytes=1, chunk_sizes=(2, -1)),
    "checksum over 32 bits": changed_blob(crc32c=1 << 32),
    "raw blob with chunks": changed_blob(codec="raw", nbytes=1),
    "constant with bytes": changed_blob(codec="constant"),
    "source without rounding": changed_frame(0, source=E(0, 0, 16)),
    "rounding without source": changed_frame(2, source=None),
    "rounding with blobs": changed_frame(2, blobs=(Blob(0, "raw", 8, 8, 0),)),
    "rounding of itself": changed_frame(2, source=E(1, 0, 16)),
    "rounding at another offset": changed_frame(2, source=E(0, 8, 16)),
}


@pytest.mark.parametrize("bad", BROKEN.values(), ids=BROKEN.keys())
def test_broken_rules_are_refused(bad: m.Manifest) -> None:
    with pytest.raises(FormatError, match="obj"):
        reread(bad)


def test_frames_must_end_at_the_manifest() -> None:
    with pytest.raises(FormatError, match="fill the object"):
        reread(sample(), END + 16)


def test_a_frame_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "MAX_FRAME_NBYTES", 7)
    with pytest.raises(FormatError, match="limit is 7"):
        reread(sample())


def test_another_uuid_is_refused() -> None:
    with pytest.raises(FormatError, match="one uuid"):
        m.decode(m.encode(sample()), Header(1, bytes(16)), END, "obj")


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (replace(sample(), features=("delta",)), "delta"),
        (changed_frame(0, transform="xor"), "xor"),
        (changed_frame(0, layout="tiles:4"), "tiles:4"),
        (changed_frame(0, dtype="float256"), "float256"),
        (replace(sample(), regions=(Region("x", "float6", 16), sample().regions[1])), "float6"),
    ],
)
def test_unknown_names_are_named_and_not_called_damaged(bad: m.Manifest, word: str) -> None:
    with pytest.raises(UnsupportedError, match=word):
        reread(bad)


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x97", msgspec.msgpack.encode([1, 2, 3]), b"\x91" * 100_000])
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="schema"):
        m.decode(data, HEADER, END, "obj")


def test_unknown_fields_are_refused() -> None:
    fields = msgspec.msgpack.decode(m.encode(sample()))
    with pytest.raises(FormatError, match="schema"):
        m.decode(msgspec.msgpack.encode([*fields, "more"]), HEADER, END, "obj")


GOOD = m.encode(sample())


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=0, max_size=8))
def test_mutated_manifests_are_right_or_refused(at: int, change: bytes) -> None:
    data = GOOD[:at] + change + GOOD[at + len(change) :]
    try:
        again = m.decode(data, HEADER, END, "obj")
    except S4AsyncError:
        return
    assert sum(e.nbytes for f in again.frames for e in f.extents) == again.raw_nbytes
