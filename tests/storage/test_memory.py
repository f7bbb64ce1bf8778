from __future__ import annotations

import asyncio
import uuid

import pytest

from s4async.errors import UsageError
from s4async.storage.base import Storage, open_storage
from s4async.storage.memory import MemoryStorage
from tests.contracts.storage import StorageContract, keys, read


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()


class TestNamedMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage(f"memory://{uuid.uuid4().hex}/some/prefix")


def test_a_name_means_the_same_objects_everywhere() -> None:
    name = uuid.uuid4().hex

    async def body() -> None:
        first, second = open_storage(f"memory://{name}"), open_storage(f"memory://{name}/")
        await first.put("a/b", b"1")
        await first.close()
        assert await read(second, "a/b") == b"1"
        below = open_storage(f"memory://{name}/a")
        assert await read(below, "b") == b"1"
        assert await keys(below) == ["b"]
        assert below.url == f"memory://{name}/a"
        assert await keys(open_storage(f"memory://{uuid.uuid4().hex}")) == []
        assert await keys(MemoryStorage()) == []

    asyncio.run(body())


def test_a_url_without_a_name_is_refused() -> None:
    for url in ("memory://", "memory:///a", "file:///x"):
        with pytest.raises(UsageError, match="memory://name"):
            MemoryStorage(url)
    with pytest.raises(UsageError, match="choose another name"):
        MemoryStorage("memory://name/a/../b")
