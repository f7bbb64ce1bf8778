from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s4async.errors import CorruptionError, StorageError, UnsupportedError, UsageError
from s4async.storage import base
from s4async.storage.base import (
    as_bytes,
    check_key,
    check_range,
    is_local,
    key_fault,
    local_path,
    open_storage,
    register,
    split_url,
)
from s4async.storage.local import LocalStorage
from s4async.storage.memory import MemoryStorage
from tests.contracts.storage import BAD_KEYS, STRANGE_KEYS


@pytest.mark.parametrize("key", [*STRANGE_KEYS, "x" * 1024, os.fsdecode(b"\xff")])
def test_good_keys(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize("key", [*BAD_KEYS, "é" * 513, "\ud800", ".x.s4tmp", ".s4tmp/x"])
def test_bad_keys(key: str) -> None:
    with pytest.raises(UsageError, match="choose another name"):
        check_key(key)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.one_of(st.sampled_from("./\\ \n\0a"), st.characters()), max_size=8))
def test_a_good_key_is_one_path_below_any_root(key: str) -> None:
    if not key_fault(key):
        assert os.path.normpath(os.path.join("/root", key)) == "/root/" + key
        assert PurePosixPath("/root", key).parts[2:] == tuple(key.split("/"))


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        ("/a/b c.s4", ("/a", "b c.s4")),
        ("/b.s4", ("/", "b.s4")),
        ("/a//b", ("/a/", "b")),
        ("/a/../b", ("/a/..", "b")),
        (Path("/a/b"), ("/a", "b")),
        (b"/a/b", ("/a", "b")),
        (b"/a/\xff", ("/a", "\udcff")),
        ("x.s4", ("{cwd}", "x.s4")),
        ("./x.s4", ("{cwd}/.", "x.s4")),
        ("../x.s4", ("{cwd}/..", "x.s4")),
        ("run:1/x%20y", ("{cwd}/run:1", "x%20y")),
        ("a/b://c", ("{cwd}/a/b:/", "c")),
        ("file:///a/b%20c%2525", ("/a", "b c%25")),
        ("file:///a/caf%E9", ("/a", "caf\udce9")),
        ("file:///a/b#c?d", ("/a", "b#c?d")),
        ("FILE://localhost/a/b", ("/a", "b")),
        ("file:/a/b", ("/a", "b")),
        ("memory://name/a", ("memory://name", "a")),
        ("memory://name/a/b%20c", ("memory://name/a", "b%20c")),
        ("s3://bucket/a/b/c.s4", ("s3://bucket/a/b", "c.s4")),
    ],
)
def test_split_url(f: object, expected: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root, key = expected
    assert split_url(f) == (root.replace("{cwd}", os.getcwd()), key)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("f", "match"),
    [
        ("", "empty"),
        ("/", "names a folder"),
        ("/a/", "names a folder"),
        (".", "names a folder"),
        ("a/..", "names a folder"),
        ("s3://bucket", "names a folder or bucket"),
        ("s3://bucket/", "names a folder or bucket"),
        ("s3://bucket/a/", "names a folder or bucket"),
        ("file://", "names a folder"),
        ("file://host/a", "on this machine"),
        ("a\0b", "NUL"),
        ("file:///a/%00", "NUL"),
        ("/a/b\nc", "control character"),
        ("/a/.x.s4tmp", "unfinished uploads"),
        (Path("s3://bucket/a"), "lost a slash"),
        (PurePosixPath("file:///a/b"), "lost a slash"),
        (3, "got int"),
        (None, "got NoneType"),
    ],
)
def test_what_names_no_object(f: object, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        split_url(f)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=20).filter(lambda name: not {0, 47} & set(name)))
def test_file_urls_of_any_name(name: bytes) -> None:
    path = Path("/folder", os.fsdecode(name))
    assert local_path(path.as_uri()) == local_path(path) == str(path)


def test_a_current_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(StorageError, match="current folder is gone"):
        split_url("x.s4")
    assert split_url("/a/x.s4") == ("/a", "x.s4")


def test_is_local() -> None:
    paths: list[str | bytes | Path] = ["a", "/a", "file:///a", b"a", Path("a"), "a:b", "C:\\x"]
    assert all(is_local(path) for path in paths)
    assert not any(is_local(url) for url in ("s3://a", "memory://a", "GS://a/b"))


def test_open_storage(tmp_path: Path) -> None:
    for url in (tmp_path, str(tmp_path), os.fsencode(tmp_path), tmp_path.as_uri()):
        storage = open_storage(url)
        assert isinstance(storage, LocalStorage)
        assert storage.url == str(tmp_path)
    assert isinstance(open_storage("memory://x"), MemoryStorage)


def test_an_unknown_scheme() -> None:
    with pytest.raises(UnsupportedError, match=r"gopher://a/b: .*no storage for gopher://.* file://.*memory://"):
        open_storage("gopher://a/b")


def test_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    register("mem2", "s4async.storage.memory:MemoryStorage")
    register("lacking", "no_such_package.storage:Thing")
    with pytest.raises(UsageError, match="memory://name"):
        open_storage("mem2://x")  # the class is called with the URL
    with pytest.raises(UnsupportedError, match="lacking:// needs a package that is missing.*no_such_package"):
        open_storage("lacking://x")
    for scheme, target in (("Upper", "a:b"), ("", "a:b"), ("ok", "no colon"), ("ok", "a:b:c")):
        with pytest.raises(UsageError, match="expected a lower-case scheme"):
            register(scheme, target)


def test_as_bytes() -> None:
    for view in (memoryview(b"1234"), memoryview(b"1234").cast("I"), memoryview(b"1234").cast("B", [2, 2])):
        assert bytes(as_bytes(view)) == b"1234"
    assert as_bytes(memoryview(b"").cast("I")).nbytes == 0
    target = bytearray(4)
    as_bytes(memoryview(target).cast("h"))[:] = b"abcd"
    assert target == b"abcd"


def test_check_range() -> None:
    check_range("x", 0, 0, 0)
    check_range("x", 3, 7, 10)
    for start, count in ((3, 8), (11, 0), (-1, 1)):
        with pytest.raises(CorruptionError, match=f"reading x: expected {count} bytes from byte {start}, .* after 10"):
            check_range("x", start, count, 10)
