"""The two ends of an object and the version gate."""

import pickle
import zipfile
from pathlib import Path

import crc32c
import pytest

from s4async.errors import CorruptionError, FormatError, IntegrityError, UnsupportedError
from s4async.format import object as ends

UUID = bytes(range(16))


def whole(manifest: bytes = b"the manifest", frames: bytes = b"f" * 32) -> bytes:
    head = ends.pack_header(UUID)
    return head + frames + ends.pack_tail(manifest, len(head) + len(frames))


def read(data: bytes) -> bytes:
    """What a reader does with the two ends."""
    ends.parse_header(data[: ends.HEADER_NBYTES], "x")
    footer = ends.parse_footer(data[-ends.FOOTER_NBYTES :], len(data), "x")
    return ends.unpack_manifest(data[footer.offset : footer.offset + footer.nbytes], footer, "x")


def test_round_trip() -> None:
    assert read(whole()) == b"the manifest"
    assert ends.parse_header(whole()[: ends.HEADER_NBYTES], "x") == ends.Header(ends.FORMAT_VERSION, UUID)


def test_sizes_are_those_of_the_format_page() -> None:
    assert (ends.HEADER_NBYTES, ends.FOOTER_NBYTES) == (32, 48)


@pytest.mark.parametrize("frames", [b"", b"f" * 32])
def test_every_flipped_bit_outside_the_frames_is_found(frames: bytes) -> None:
    good = whole(frames=frames)
    for at in range(len(good)):
        if ends.HEADER_NBYTES <= at < ends.HEADER_NBYTES + len(frames):
            continue
        for bit in (0, 7):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            with pytest.raises((IntegrityError, UnsupportedError)):
                read(bytes(bad))


def test_every_truncation_and_appended_bytes_are_found() -> None:
    good = whole()
    for nbytes in range(len(good)):
        with pytest.raises(IntegrityError):
            read(good[:nbytes])
    with pytest.raises(FormatError, match="end mark"):
        read(good + b"\0")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\x89S4A", "truncated"),
        (b"PK\x03\x04" + bytes(60), r"torch\.load"),
        (pickle.dumps([1, 2], protocol=2) + bytes(60), "pickle"),
        ((30).to_bytes(8, "little") + b'{"a":{"dtype":"F32"}}' + bytes(60), "safetensors"),
        (b"hello world" * 9, "begins with"),
    ],
)
def test_foreign_files_are_named(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        ends.parse_header(data[: ends.HEADER_NBYTES], "x")


def test_a_newer_format_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "FORMAT_VERSION", 2)
    newer = whole()
    monkeypatch.undo()
    with pytest.raises(UnsupportedError, match="version 2.*up to version 1") as caught:
        read(newer)
    assert "corrupt" not in str(caught.value).lower()


def test_a_newer_writer_that_older_readers_may_read() -> None:
    head = ends._HEADER.pack(ends.HEAD_MAGIC, 9, 1, UUID, 0)[:-4]
    data = head + crc32c.crc32c(head).to_bytes(4, "little")
    assert ends.parse_header(data, "x").version == 9


def test_the_manifest_never_grows_beyond_its_promise() -> None:
    big = bytes(1 << 20)
    tail = ends.pack_tail(big, 32)
    footer = ends.parse_footer(tail[-ends.FOOTER_NBYTES :], 32 + len(tail), "x")
    lie = ends.Footer(footer.offset, footer.nbytes, 1000, footer.crc32c)
    with pytest.raises(CorruptionError, match="another size"):
        ends.unpack_manifest(tail[: footer.nbytes], lie, "x")


def test_a_manifest_over_the_limit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = ends.pack_tail(bytes(2000), 32)
    monkeypatch.setattr(ends, "MAX_MANIFEST_NBYTES", 1999)
    with pytest.raises(FormatError, match="limit is 1999"):
        ends.parse_footer(tail[-ends.FOOTER_NBYTES :], 32 + len(tail), "x")


def test_a_real_zip_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("data.pkl", b"x" * 100)
    with pytest.raises(FormatError, match="zip file"):
        ends.parse_header((tmp_path / "a.pt").read_bytes()[: ends.HEADER_NBYTES], "x")
