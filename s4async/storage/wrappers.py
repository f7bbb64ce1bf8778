"""Storages around storages. ``Traced`` records every call, to show what a save or a restore really reads and writes.

A wrapper changes nothing that the caller sees, least of all errors. It knows the protocols only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from s4async.storage.base import ObjectInfo, ObjectReader, Storage, Upload

__all__ = ["Call", "Traced"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that returned normally. ``operation`` is the method's name; ``start`` and ``nbytes`` say which bytes of
    the object it moved (0 and 0 if none)."""

    operation: str
    key: str
    start: int = 0
    nbytes: int = 0


class Traced:
    """A storage that passes everything on and keeps ``calls``, in the order in which they returned."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.calls: list[Call] = []

    def count(self, operation: str) -> int:
        """Number of calls of ``operation``."""
        return sum(call.operation == operation for call in self.calls)

    def nbytes(self, operation: str) -> int:
        """Bytes moved by the calls of ``operation``."""
        return sum(call.nbytes for call in self.calls if call.operation == operation)

    @property
    def url(self) -> str:
        return self._storage.url

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        info = await self._storage.put(key, data, if_absent=if_absent)
        self.calls.append(Call("put", key, 0, len(data)))
        return info

    @asynccontextmanager
    async def open_upload(
        self, key: str, *, if_absent: bool = False, nbytes_bound: int | None = None
    ) -> AsyncIterator[_TracedUpload]:
        async with self._storage.open_upload(key, if_absent=if_absent, nbytes_bound=nbytes_bound) as upload:
            self.calls.append(Call("open_upload", key))
            yield _TracedUpload(upload, key, self.calls)

    @asynccontextmanager
    async def open_object(self, key: str) -> AsyncIterator[_TracedReader]:
        async with self._storage.open_object(key) as reader:
            self.calls.append(Call("open_object", key))
            yield _TracedReader(reader, key, self.calls)

    async def head(self, key: str) -> ObjectInfo:
        info = await self._storage.head(key)
        self.calls.append(Call("head", key))
        return info

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self._storage.list(prefix):
            yield info
        self.calls.append(Call("list", prefix))

    async def delete(self, key: str) -> None:
        await self._storage.delete(key)
        self.calls.append(Call("delete", key))

    async def close(self) -> None:
        await self._storage.close()


class _TracedUpload:
    def __init__(self, upload: Upload, key: str, calls: list[Call]) -> None:
        self._upload, self._key, self._calls = upload, key, calls
        self._nbytes = 0

    async def write(self, buffers: Sequence[memoryview]) -> None:
        nbytes = sum(buffer.nbytes for buffer in buffers)
        await self._upload.write(buffers)
        self._calls.append(Call("write", self._key, self._nbytes, nbytes))
        self._nbytes += nbytes

    async def complete(self) -> ObjectInfo:
        info = await self._upload.complete()
        self._calls.append(Call("complete", self._key))
        return info


class _TracedReader:
    def __init__(self, reader: ObjectReader, key: str, calls: list[Call]) -> None:
        self._reader, self._key, self._calls = reader, key, calls

    @property
    def nbytes(self) -> int:
        return self._reader.nbytes

    async def get_into(self, start: int, buffer: memoryview) -> None:
        await self._reader.get_into(start, buffer)
        self._calls.append(Call("get_into", self._key, start, buffer.nbytes))
