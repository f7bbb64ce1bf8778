from __future__ import annotations

import errno
import importlib.util
import os
from pathlib import Path

import pytest

from s4async.errors import AccessDeniedError, CorruptionError, ObjectNotFoundError, StorageError
from s4async.storage import files
from s4async.storage.files import OpenFile, file_errors, remove_file, stat_file, sync_folder


@pytest.mark.parametrize("doing", ["writing", "reading", "listing", "deleting"])
def test_every_error_names_path_operation_code_and_remedy(doing: str) -> None:
    for code in sorted(errno.errorcode):
        with pytest.raises(StorageError) as caught, file_errors(doing, "/some/path"):
            raise OSError(code, os.strerror(code))
        error = caught.value
        assert str(error).startswith(f"{doing} /some/path: {os.strerror(code)} ({errno.errorcode[code]}); ")
        assert isinstance(error, AccessDeniedError) == (code in (errno.EACCES, errno.EPERM, errno.EROFS))
        absent = doing == "reading" and code in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
        assert isinstance(error, ObjectNotFoundError) == absent
        assert isinstance(error.__cause__, OSError)


def test_an_error_without_a_code() -> None:
    with pytest.raises(StorageError, match=r"writing /x: odd \(no code\); repair this"), file_errors("writing", "/x"):
        raise OSError("odd")


@pytest.mark.parametrize("preadv", [True, False])
def test_reading_with_and_without_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preadv: bool) -> None:
    module = files
    if not preadv:
        monkeypatch.delattr(os, "preadv")
        spec = importlib.util.find_spec("s4async.storage.files")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    (tmp_path / "x").write_bytes(bytes(range(200)))
    file = module.OpenFile(str(tmp_path / "x"))
    file.open()
    assert file.nbytes == 200
    monkeypatch.setattr(module, "MAX_CALL_NBYTES", 17)
    buffer = bytearray(100)
    file.read_into(50, memoryview(buffer))
    assert buffer == bytes(range(50, 150))
    file.read_into(0, memoryview(buffer).cast("I"))
    assert buffer == bytes(range(100))
    os.truncate(tmp_path / "x", 120)
    with pytest.raises(CorruptionError, match="expected 100 bytes from byte 50, the object ends after 120"):
        file.read_into(50, memoryview(buffer))
    file.close()
    file.close()
    assert not file.is_open


def test_a_disk_that_fails_while_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"123")
    file = OpenFile(str(tmp_path / "x"))
    file.open()

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "_read_at", fail)
    with pytest.raises(StorageError, match=r"reading .*/x: Input/output error \(EIO\)"):
        file.read_into(0, memoryview(bytearray(3)))
    file.close()


def test_missing_objects(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("x", "deep/x", "file/x", "."):
        path = str(tmp_path / name)
        for call in (lambda path=path: stat_file(path), OpenFile(path).open):
            with pytest.raises(ObjectNotFoundError, match="there is no such object"):
                call()


def test_remove_file_keeps_to_its_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "x").touch()
    remove_file(str(root / "a" / "b" / "x"), str(root))
    assert list(root.iterdir()) == []
    (root / "folder").mkdir()
    remove_file(str(root / "folder"), str(root))
    remove_file(str(root / "missing" / "x"), str(root))
    assert [path.name for path in root.iterdir()] == ["folder"]


def test_removing_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    fsync = os.fsync

    def spy(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", spy)
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    for name in ("x", "y"):
        (folder / name).touch()
    for name in ("x", "y", "y"):  # the last time absent: whoever removed it may not have lived to sync
        remove_file(str(folder / name), str(tmp_path))
    assert synced == [str(folder), str(tmp_path), str(tmp_path)]


def test_a_folder_that_fails_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "x").touch()
    with pytest.raises(OSError, match="Input/output"):
        sync_folder(str(tmp_path))
    with pytest.raises(StorageError, match=r"deleting .*/x: Input/output error"):
        remove_file(str(tmp_path / "x"), str(tmp_path))
