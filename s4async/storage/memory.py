"""Objects in a dict: the model that every other storage is compared with, for tests and documentation.

``memory://name`` is one set of objects per name and process, so that two opens see the same ones; a path after the
name is a prefix, as in ``s3://bucket/prefix``. ``MemoryStorage()`` without a URL is a set of its own. Nothing here is
durable. Every call yields to the event loop once, so that code which would break on a real storage breaks here too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from s4async.errors import ClosedError, ObjectNotFoundError, PreconditionError, UsageError
from s4async.storage.base import ObjectInfo, as_bytes, check_key, check_range

__all__ = ["MemoryStorage"]

_SCHEME = "memory://"


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    modified_s: float


_NAMED: dict[str, dict[str, _Object]] = {}


class MemoryStorage:
    """Storage in this process's memory. ``url``: ``memory://name`` or ``memory://name/prefix``."""

    def __init__(self, url: str | None = None) -> None:
        name, _, prefix = (url or _SCHEME).removeprefix(_SCHEME).partition("/")
        if url is not None and not (url.startswith(_SCHEME) and name):
            raise UsageError(f"opening {url}: expected {_SCHEME}name")
        prefix = prefix.strip("/")
        if prefix:
            check_key(prefix)
        self._objects = {} if url is None else _NAMED.setdefault(name, {})
        self._prefix = f"{prefix}/" if prefix else ""
        self._url = f"{_SCHEME}{name}/{prefix}".rstrip("/") if url else f"{_SCHEME}(unnamed)"

    @property
    def url(self) -> str:
        return self._url

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        async with self.open_upload(key, if_absent=if_absent) as upload:
            await upload.write([memoryview(data)])
            return await upload.complete()

    @asynccontextmanager
    async def open_upload(
        self, key: str, *, if_absent: bool = False, nbytes_bound: int | None = None
    ) -> AsyncIterator[_MemoryUpload]:
        check_key(key)
        upload = _MemoryUpload(self, key, if_absent)
        await asyncio.sleep(0)
        try:
            yield upload
        finally:
            upload.usable = False

    @asynccontextmanager
    async def open_object(self, key: str) -> AsyncIterator[_MemoryReader]:
        await asyncio.sleep(0)
        yield _MemoryReader(f"{self._url}/{key}", self._find(key).data)

    async def head(self, key: str) -> ObjectInfo:
        await asyncio.sleep(0)
        return _info(key, self._find(key))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        start = self._prefix + prefix
        for full in sorted(self._objects):
            await asyncio.sleep(0)
            found = self._objects.get(full) if full.startswith(start) else None
            if found is not None:
                yield _info(full.removeprefix(self._prefix), found)

    async def delete(self, key: str) -> None:
        check_key(key)
        await asyncio.sleep(0)
        self._objects.pop(self._prefix + key, None)

    async def close(self) -> None:
        """Nothing to release; the objects of a named storage stay for the next open."""

    def _find(self, key: str) -> _Object:
        check_key(key)
        try:
            return self._objects[self._prefix + key]
        except KeyError:
            raise ObjectNotFoundError(f"reading {self._url}/{key}: there is no such object; check the name") from None

    def _publish(self, key: str, data: bytes, if_absent: bool) -> ObjectInfo:
        made = _Object(data, time.time())
        if not if_absent:
            self._objects[self._prefix + key] = made
        elif self._objects.setdefault(self._prefix + key, made) is not made:  # one step, whatever other threads do
            raise PreconditionError(f"writing {self._url}/{key}: the object exists already; it is unchanged")
        return _info(key, made)


class _MemoryUpload:
    def __init__(self, storage: MemoryStorage, key: str, if_absent: bool) -> None:
        self._storage, self._key, self._if_absent = storage, key, if_absent
        self._data = bytearray()
        self.usable = True

    async def write(self, buffers: Sequence[memoryview]) -> None:
        self._take()
        for buffer in buffers:
            self._data += as_bytes(buffer)
        await asyncio.sleep(0)
        self.usable = True

    async def complete(self) -> ObjectInfo:
        self._take()
        await asyncio.sleep(0)
        return self._storage._publish(self._key, bytes(self._data), self._if_absent)

    def _take(self) -> None:
        """A call that fails or is cancelled never gives the upload back."""
        if not self.usable:
            raise ClosedError(f"writing {self._storage.url}/{self._key}: the upload is over or failed; start a new one")
        self.usable = False


class _MemoryReader:
    def __init__(self, where: str, data: bytes) -> None:
        self._where, self._data = where, data

    @property
    def nbytes(self) -> int:
        return len(self._data)

    async def get_into(self, start: int, buffer: memoryview) -> None:
        check_range(self._where, start, buffer.nbytes, len(self._data))
        await asyncio.sleep(0)
        as_bytes(buffer)[:] = memoryview(self._data)[start : start + buffer.nbytes]


def _info(key: str, found: _Object) -> ObjectInfo:
    return ObjectInfo(key, len(found.data), found.modified_s)
