"""The background save fails: who hears of it, and when."""

from __future__ import annotations

import asyncio
import io
import logging
import threading
from collections.abc import Callable
from concurrent.futures import wait as wait_for_futures
from pathlib import Path
from typing import Any

import pytest

import s4async
from s4async.errors import S4AsyncError, StorageError
from tests.cases.harness import (
    FailingFile,
    GatedFile,
    child,
    full,
    noise,
)

# ---- the background save fails (pytorch/pytorch#191391, keras-team/keras#23609, google/orbax#605)


def _failing(tmp_path: Path) -> Path:
    """A place that cannot be written: its parent is a file."""
    blocker = tmp_path / "blocker"
    blocker.touch()
    return blocker / "ck.s4"


def test_every_reader_of_a_failed_handle_gets_the_error(tmp_path: Path) -> None:
    """Elsewhere a writer thread dies and the future still says success. Right: the typed error, naming the path, from
    every ``result``, ``exception``, ``await`` and callback; and the engine still works."""
    handle = s4async.save_async({"w": full(1_000_000, 1)}, _failing(tmp_path))
    seen: list[BaseException | None] = []
    called = threading.Event()

    def callback(done: Any) -> None:
        seen.append(done.exception())
        called.set()

    handle.add_done_callback(callback)
    for _ in range(3):
        with pytest.raises(StorageError, match="blocker"):
            handle.result(60)
    assert handle.done() and isinstance(handle.exception(), StorageError) and "FAILED" in repr(handle)

    async def waiter() -> None:
        await handle

    for _ in range(2):
        with pytest.raises(StorageError, match="blocker"):
            asyncio.run(waiter())
    assert called.wait(10) and isinstance(seen[0], StorageError)
    s4async.save_async({"w": full(9, 2)}, tmp_path / "good.s4").result(60)
    assert s4async.load(tmp_path / "good.s4")["w"].eq(2).all()


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.1, 0.9, 0.99999])
def test_a_disk_that_fills_up_fails_the_handle(share: float) -> None:
    """The failure may come at the first byte, in the middle, or with the last one."""
    state, whole = {"w": noise(1_000_000)}, io.BytesIO()
    s4async.save(state, whole)
    file = FailingFile(int(share * len(whole.getvalue())))
    handle = s4async.save_async(state, file)
    with pytest.raises(StorageError, match="No space left"):
        handle.result(60)
    assert not file.getvalue()


def test_nothing_is_reported_as_saved_before_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Elsewhere the log says "saved" when the save has only been queued, and trainers delete the older one."""
    caplog.set_level(logging.DEBUG)
    file = GatedFile()
    handle = s4async.save_async({"w": full(1000, 1)}, file)
    assert file.entered.wait(60)
    assert not handle.done() and "COMMITTED" not in repr(handle)
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]
    with pytest.raises(TimeoutError):
        handle.result(0.01)
    file.go.set()
    handle.result(60)
    assert "COMMITTED" in repr(handle)


def _by_next_save(tmp_path: Path, store: s4async.Checkpointer) -> None:
    s4async.save({"n": 1}, tmp_path / "next.s4")


def _by_wait_all(tmp_path: Path, store: s4async.Checkpointer) -> None:
    s4async.wait_all(60)


def _by_close(tmp_path: Path, store: s4async.Checkpointer) -> None:
    store.close()


@pytest.mark.parametrize("call", [_by_next_save, _by_wait_all, _by_close])
def test_a_failure_that_nobody_looked_at_is_raised_once(
    tmp_path: Path, call: Callable[[Path, s4async.Checkpointer], None]
) -> None:
    """Swallowed failures end in a training run without checkpoints. The next call that can raise tells it; once."""
    (tmp_path / "store").touch()
    store = s4async.Checkpointer(tmp_path / "store" / "inside")
    handle = store.save_async({"w": full(1000, 1)}, step=1)
    wait_for_futures([handle])  # not through the handle: nobody looks at the outcome
    with pytest.raises(S4AsyncError, match="store"):
        call(tmp_path, store)
    assert not (tmp_path / "next.s4").exists()
    s4async.save({"n": 2}, tmp_path / "next.s4")
    s4async.wait_all()
    store.close()
    assert s4async.load(tmp_path / "next.s4") == {"n": 2}


def test_a_failed_step_is_not_in_the_store_and_can_be_repeated(tmp_path: Path) -> None:
    """Metadata of a save that failed must not be published, and its number must stay free."""
    with s4async.Checkpointer(tmp_path) as store:
        store.save({"n": 1}, step=1)
        (tmp_path / "data").rename(tmp_path / "kept")
        (tmp_path / "data").touch()
        with pytest.raises(StorageError):
            store.save_async({"n": 2}, step=2).result(60)
        (tmp_path / "data").unlink()
        (tmp_path / "kept").rename(tmp_path / "data")
        assert store.all_steps() == [1]
        store.save({"n": 2}, step=2)
        assert store.all_steps() == [1, 2] and store.load(2) == {"n": 2}


def test_a_failure_unseen_until_the_end_is_printed(tmp_path: Path) -> None:
    """The last save of a script fails, nobody holds its handle: the last chance to tell is stderr."""
    place = _failing(tmp_path)
    done = child(f"s4async.save_async({{'w': full(10, 1)}}, {str(place)!r})")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "save" in line and "blocker" in line
