"""Objects as files below a folder. The asynchronous face of ``newfile`` and ``files``; blocking calls run in threads.

A key is a path below the root. Temporaries of unfinished uploads lie beside their targets, hidden and never listed.
Missing folders are made by an upload and removed by the ``delete`` that empties them. A reader keeps one descriptor,
so it goes on reading the object it opened when that is replaced or deleted. Links to folders are used but not listed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager

from s4async.errors import ClosedError
from s4async.storage.base import ObjectInfo, check_key, key_fault, local_path
from s4async.storage.files import OpenFile, remove_file, scan_folder, stat_file
from s4async.storage.newfile import NewFile
from s4async.storage.threads import IOThreads

__all__ = ["LocalStorage"]


class LocalStorage:
    """Storage in a folder (path or ``file://`` URL), which need not exist yet.

    ``executor``: where blocking calls run, left open by ``close``; by default a few own threads.
    """

    def __init__(
        self, root: str | bytes | os.PathLike[str] | os.PathLike[bytes], *, executor: Executor | None = None
    ) -> None:
        self._root = local_path(root).rstrip("/") or "/"
        self._threads = IOThreads(executor)

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

    @property
    def url(self) -> str:
        return self._root

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        async with self.open_upload(key, if_absent=if_absent) as upload:
            await upload.write([memoryview(data)])
            return await upload.complete()

    @asynccontextmanager
    async def open_upload(
        self, key: str, *, if_absent: bool = False, nbytes_bound: int | None = None
    ) -> AsyncIterator[_LocalUpload]:
        """``nbytes_bound`` is ignored: files need no plan, and it may be far above the size."""
        file = NewFile(self._path(key), if_absent)
        try:
            await self._threads.run(file.create)
            yield _LocalUpload(key, file, self._threads)
        finally:
            if file.is_open:
                await self._threads.run(file.discard)

    @asynccontextmanager
    async def open_object(self, key: str) -> AsyncIterator[_LocalReader]:
        file = OpenFile(self._path(key))
        try:
            await self._threads.run(file.open)
            yield _LocalReader(file, self._threads)
        finally:
            if file.is_open:
                await self._threads.run(file.close)

    async def head(self, key: str) -> ObjectInfo:
        return _info(key, await self._threads.run(stat_file, self._path(key)))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        folder, slash, start = prefix.rpartition("/")
        if folder and key_fault(folder):
            return  # no key can start like that
        pending: list[tuple[str, os.stat_result | None]] = [(folder + slash, None)]  # next one last; None: a folder
        while pending:
            name, status = pending.pop()
            if status is not None:
                yield _info(name, status)
                continue
            found = await self._threads.run(scan_folder, self._root, name, start)
            start = ""  # it was about names in the first folder
            inside = [(name + entry, status) for entry, status in reversed(found)]
            pending += [item for item in inside if not key_fault(item[0].rstrip("/"))]

    async def delete(self, key: str) -> None:
        """Also removes the folders below the root that this leaves empty. Of a symbolic link only the link goes."""
        await self._threads.run(remove_file, self._path(key), self._root)

    async def close(self) -> None:
        self._threads.close()

    def _path(self, key: str) -> str:
        check_key(key)
        return os.path.join(self._root, key)


class _LocalUpload:
    def __init__(self, key: str, file: NewFile, threads: IOThreads) -> None:
        self._key, self._file, self._threads = key, file, threads
        self._usable = True

    async def write(self, buffers: Sequence[memoryview]) -> None:
        self._take()
        await self._threads.run(self._file.write, buffers)
        self._usable = True

    async def complete(self) -> ObjectInfo:
        self._take()
        return _info(self._key, await self._threads.run(self._file.complete))

    def _take(self) -> None:
        """A call that fails or is cancelled never gives the upload back, so that no object can lack bytes."""
        if not (self._usable and self._file.is_open):
            raise ClosedError(f"writing {self._file.path}: the upload is over or failed; start a new one")
        self._usable = False


class _LocalReader:
    def __init__(self, file: OpenFile, threads: IOThreads) -> None:
        self._file, self._threads = file, threads

    @property
    def nbytes(self) -> int:
        return self._file.nbytes

    async def get_into(self, start: int, buffer: memoryview) -> None:
        await self._threads.run(self._file.read_into, start, buffer)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, status.st_mtime)
