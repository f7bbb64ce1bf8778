"""A storage that fails on purpose: it raises, hangs until cancelled, or kills the process at its n-th call.

For exhaustive tests: run once with ``Faulty(storage)``, take ``len(faulty.calls)``, then run once for every call and
every ``When`` with a ``Fault`` there. Calls are numbered from 0 in the order in which they begin: entering an upload or
an object, every ``write``, ``complete``, ``get_into``, ``put``, ``head``, ``delete``, and a ``list`` as a whole.
"""

from __future__ import annotations

import asyncio
import enum
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from s4async.errors import ClosedError, StorageError
from s4async.storage.base import ObjectInfo, ObjectReader, Storage, Upload, as_bytes

EXIT_STATUS = 137  # as after kill -9


class When(enum.Enum):
    BEFORE = "before"  # nothing of the call has happened
    DURING = "during"  # half of the call's bytes were moved; a call that moves none has happened, as with AFTER
    AFTER = "after"  # all of it has happened, but the caller never hears of it


class Action(enum.Enum):
    RAISE = "raise"
    HANG = "hang"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at call number ``at``."""

    at: int
    when: When = When.BEFORE
    action: Action = Action.RAISE
    error: Exception | None = None  # instead of a plain StorageError


class Faulty:
    """``storage`` with at most one fault. ``calls``: the name and key of every call so far."""

    def __init__(self, storage: Storage, fault: Fault | None = None) -> None:
        self.storage = storage
        self.fault = fault
        self.calls: list[tuple[str, str]] = []
        self.hanging = asyncio.Event()  # set when the fault begins to hang

    def begin(self, operation: str, key: str) -> int:
        """Number this call."""
        self.calls.append((operation, key))
        return len(self.calls) - 1

    def is_due(self, number: int, when: When) -> bool:
        return self.fault is not None and self.fault.at == number and self.fault.when is when

    async def strike(self, number: int, when: When) -> None:
        """Let the fault happen if this is its place."""
        if self.fault is None or not self.is_due(number, when):
            return
        if self.fault.action is Action.KILL:
            os._exit(EXIT_STATUS)
        if self.fault.action is Action.HANG:
            self.hanging.set()
            await asyncio.Event().wait()
        operation, key = self.calls[number]
        raise self.fault.error or StorageError(f"{operation} {key}: injected fault {when.value} call {number}")

    @property
    def url(self) -> str:
        return self.storage.url

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        number = self.begin("put", key)
        await self.strike(number, When.BEFORE)
        if self.is_due(number, When.DURING):
            async with self.storage.open_upload(key, if_absent=if_absent) as upload:
                await upload.write([memoryview(data)[: len(data) // 2]])
                await self.strike(number, When.DURING)
        info = await self.storage.put(key, data, if_absent=if_absent)
        await self.strike(number, When.AFTER)
        return info

    @asynccontextmanager
    async def open_upload(
        self, key: str, *, if_absent: bool = False, nbytes_bound: int | None = None
    ) -> AsyncIterator[_FaultyUpload]:
        number = self.begin("open_upload", key)
        await self.strike(number, When.BEFORE)
        async with self.storage.open_upload(key, if_absent=if_absent, nbytes_bound=nbytes_bound) as upload:
            await self.strike(number, When.DURING)
            await self.strike(number, When.AFTER)
            yield _FaultyUpload(self, upload, key)

    @asynccontextmanager
    async def open_object(self, key: str) -> AsyncIterator[_FaultyReader]:
        number = self.begin("open_object", key)
        await self.strike(number, When.BEFORE)
        async with self.storage.open_object(key) as reader:
            await self.strike(number, When.DURING)
            await self.strike(number, When.AFTER)
            yield _FaultyReader(self, reader, key)

    async def head(self, key: str) -> ObjectInfo:
        number = self.begin("head", key)
        await self.strike(number, When.BEFORE)
        info = await self.storage.head(key)
        await self.strike(number, When.DURING)
        await self.strike(number, When.AFTER)
        return info

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        number = self.begin("list", prefix)
        await self.strike(number, When.BEFORE)
        first = True
        async for info in self.storage.list(prefix):
            yield info
            if first:
                await self.strike(number, When.DURING)
            first = False
        await self.strike(number, When.AFTER)

    async def delete(self, key: str) -> None:
        number = self.begin("delete", key)
        await self.strike(number, When.BEFORE)
        await self.storage.delete(key)
        await self.strike(number, When.DURING)
        await self.strike(number, When.AFTER)

    async def close(self) -> None:
        await self.storage.close()


class _FaultyUpload:
    def __init__(self, faulty: Faulty, upload: Upload, key: str) -> None:
        self._faulty, self._upload, self._key = faulty, upload, key
        self._spoilt = False

    async def write(self, buffers: Sequence[memoryview]) -> None:
        number = self._begin("write")
        await self._faulty.strike(number, When.BEFORE)
        if self._faulty.is_due(number, When.DURING):
            data = b"".join(map(as_bytes, buffers))
            await self._upload.write([memoryview(data)[: len(data) // 2]])
            await self._faulty.strike(number, When.DURING)
        await self._upload.write(buffers)
        await self._faulty.strike(number, When.AFTER)
        self._spoilt = False

    async def complete(self) -> ObjectInfo:
        number = self._begin("complete")
        await self._faulty.strike(number, When.BEFORE)
        info = await self._upload.complete()
        await self._faulty.strike(number, When.DURING)
        await self._faulty.strike(number, When.AFTER)
        return info

    def _begin(self, operation: str) -> int:
        if self._spoilt:
            raise ClosedError(f"{operation} {self._key}: the upload is over or failed")
        self._spoilt = True
        return self._faulty.begin(operation, self._key)


class _FaultyReader:
    def __init__(self, faulty: Faulty, reader: ObjectReader, key: str) -> None:
        self._faulty, self._reader, self._key = faulty, reader, key

    @property
    def nbytes(self) -> int:
        return self._reader.nbytes

    async def get_into(self, start: int, buffer: memoryview) -> None:
        number = self._faulty.begin("get_into", self._key)
        await self._faulty.strike(number, When.BEFORE)
        if self._faulty.is_due(number, When.DURING):
            await self._reader.get_into(start, as_bytes(buffer)[: buffer.nbytes // 2])
            await self._faulty.strike(number, When.DURING)
        await self._reader.get_into(start, buffer)
        await self._faulty.strike(number, When.AFTER)
