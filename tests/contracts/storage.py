"""What every storage must do. Subclass ``StorageContract`` (or ``ObjectContract`` where there is but one object).

A subclass gives the fixture ``storage`` and, where something can be left lying about, ``debris``. Each test runs on
every event loop that is installed. Nothing here knows a driver.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar, cast

import pytest

from s4async.errors import (
    ClosedError,
    CorruptionError,
    ObjectNotFoundError,
    PreconditionError,
    S4AsyncError,
    UsageError,
)
from s4async.storage.base import Storage

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

LOOPS = ["asyncio", "uvloop"] if importlib.util.find_spec("uvloop") else ["asyncio"]
MIB = 1 << 20
STRANGE_KEYS = [
    "a b.s4",
    "größe/模型/🙂.s4",
    ".hidden",
    "...",
    "-rf",
    "~/x",
    "%41?#&=+@:*",
    "a'\"b",
    "nbsp\u00a0x",
    "deep/" * 20 + "x",
    "x.s4tmp",
]
BAD_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\\b", "a\nb", "a\0b", "a\x7f", "x" * 1025]


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def noise(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(nbytes)


async def read(storage: Storage, key: str) -> bytes:
    """The whole object."""
    async with storage.open_object(key) as reader:
        data = bytearray(reader.nbytes)
        await reader.get_into(0, memoryview(data))
        return bytes(data)


async def keys(storage: Storage, prefix: str = "") -> list[str]:
    return [info.key async for info in storage.list(prefix)]


class ObjectContract:
    """One object: writing it once, reading it in any order."""

    key = "object"

    @pytest.fixture
    def storage(self) -> Storage:
        raise NotImplementedError

    @pytest.fixture(params=LOOPS)
    def run(self, request: pytest.FixtureRequest) -> Iterator[Run[Any]]:
        with asyncio.Runner(loop_factory=lambda: new_loop(request.param)) as runner:
            yield runner.run

    def between(self, storage: Storage) -> None:
        """Called between writing and reading."""

    def debris(self, storage: Storage) -> list[str]:
        """Whatever an unfinished upload has left behind."""
        return []

    async def is_absent(self, storage: Storage, key: str) -> bool:
        with pytest.raises(ObjectNotFoundError, match=key):
            await storage.head(key)
        with pytest.raises(ObjectNotFoundError, match=key):
            async with storage.open_object(key):
                pass
        return self.debris(storage) == []

    def test_put_then_read(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            info = await storage.put(self.key, b"some bytes")
            assert (info.key, info.nbytes) == (self.key, 10)
            assert info.modified_s > 1.7e9
            self.between(storage)
            assert await read(storage, self.key) == b"some bytes"
            self.between(storage)
            assert (await storage.head(self.key)).nbytes == 10
            assert self.debris(storage) == []

        run(body())

    def test_nothing_is_there_at_first(self, storage: Storage, run: Run[Any]) -> None:
        assert run(self.is_absent(storage, self.key))

    def test_upload_keeps_the_order(self, storage: Storage, run: Run[Any]) -> None:
        pieces = [noise(n, n) for n in (1, 0, 4096, 3, 100_000)]
        many = [bytes([i % 251]) for i in range(3000)]  # more buffers than one system call takes

        async def body() -> None:
            async with storage.open_upload(self.key, nbytes_bound=10 * MIB) as upload:
                await upload.write([memoryview(piece) for piece in pieces])
                await upload.write([])
                await upload.write([memoryview(piece) for piece in many])
                wide = memoryview(noise(64)).cast("I").cast("B").cast("d")
                await upload.write([cast(memoryview, wide), memoryview(noise(24)).cast("B", [2, 3, 4])])
                info = await upload.complete()
            expected = b"".join(pieces) + b"".join(many) + noise(64) + noise(24)
            assert info.nbytes == len(expected)
            self.between(storage)
            assert await read(storage, self.key) == expected

        run(body())

    def test_empty_object(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            async with storage.open_upload(self.key) as upload:
                assert (await upload.complete()).nbytes == 0
            self.between(storage)
            assert await read(storage, self.key) == b""

        run(body())

    def test_large_object_read_in_pieces_side_by_side(self, storage: Storage, run: Run[Any]) -> None:
        data = noise(5 * MIB + 3)

        async def body() -> None:
            async with storage.open_upload(self.key) as upload:
                for start in range(0, len(data), MIB):
                    await upload.write([memoryview(data)[start : start + MIB]])
                await upload.complete()
            self.between(storage)
            got = bytearray(len(data))
            async with storage.open_object(self.key) as reader:
                assert reader.nbytes == len(data)
                starts = list(range(0, len(data), 300_000))
                random.Random(1).shuffle(starts)
                async with asyncio.TaskGroup() as group:
                    for start in starts:
                        group.create_task(reader.get_into(start, memoryview(got)[start : start + 300_000]))
            assert got == data

        run(body())

    def test_buffers_may_be_reused_once_write_returns(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            buffer = bytearray(MIB)
            async with storage.open_upload(self.key) as upload:
                for value in range(4):
                    buffer[:] = bytes([value]) * MIB
                    await upload.write([memoryview(buffer)])
                    buffer[:] = b"\xff" * MIB
                await upload.complete()
            self.between(storage)
            assert await read(storage, self.key) == b"".join(bytes([value]) * MIB for value in range(4))

        run(body())

    def test_reading_outside_the_object(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            await storage.put(self.key, b"0123456789")
            self.between(storage)
            async with storage.open_object(self.key) as reader:
                buffer = bytearray(4)
                await reader.get_into(6, memoryview(buffer))
                assert buffer == b"6789"
                await reader.get_into(10, memoryview(bytearray()))
                for start in (7, 10, 1 << 62, -1):
                    with pytest.raises(CorruptionError, match=rf"expected 4 bytes from byte {start}.* 10 bytes"):
                        await reader.get_into(start, memoryview(buffer))

        run(body())

    @pytest.mark.parametrize("written", [False, True])
    def test_leaving_without_complete_leaves_nothing(self, storage: Storage, run: Run[Any], written: bool) -> None:
        async def body() -> None:
            async with storage.open_upload(self.key) as upload:
                if written:
                    await upload.write([memoryview(noise(MIB))])
            assert await self.is_absent(storage, self.key)

        run(body())

    def test_an_exception_leaves_nothing(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            with pytest.raises(ZeroDivisionError):
                async with storage.open_upload(self.key) as upload:
                    await upload.write([memoryview(noise(MIB))])
                    raise ZeroDivisionError
            assert await self.is_absent(storage, self.key)

        run(body())

    def test_cancelling_between_writes_leaves_nothing(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            written = asyncio.Event()

            async def save() -> None:
                async with storage.open_upload(self.key) as upload:
                    await upload.write([memoryview(noise(MIB))])
                    written.set()
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(save())
            await written.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await self.is_absent(storage, self.key)

        run(body())

    @pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
    def test_cancelling_during_any_call_is_all_or_nothing(self, storage: Storage, run: Run[Any], turns: int) -> None:
        async def body() -> None:
            async def save() -> None:
                async with storage.open_upload(self.key) as upload:
                    await upload.write([memoryview(noise(MIB))])
                    await upload.complete()

            task = asyncio.ensure_future(save())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            try:
                self.between(storage)
                assert await read(storage, self.key) in (b"", noise(MIB))  # b"": a stream has no absent object
            except ObjectNotFoundError:
                assert task.cancelled()
            assert self.debris(storage) == []

        run(body())

    def test_a_cancelled_write_spoils_the_upload(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            async with storage.open_upload(self.key) as upload:
                task = asyncio.ensure_future(upload.write([memoryview(noise(MIB))]))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                with pytest.raises(S4AsyncError):
                    await upload.complete()
            assert await self.is_absent(storage, self.key)

        run(body())

    def test_a_completed_upload_takes_no_more(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            async with storage.open_upload(self.key) as upload:
                await upload.write([memoryview(b"all")])
                await upload.complete()
                with pytest.raises(ClosedError, match="over"):
                    await upload.write([memoryview(b"more")])
                with pytest.raises(ClosedError, match="over"):
                    await upload.complete()
            self.between(storage)
            assert await read(storage, self.key) == b"all"

        run(body())

    def test_close_is_idempotent_and_keeps_objects(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            await storage.close()
            await storage.put(self.key, b"kept")
            await storage.close()
            await storage.close()
            self.between(storage)
            assert await read(storage, self.key) == b"kept"
            await storage.close()

        run(body())


class StorageContract(ObjectContract):
    """Many objects: names, order, replacing, races."""

    key = "folder/object.s4"

    def test_put_replaces(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            for data in (b"a long first version", b"short", b""):
                await storage.put(self.key, data)
                assert await read(storage, self.key) == data
            assert await keys(storage) == [self.key]
            assert self.debris(storage) == []

        run(body())

    def test_a_reader_sees_one_object_even_if_it_is_replaced(self, storage: Storage, run: Run[Any]) -> None:
        old, new = b"o" * MIB, b"n" * (2 * MIB)

        async def body() -> None:
            for change in (storage.put(self.key, new), storage.delete(self.key)):
                await storage.put(self.key, old)
                async with storage.open_object(self.key) as reader:
                    got = bytearray(MIB)
                    await reader.get_into(0, memoryview(got)[:100])
                    await change
                    assert reader.nbytes == MIB
                    try:
                        await reader.get_into(100, memoryview(got)[100:])
                    except S4AsyncError:  # a storage that cannot go on must say so
                        continue
                    assert got == old
            assert await self.is_absent(storage, self.key)

        run(body())

    def test_invisible_until_complete(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            async with storage.open_upload(self.key) as upload:
                await upload.write([memoryview(noise(MIB))])
                assert await keys(storage) == []
                with pytest.raises(ObjectNotFoundError):
                    await storage.head(self.key)
                await upload.complete()
                assert await keys(storage) == [self.key]
            async with storage.open_upload(self.key) as upload:
                await upload.write([memoryview(b"second")])
                assert (await storage.head(self.key)).nbytes == MIB
                await upload.complete()
                assert (await storage.head(self.key)).nbytes == 6

        run(body())

    def test_if_absent_never_replaces(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            await storage.put(self.key, b"first", if_absent=True)
            with pytest.raises(PreconditionError, match=self.key):
                await storage.put(self.key, b"second", if_absent=True)
            with pytest.raises(PreconditionError, match=self.key):
                async with storage.open_upload(self.key, if_absent=True) as upload:
                    await upload.write([memoryview(b"third")])
                    await upload.complete()
            assert await read(storage, self.key) == b"first"
            await storage.delete(self.key)
            await storage.put(self.key, b"again", if_absent=True)
            assert await keys(storage) == [self.key]
            assert self.debris(storage) == []

        run(body())

    def test_one_of_many_racing_if_absent_wins(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            puts = [storage.put(self.key, bytes([i]) * 1000, if_absent=True) for i in range(8)]
            results = await asyncio.gather(*puts, return_exceptions=True)
            losers = [result for result in results if isinstance(result, PreconditionError)]
            assert len(losers) == 7
            winner = next(i for i, result in enumerate(results) if not isinstance(result, BaseException))
            assert await read(storage, self.key) == bytes([winner]) * 1000
            assert self.debris(storage) == []

        run(body())

    def test_uploads_side_by_side(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            async def save(key: str, value: int) -> None:
                async with storage.open_upload(key) as upload:
                    for _ in range(5):
                        await upload.write([memoryview(bytes([value]) * 50_000)])
                    await upload.complete()

            async with asyncio.TaskGroup() as group:
                for value in range(6):
                    group.create_task(save(f"own/{value}", value))
                    group.create_task(save("shared", value))
            for value in range(6):
                assert await read(storage, f"own/{value}") == bytes([value]) * 250_000
            shared = await read(storage, "shared")
            assert len(shared) == 250_000
            assert len(set(shared)) == 1  # one of them, whole
            assert self.debris(storage) == []

        run(body())

    def test_list_is_in_key_order_and_by_prefix(self, storage: Storage, run: Run[Any]) -> None:
        names = ["a", "a-b/c", "a.b", "a0", "b/c/d", "b/c-d", "b/c.d/e", "b/c0", "b.c", "B", "é", "𝄞", "~"]

        async def body() -> None:
            for name in random.Random(2).sample(names, len(names)):
                await storage.put(name, name.encode())
            assert await keys(storage) == sorted(names)
            sizes = {info.key: info.nbytes async for info in storage.list()}
            assert sizes == {name: len(name.encode()) for name in names}
            for prefix in ("a", "a-", "a-b/", "b", "b/", "b/c", "b/c/", "b/c/d", "b/c/d/", "é", "x", "x/", "a/", "a/b"):
                assert await keys(storage, prefix) == sorted(n for n in names if n.startswith(prefix)), prefix
            for prefix in ("/", "../", "./a", "a//", "b/../"):
                assert await keys(storage, prefix) == [], prefix

        run(body())

    def test_list_goes_on_while_objects_come_and_go(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            for i in range(6):
                await storage.put(f"f{i}/x", b"1")
            seen = []
            async for info in storage.list():
                seen.append(info.key)
                await storage.delete(f"f{len(seen) + 2}/x")
                await storage.put("f0/new", b"1")
            assert seen[:3] == ["f0/x", "f1/x", "f2/x"]
            assert seen == sorted(set(seen))

        run(body())

    def test_delete(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            for key in ("a/b/c", "a/b/d", "a/e"):
                await storage.put(key, b"1")
            await storage.delete("a/b")  # no object
            await storage.delete("a/b/c")
            await storage.delete("a/b/c")
            await storage.delete("never/was/there")
            await storage.delete("a/e/never")
            assert await keys(storage) == ["a/b/d", "a/e"]
            await storage.delete("a/b/d")
            assert await keys(storage) == ["a/e"]
            await storage.put("a/b", b"now an object")
            assert await keys(storage) == ["a/b", "a/e"]

        run(body())

    def test_a_folder_is_no_object(self, storage: Storage, run: Run[Any]) -> None:
        async def body() -> None:
            await storage.put("a/b/c", b"1")
            for key in ("a", "a/b", "a/b/c/d", "b"):
                with pytest.raises(ObjectNotFoundError, match=key):
                    await storage.head(key)
                with pytest.raises(ObjectNotFoundError, match=key):
                    await read(storage, key)

        run(body())

    @pytest.mark.parametrize("key", STRANGE_KEYS)
    def test_strange_keys(self, storage: Storage, run: Run[Any], key: str) -> None:
        async def body() -> None:
            await storage.put(key, b"1", if_absent=True)
            assert await read(storage, key) == b"1"
            assert (await storage.head(key)).key == key
            assert await keys(storage) == [key]
            assert await keys(storage, key) == [key]
            await storage.delete(key)
            assert await keys(storage) == []

        run(body())

    @pytest.mark.parametrize("key", [*BAD_KEYS, "a/.x.0123.s4tmp"])
    def test_bad_keys_are_refused(self, storage: Storage, run: Run[Any], key: str) -> None:
        async def body() -> None:
            for call in (storage.put(key, b"1"), storage.head(key), read(storage, key), storage.delete(key)):
                with pytest.raises(UsageError, match="choose another name"):
                    await call
            with pytest.raises(UsageError, match="choose another name"):
                async with storage.open_upload(key):
                    pass
            assert await keys(storage) == []

        run(body())
