"""Written by a newer version, or with parts that this build does not know."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import s4async
from s4async.errors import UnsupportedError
from s4async.format.manifest import Manifest
from tests.cases.harness import edit_manifest, full, noise

# ---- written by a newer version (eclipse-store/store#561, entireio/cli#1507, jasp-stats/jasp-desktop#816)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An object as the next format version would write it."""
    from s4async.format import object as ends

    monkeypatch.setattr(ends, "FORMAT_VERSION", s4async.FORMAT_VERSION + 1)
    s4async.save({"w": full(4, 2)}, tmp_path / "newer.s4")
    monkeypatch.undo()
    return tmp_path / "newer.s4"


Call = Callable[[Path], object]
CALLS: dict[str, Call] = {
    "load": s4async.load,
    "verify": s4async.verify,
    "inspect": s4async.inspect,
    "load_async": lambda place: s4async.load_async(place).result(60),
    "keys": lambda place: s4async.load(place, keys="w"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_newer_format_is_told_apart_from_damage(newer: Path, call: str) -> None:
    """Elsewhere new fields are ignored or misread, or the file is called broken. Right: its own error, both numbers,
    the advice to upgrade, decided from the header before anything else is parsed."""
    here = s4async.FORMAT_VERSION
    with pytest.raises(UnsupportedError, match=rf"version {here + 1}\b.*version {here}\b.*[Uu]pgrade") as caught:
        CALLS[call](newer)
    assert "corrupt" not in str(caught.value).lower() and "newer.s4" in str(caught.value)
    newer.write_bytes(newer.read_bytes()[:32])  # the header alone decides
    with pytest.raises(UnsupportedError, match="[Uu]pgrade"):
        CALLS[call](newer)


def test_a_newer_format_changes_nothing_in_place(newer: Path, tmp_path: Path) -> None:
    """``into`` is untouched, and what this version wrote itself still loads."""
    target = {"w": full(4, 0)}
    with pytest.raises(UnsupportedError):
        s4async.load(newer, into=target)
    assert target["w"].eq(0).all()
    s4async.save({"w": full(4, 1)}, tmp_path / "own.s4")
    assert s4async.load(tmp_path / "own.s4")["w"].eq(1).all()


def _frames(**changes: Any) -> Callable[[Manifest], Manifest]:
    return lambda m: replace(m, frames=tuple(replace(frame, **changes) for frame in m.frames))


def _codec(name: str) -> Callable[[Manifest], Manifest]:
    def edit(manifest: Manifest) -> Manifest:
        frames = [
            replace(
                f,
                blobs=tuple(
                    replace(b, codec=name, chunk_nbytes=b.raw_nbytes, chunk_sizes=(b.nbytes,)) if b.nbytes else b
                    for b in f.blobs
                ),
            )
            for f in manifest.frames
        ]
        return replace(manifest, frames=tuple(frames))

    return edit


UNKNOWN: dict[str, Callable[[Manifest], Manifest]] = {
    "zstd-of-2031": _codec("zstd-of-2031"),
    "float:3": _frames(layout="float:3"),
    "xor-of-2031": _frames(transform="xor-of-2031"),
    "float6_e3m2": lambda m: replace(m, regions=tuple(replace(r, dtype="float6_e3m2") for r in m.regions)),
    "delta-of-2031": lambda m: replace(m, features=("delta-of-2031",)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_names_inside_a_known_version_are_refused_by_name(tmp_path: Path, name: str) -> None:
    """A codec, layout, transform, dtype or feature that this build lacks: the name, and not a word of damage."""
    s4async.save({"w": noise(1000)}, tmp_path / "ck.s4")
    place = edit_manifest(tmp_path / "ck.s4", UNKNOWN[name], tmp_path / "foreign.s4")
    for call in (s4async.load, s4async.verify):
        with pytest.raises(UnsupportedError, match=name) as caught:
            call(place)
        assert "corrupt" not in str(caught.value).lower() and "foreign.s4" in str(caught.value)


def test_a_newer_commit_record_is_told_apart_from_damage(tmp_path: Path) -> None:
    """The same for a step of a store: its record has a version of its own."""
    s4async.save_checkpoint({"n": 1}, tmp_path, step=1)
    (record,) = (tmp_path / "steps").iterdir()
    record.write_bytes(record.read_bytes().replace(b'"version":1', b'"version":2,"shiny":[]'))
    for call in (s4async.load, s4async.verify):
        with pytest.raises(UnsupportedError, match="version 2.*upgrade"):
            call(tmp_path)


def test_streams_of_other_kinds_load_alike() -> None:
    """The gate and the checks do not depend on where the bytes come from."""
    buffer = io.BytesIO(b"before")
    buffer.seek(0, io.SEEK_END)
    s4async.save({"w": full(4, 1)}, buffer)
    buffer.seek(6)
    assert s4async.load(buffer)["w"].eq(1).all()
