from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from s4async.errors import CorruptionError, ObjectNotFoundError, StorageError
from s4async.storage.base import Storage, open_storage
from s4async.storage.local import LocalStorage
from tests.contracts.storage import StorageContract, keys, noise, read


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        storage = LocalStorage(tmp_path / "root")
        yield storage
        asyncio.run(storage.close())

    def debris(self, storage: Storage) -> list[str]:
        return [str(path) for path in Path(storage.url).rglob("*.s4tmp") if path.name.startswith(".")]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[LocalStorage]:
    storage = LocalStorage(tmp_path / "root")
    yield storage
    asyncio.run(storage.close())


def descriptors() -> list[str]:
    return sorted(
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    )


def test_the_root_may_be_given_in_many_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "a b%41"
    monkeypatch.chdir(tmp_path)
    ways = [str(root), str(root) + "//", root, os.fsencode(root), root.as_uri(), "a b%41", "./a b%41/"]
    opened = [open_storage(way) for way in ways]  # type: ignore[arg-type]
    monkeypatch.chdir("/")

    async def body() -> None:
        for i, storage in enumerate(opened):
            assert str(root) in os.path.normpath(storage.url)
            await storage.put(f"{i}", b"1")
            await storage.close()

    asyncio.run(body())
    assert sorted(os.listdir(root)) == [str(i) for i in range(len(ways))]


def test_root_of_the_file_system() -> None:
    storage = LocalStorage("/")

    async def body() -> None:
        assert (await storage.head("proc/self/comm")).key == "proc/self/comm"
        await storage.close()

    assert storage.url == "/"
    asyncio.run(body())


