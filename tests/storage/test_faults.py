"""The fault injector itself, and with it: whatever a storage call does, the object is whole, old or absent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from s4async.errors import ObjectNotFoundError, StorageError
from s4async.storage.base import Storage
from s4async.storage.local import LocalStorage
from s4async.storage.memory import MemoryStorage
from tests.contracts.faults import Action, Fault, Faulty, When
from tests.contracts.storage import StorageContract, read

OLD, NEW = b"old" * 100, b"new" * 200


class TestFaultyWithoutFault(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return Faulty(MemoryStorage())


async def save(storage: Storage) -> None:
    async with storage.open_upload("a/x") as upload:
        await upload.write([memoryview(NEW)[:300]])
        await upload.write([memoryview(NEW)[300:]])
        await upload.complete()
    await storage.put("a/y", NEW)


async def use(storage: Storage) -> None:
    await save(storage)
    await storage.head("a/x")
    assert await read(storage, "a/x") == NEW
    assert [info.key async for info in storage.list()] == ["a/x", "a/y"]
    await storage.delete("a/y")


async def whole(storage: Storage, key: str) -> bytes | None:
    try:
        return await read(storage, key)
    except ObjectNotFoundError:
        return None


def count_calls() -> int:
    faulty = Faulty(MemoryStorage())
    asyncio.run(use(faulty))
    names = [name for name, _ in faulty.calls]
    assert ",".join(names) == "open_upload,write,write,complete,put,head,open_object,get_into,list,delete"
    return len(names)


CALLS = count_calls()


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("at", range(CALLS))
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_raising_at_every_call(tmp_path: Path, kind: str, at: int, when: When) -> None:
    async def body() -> None:
        inner: Storage = MemoryStorage() if kind == "memory" else LocalStorage(tmp_path)
        await inner.put("a/x", OLD)
        with pytest.raises(StorageError, match=f"injected fault {when.value} call {at}"):
            await use(Faulty(inner, Fault(at, when)))
        assert await whole(inner, "a/x") in (OLD, NEW)
        assert await whole(inner, "a/y") in (None, NEW)
        assert not list(tmp_path.rglob("*.s4tmp"))
        await inner.close()

    asyncio.run(body())


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("at", range(CALLS))
def test_hanging_at_every_call_until_cancelled(at: int, when: When) -> None:
    async def body() -> None:
        inner = MemoryStorage()
        await inner.put("a/x", OLD)
        faulty = Faulty(inner, Fault(at, when, Action.HANG))
        task = asyncio.ensure_future(use(faulty))
        await faulty.hanging.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(faulty.calls) == at + 1
        assert await whole(inner, "a/x") in (OLD, NEW)
        assert await whole(inner, "a/y") in (None, NEW)

    asyncio.run(body())


KILLS = """
import asyncio, os, sys
from s4async.storage.local import LocalStorage
from tests.contracts.faults import EXIT_STATUS, Action, Fault, Faulty, When
from tests.storage.test_faults import CALLS, NEW, OLD, save, use, whole

for at in range(CALLS):
    for when in When:
        root = f"{sys.argv[1]}/{at}-{when.value}"
        pid = os.fork()
        if not pid:
            inner = LocalStorage(root)
            asyncio.run(inner.put("a/x", OLD))
            asyncio.run(use(Faulty(inner, Fault(at, when, Action.KILL))))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_STATUS

async def look(root):
    storage = LocalStorage(root)
    found = [await whole(storage, "a/x"), await whole(storage, "a/y")]
    listed = [info.key async for info in storage.list()]
    await save(storage)
    names = sorted(os.listdir(root + "/a"))
    await storage.close()
    return found, listed, names

for name in sorted(os.listdir(sys.argv[1])):
    (x, y), listed, names = asyncio.run(look(f"{sys.argv[1]}/{name}"))
    assert x in (OLD, NEW) and y in (None, NEW), name
    assert listed == ["a/x"] + ["a/y"] * (y is not None), name
    assert names == ["x", "y"], names
print(len(os.listdir(sys.argv[1])))
"""


def test_killed_at_every_call(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(KILLS), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == CALLS * len(When)


def test_any_error_can_be_injected() -> None:
    faulty = Faulty(MemoryStorage(), Fault(0, error=ObjectNotFoundError("gone")))
    with pytest.raises(ObjectNotFoundError, match="gone"):
        asyncio.run(faulty.put("a", b""))
