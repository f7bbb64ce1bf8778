"""Folders that cannot be written, places that are something else, disks that fill up."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import s4async
from s4async.errors import (
    S4AsyncError,
    StorageError,
)
from tests.cases.harness import all_steps, assert_same, child, noise, stored_bytes

# ---- no permission, read-only, disk full (Lightning-AI/pytorch-lightning#21800, h2oai/h2o-llmstudio#214)


def test_a_full_disk_keeps_the_old_checkpoint_and_leaves_no_debris(tmp_path: Path) -> None:
    """Elsewhere a zero-byte file replaces the good one, or the error is swallowed and training goes on without
    checkpoints. (A limit of the file size stands in for the disk.)"""
    place, store = tmp_path / "ck.s4", tmp_path / "store"
    s4async.save({"n": 1, "w": noise(2_000_000, 1)}, place)
    s4async.save_checkpoint({"n": 1}, store, step=1)
    before = stored_bytes(tmp_path)
    done = child(f"""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    def refused(call, *args, **kw):
        try:
            outcome = call(*args, **kw)
            if isinstance(outcome, s4async.SaveHandle):
                outcome.result(60)
        except StorageError as error:
            assert "File too large" in str(error) and {str(tmp_path)!r} in str(error), error
        else:
            raise SystemExit("it went through")
    state = {{"n": 2, "w": noise(2_000_000, 2)}}
    refused(s4async.save, state, {str(place)!r})
    refused(s4async.save_async, state, {str(place)!r})
    refused(s4async.save_checkpoint, state, {str(store)!r}, step=2)
    s4async.save({{"n": 3}}, {str(tmp_path / "small.s4")!r})
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert s4async.load(tmp_path / "small.s4") == {"n": 3}
    (tmp_path / "small.s4").unlink()
    assert_same({"n": 1, "w": noise(2_000_000, 1)}, s4async.load(place))
    assert all_steps(store) == [1] and stored_bytes(tmp_path) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_without_room_is_a_storage_error() -> None:
    """The real ``ENOSPC``, through an open file, at the first write or at the flush."""
    for buffering in (0, 1 << 20):
        file = open("/dev/full", "wb", buffering=buffering)  # noqa: SIM115 - closing it flushes again, and fails again
        with pytest.raises(StorageError, match="No space left"):
            s4async.save({"n": 1}, file)
        with suppress(OSError):
            file.close()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users may enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
        for path in (folder for folder in Path(name).rglob("*") if folder.is_dir()):
            path.chmod(0o755)


def test_folders_that_cannot_be_written_are_told_by_path(public: Path) -> None:
    """A ``PermissionError`` that is swallowed leaves a run without checkpoints. Right: the path, the reason, a typed
    error, and nothing outside the target touched. What may not be read is not "not found", or a job would start from
    scratch and overwrite it. (Root is let in everywhere, so it becomes somebody else.)"""
    readonly, kept, secret = public / "readonly", public / "kept" / "ck.s4", public / "secret.s4"
    for place in (kept, secret, readonly / "old.s4"):
        s4async.save({"n": 1}, place)
    s4async.save_checkpoint({"n": 1}, readonly / "store", step=1)
    kept.parent.chmod(0o777)
    kept.chmod(0o444)
    secret.chmod(0o000)
    for folder in (readonly / "store" / "data", readonly / "store" / "steps", readonly / "store", readonly):
        folder.chmod(0o555)
    done = child(f"""
    import tempfile
    with tempfile.TemporaryDirectory() as warm:  # load everything that is loaded on first use
        s4async.save({{"w": noise(10)}}, warm + "/ck.s4")
        s4async.load(warm + "/ck.s4")
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    def refused(call, *args, **kw):
        try:
            outcome = call(*args, **kw)
            if isinstance(outcome, s4async.SaveHandle):
                outcome.result(60)
        except AccessDeniedError as error:
            assert {str(public)!r} in str(error), error
        else:
            raise SystemExit(f"it went through: {{args}}")
    for call in (s4async.save, s4async.save_async):
        for name in ("new.s4", "old.s4", "sub/folder/new.s4"):
            refused(call, {{"n": 2}}, {str(readonly)!r} + "/" + name)
        refused(call, {{"n": 2}}, {str(kept)!r})
    refused(s4async.save_checkpoint, {{"n": 2}}, {str(readonly / "store")!r}, step=2)
    refused(s4async.load, {str(secret)!r})
    with s4async.Checkpointer({str(readonly / "store")!r}) as store:
        refused(store.delete, 1)
        assert store.load() == {{"n": 1}}
    assert s4async.load({str(kept)!r}) == {{"n": 1}}
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert s4async.load(readonly / "old.s4") == s4async.load(readonly / "store") == {"n": 1}
    assert sorted(path.name for path in readonly.iterdir()) == ["old.s4", "store"]
    assert list(kept.parent.iterdir()) == [kept]


def test_places_that_are_something_else_are_refused(tmp_path: Path) -> None:
    """A folder, a pipe, a file as a parent, a circle of links, a name that is too long: the path and the reason."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"keep me")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("folder", "file/ck.s4", "pipe", "circle", "n" * 300):
        with pytest.raises(S4AsyncError, match=name):
            s4async.save({"n": 1}, tmp_path / name)
    assert (tmp_path / "file").read_bytes() == b"keep me"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "file", "folder", "pipe"]
    assert not list((tmp_path / "folder").iterdir())