def test_blocking_calls_run_in_named_threads_only(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()

    def spied(call: Callable[..., Any]) -> Callable[..., Any]:
        def spy(*args: object, **kwargs: object) -> object:
            names.add(threading.current_thread().name)
            return call(*args, **kwargs)

        return spy

    for name in ("open", "writev", "preadv", "fsync", "rename", "unlink", "stat", "scandir", "close"):
        monkeypatch.setattr(os, name, spied(getattr(os, name)))

    async def body() -> None:
        await storage.put("a/b", b"1")
        assert await read(storage, "a/b") == b"1"
        assert await keys(storage) == ["a/b"]
        await storage.delete("a/b")

    loop = asyncio.new_event_loop()
    names.clear()
    loop.run_until_complete(body())
    seen = set(names)
    loop.close()
    assert seen
    assert all(name.startswith("s4async-io-") for name in seen), seen
    assert len(seen) <= 4


def test_a_given_executor_is_used_and_left_open(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        storage = LocalStorage(tmp_path, executor=executor)

        async def body() -> None:
            await storage.put("a", b"1")
            await storage.close()
            assert await read(storage, "a") == b"1"

        asyncio.run(body())
        assert executor.submit(int).result() == 0


def test_no_descriptor_and_no_thread_is_left(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        await storage.put("a", b"1")
        before = descriptors()
        await storage.put("a", noise(100))
        with pytest.raises(StorageError):
            await storage.put("a/b", b"1")
        with pytest.raises(ObjectNotFoundError):
            await read(storage, "missing")
        with pytest.raises(CorruptionError):
            async with storage.open_object("a") as reader:
                await reader.get_into(50, memoryview(bytearray(51)))
        for turns in range(6):
            for work in (storage.put("a", b"2"), read(storage, "a")):
                task = asyncio.ensure_future(work)
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
        assert descriptors() == before
        await storage.close()

    asyncio.run(body())
    for thread in threading.enumerate():
        if thread.name.startswith("s4async-io-"):
            thread.join(10)
            assert not thread.is_alive()


def test_a_cancelled_read_is_done_with_the_buffer(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    preadv = os.preadv

    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        entered.set()
        assert leave.wait(10)
        return preadv(fd, buffers, offset)

    async def body() -> None:
        await storage.put("a", b"x" * 100)
        monkeypatch.setattr(os, "preadv", slow)
        buffer = bytearray(100)
        async with storage.open_object("a") as reader:
            task = asyncio.ensure_future(reader.get_into(0, memoryview(buffer)))
            await asyncio.to_thread(entered.wait, 10)
            for _ in range(3):  # impatient callers change nothing
                task.cancel()
                await asyncio.sleep(0)
                assert not task.done()
            leave.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert buffer == b"x" * 100  # the thread has finished before the task did

    asyncio.run(body())


def test_an_object_shortened_in_place_while_it_is_read(storage: LocalStorage) -> None:
    async def body() -> None:
        await storage.put("a", noise(10_000))
        async with storage.open_object("a") as reader:
            os.truncate(Path(storage.url) / "a", 6_000)
            with pytest.raises(
                CorruptionError, match=r"expected 9000 bytes from byte 1000, the object ends after 6000"
            ):
                await reader.get_into(1000, memoryview(bytearray(9000)))

    asyncio.run(body())


def test_short_reads_are_continued(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: preadv(fd, [buffers[0][:7]], offset))

    async def body() -> None:
        await storage.put("a", noise(1000))
        assert await read(storage, "a") == noise(1000)

    asyncio.run(body())


def test_folders_come_with_uploads_and_go_with_the_last_object(storage: LocalStorage) -> None:
    root = Path(storage.url)

    async def body() -> None:
        assert await keys(storage) == []
        assert await keys(storage, "a/b") == []
        await storage.delete("a/b/c")
        assert not root.exists()
        await storage.put("a/b/c", b"1")
        await storage.put("a/d", b"1")
        await storage.delete("a/b/c")
        assert sorted(os.listdir(root / "a")) == ["d"]
        await storage.delete("a/d")
        assert os.listdir(root) == []  # the root itself stays

    asyncio.run(body())


def test_uploads_into_a_folder_that_deletes_keep_emptying(storage: LocalStorage) -> None:
    async def worker(name: str) -> None:
        for _ in range(20):
            await storage.put(f"deep/er/{name}", b"1")
            await storage.delete(f"deep/er/{name}")

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(worker(name))
        assert os.listdir(storage.url) == []

    asyncio.run(body())


def test_what_is_listed(storage: LocalStorage, tmp_path: Path) -> None:
    root = Path(storage.url)

    async def body() -> None:
        await storage.put("folder/object", b"12")
        (root / "latest").symlink_to("folder/object")
        (root / "nowhere").symlink_to("gone")
        (root / "loop").symlink_to("loop")
        (root / "elsewhere").symlink_to(tmp_path)
        (root / "lost+found").mkdir()
        (root / "lost+found" / "x").touch()
        (root / "line\nbreak").touch()
        (root / "back\\slash").mkdir()
        (root / "back\\slash" / "x").touch()
        (root / f".x.{'0' * 24}.s4tmp").touch()
        (root / "folder" / ".y.s4tmp").touch()
        os.mkfifo(root / "pipe")
        (root / "empty").mkdir()
        assert await keys(storage) == ["folder/object", "latest"]
        assert (await storage.head("latest")).nbytes == 2
        assert await read(storage, "latest") == b"12"
        assert await read(storage, "elsewhere/root/latest") == b"12"
        await storage.delete("latest")
        assert await keys(storage) == ["folder/object"]

    asyncio.run(body())


def test_file_names_that_are_not_utf8(storage: LocalStorage) -> None:
    key = os.fsdecode(b"caf\xe9.s4")

    async def body() -> None:
        await storage.put(key, b"1")
        assert await keys(storage) == [key]
        assert await read(storage, key) == b"1"

    asyncio.run(body())
    assert os.listdir(os.fsencode(storage.url)) == [b"caf\xe9.s4"]


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    blocker = tmp_path / "blocker"
    blocker.write_bytes(b"kept")

    async def body() -> None:
        storage = LocalStorage(blocker)
        with pytest.raises(
            StorageError, match=r"writing .*/blocker/ck: .*/blocker is not a folder \(ENOTDIR\); a parent"
        ):
            await storage.put("ck", b"1")
        with pytest.raises(StorageError, match=r"listing .*/blocker.*ENOTDIR"):
            await keys(storage)
        with pytest.raises(ObjectNotFoundError, match="blocker/ck"):
            await storage.head("ck")
        await storage.delete("ck")
        await storage.close()

    asyncio.run(body())
    assert blocker.read_bytes() == b"kept"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_plain_file_is_not_read(storage: LocalStorage, kind: str) -> None:
    path = Path(storage.url) / "odd"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()

    async def body() -> None:
        match = "directory" if kind == "folder" else "pass the open file instead"
        for work in (read(storage, "odd"), storage.head("odd")):
            with pytest.raises(StorageError, match=match):
                await work

    asyncio.run(body())
    assert stat.S_IFMT(path.lstat().st_mode) != stat.S_IFREG
