from __future__ import annotations

import asyncio

import pytest

from s4async.errors import ObjectNotFoundError
from s4async.storage.base import Storage
from s4async.storage.memory import MemoryStorage
from s4async.storage.wrappers import Call, Traced
from tests.contracts.storage import StorageContract, keys


class TestTraced(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return Traced(MemoryStorage())


def test_every_call_is_recorded() -> None:
    traced = Traced(MemoryStorage())

    async def body() -> None:
        await traced.put("a", b"123")
        async with traced.open_upload("b") as upload:
            await upload.write([memoryview(b"12"), memoryview(b"345")])
            await upload.write([memoryview(b"6")])
            await upload.complete()
        async with traced.open_object("b") as reader:
            buffer = bytearray(4)
            await reader.get_into(2, memoryview(buffer))
            assert buffer == b"3456"
            assert reader.nbytes == 6
        await traced.head("a")
        assert await keys(traced, "a") == ["a"]
        await traced.delete("a")
        with pytest.raises(ObjectNotFoundError):
            await traced.head("a")

    asyncio.run(body())
    assert traced.calls == [
        Call("put", "a", 0, 3),
        Call("open_upload", "b"),
        Call("write", "b", 0, 5),
        Call("write", "b", 5, 1),
        Call("complete", "b"),
        Call("open_object", "b"),
        Call("get_into", "b", 2, 4),
        Call("head", "a"),
        Call("list", "a"),
        Call("delete", "a"),
    ]
    assert (traced.count("write"), traced.nbytes("write"), traced.nbytes("get_into")) == (2, 6, 4)
