"""An open file as a storage of one object, so that ``save`` and ``load`` take the file objects that torch takes.

Writing starts at the current position, ends with a flush and leaves the file open (its durability is the caller's); a
failed upload takes back what it wrote where the file can seek. Reading covers the bytes from the position at opening to
the end; afterwards the position is the end, or the old one if the reading failed. One thread at a time uses the file.
A file that cannot seek is not read: its size is unknown, and it could only be read in order, into unbounded memory.
What the file raises becomes a ``StorageError``; what it can never do is a ``UsageError``.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import BinaryIO, cast

from s4async.errors import (
    ClosedError,
    ObjectNotFoundError,
    S4AsyncError,
    StorageError,
    UnsupportedError,
    UsageError,
    map_errors,
)
from s4async.storage.base import ObjectInfo, as_bytes, check_range
from s4async.storage.threads import IOThreads

__all__ = ["STREAM_KEY", "StreamStorage"]

STREAM_KEY = "stream"  # the only key there is
_ANY = (Exception, KeyboardInterrupt, SystemExit)  # whatever it is, it came out of the file
_ERRORS: dict[type[BaseException] | tuple[type[BaseException], ...], Callable[[str], S4AsyncError]] = {
    (TypeError, AttributeError, io.UnsupportedOperation): UsageError,
    _ANY: StorageError,
}


class StreamStorage:
    """``file``: any object with ``write`` of bytes, or with ``read`` (or ``readinto``), ``seek`` and ``tell``."""

    def __init__(self, file: object) -> None:
        self._stream = _Stream(file)
        self._threads = IOThreads(threads=1)

    @property
    def url(self) -> str:
        return self._stream.name

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        async with self.open_upload(key, if_absent=if_absent) as upload:
            await upload.write([memoryview(data)])
            return await upload.complete()

    @asynccontextmanager
    async def open_upload(
        self, key: str, *, if_absent: bool = False, nbytes_bound: int | None = None
    ) -> AsyncIterator[_StreamUpload]:
        if if_absent:
            raise UnsupportedError(f"writing to {self.url}: an open file cannot tell whether an object exists")
        self._check_key(key)
        mark = await self._threads.run(self._stream.start_writing)
        upload = _StreamUpload(self._stream, self._threads)
        try:
            yield upload
        finally:
            upload.usable = False
            if not upload.completed and mark is not None:
                await self._threads.run(self._stream.take_back, *mark)

    @asynccontextmanager
    async def open_object(self, key: str) -> AsyncIterator[_StreamReader]:
        self._check_key(key)
        start, end = await self._threads.run(self._stream.span)
        after = start
        try:
            yield _StreamReader(self._stream, self._threads, start, end)
            after = end
        finally:
            await self._threads.run(self._stream.move, after)

    async def head(self, key: str) -> ObjectInfo:
        self._check_key(key)
        start, end = await self._threads.run(self._stream.span)
        return ObjectInfo(STREAM_KEY, end - start, time.time())

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        if STREAM_KEY.startswith(prefix):
            yield await self.head(STREAM_KEY)

    async def delete(self, key: str) -> None:
        raise UnsupportedError(f"deleting from {self.url}: an open file keeps its object; truncate it yourself")

    async def close(self) -> None:
        """Ends the thread. The file stays open: it is the caller's."""
        self._threads.close()

    def _check_key(self, key: str) -> None:
        if key != STREAM_KEY:
            raise ObjectNotFoundError(f"opening {key!r} in {self.url}: an open file has one object, {STREAM_KEY!r}")


class _StreamUpload:
    def __init__(self, stream: _Stream, threads: IOThreads) -> None:
        self._stream, self._threads = stream, threads
        self._nbytes = 0
        self.usable = True
        self.completed = False

    async def write(self, buffers: Sequence[memoryview]) -> None:
        self._take()
        await self._threads.run(self._stream.write, buffers)
        self._nbytes += sum(buffer.nbytes for buffer in buffers)
        self.usable = True

    async def complete(self) -> ObjectInfo:
        self._take()
        await self._threads.run(self._stream.flush)
        self.completed = True
        return ObjectInfo(STREAM_KEY, self._nbytes, time.time())

    def _take(self) -> None:
        """A call that fails or is cancelled never gives the upload back."""
        if not self.usable:
            raise ClosedError(f"writing to {self._stream.name}: the upload is over or failed; start a new one")
        self.usable = False


class _StreamReader:
    def __init__(self, stream: _Stream, threads: IOThreads, start: int, end: int) -> None:
        self._stream, self._threads, self._start = stream, threads, start
        self._nbytes = end - start

    @property
    def nbytes(self) -> int:
        return self._nbytes

    async def get_into(self, start: int, buffer: memoryview) -> None:
        check_range(self._stream.name, start, buffer.nbytes, self._nbytes)
        await self._threads.run(self._stream.read_into, self._start + start, buffer)


class _Stream:
    """The blocking side: the caller's file, its oddities and its errors."""

    def __init__(self, file: object) -> None:
        self._owner = file  # a temporary file is deleted when its wrapper is
        if isinstance(file, tempfile._TemporaryFileWrapper):  # it hides what kind of file it wraps
            file = file.file
        label = getattr(file, "name", None)
        self.name = f"<{type(file).__name__}{f' {label!r}' if isinstance(label, (str, bytes)) else ''}>"
        if isinstance(file, io.TextIOBase):
            raise UsageError(f"{self.name} is a text file; open it in binary mode ('wb' or 'rb')")
        if not any(hasattr(file, method) for method in ("write", "read", "readinto")):
            raise UsageError(f"expected a path, a URL or an open binary file, got {self.name}")
        self._file = cast(BinaryIO, file)

    def start_writing(self) -> tuple[int, int] | None:
        """Position and end of the file; ``None`` if it does not tell."""
        if not hasattr(self._file, "write") or not self._can("writable"):
            raise UsageError(f"writing to {self.name}: it is not open for writing; open it in mode 'wb'")
        if not self._can("seekable"):
            return None
        with suppress(Exception):  # pipes, compressors and the like; they are only written to
            return self._ends()
        return None

    def write(self, buffers: Sequence[memoryview]) -> None:
        with map_errors(_ERRORS, f"writing bytes to {self.name}"):
            for view in map(as_bytes, buffers):
                while view.nbytes:
                    # An object of unknown make may keep what it is given, and the memory is going to be reused.
                    data = view if isinstance(self._file, io.IOBase) else bytes(view)
                    view = view[self._accepted(self._file.write(data), view.nbytes) :]

    def _accepted(self, written: object, nbytes: int) -> int:
        """How many bytes a ``write`` of ``nbytes`` has taken, going by what it returned."""
        if isinstance(self._file, io.RawIOBase):
            if isinstance(written, int) and 0 < written <= nbytes:
                return written
        elif not isinstance(written, int) or written >= nbytes:  # many objects return nothing
            return nbytes
        raise StorageError(
            f"writing to {self.name}: it took {written} of {nbytes} bytes; use a buffered, blocking file"
        )

    def flush(self) -> None:
        with map_errors({_ANY: StorageError}, f"flushing {self.name}"):
            if hasattr(self._file, "flush"):
                self._file.flush()

    def take_back(self, position: int, end: int) -> None:
        with suppress(Exception):  # the failure that led here is the one to report
            if position >= end:  # only then is nothing of the caller's behind the position
                self._file.truncate(end)
            self._file.seek(position)

    def span(self) -> tuple[int, int]:
        """First byte and end of the object."""
        missing = [name for name in ("seek", "tell") if not hasattr(self._file, name)]
        if not (hasattr(self._file, "read") or hasattr(self._file, "readinto")) or not self._can("readable"):
            raise UsageError(f"reading {self.name}: it is not open for reading; open it in mode 'rb'")
        if missing or not self._can("seekable"):
            raise UsageError(f"reading {self.name}: it cannot seek; pass io.BytesIO(file.read()) instead")
        with map_errors({_ANY: StorageError}, f"reading {self.name}"):
            start, end = self._ends()
            return start, max(start, end)

    def read_into(self, start: int, buffer: memoryview) -> None:
        view, done = as_bytes(buffer), 0
        with map_errors(_ERRORS, f"reading {self.name}"):
            self._file.seek(start)
            while done < view.nbytes:
                got = self._read(view[done:])
                if not got:
                    check_range(self.name, 0, view.nbytes, done)
                done += got

    def _read(self, view: memoryview) -> int:
        if hasattr(self._file, "readinto"):
            got: int | None = cast(io.RawIOBase, self._file).readinto(view)
            return 0 if got is None else got  # None: nothing for now, which a plain file never says
        data = cast(object, self._file.read(view.nbytes))
        if not isinstance(data, (bytes, bytearray, memoryview)) or len(data) > view.nbytes:
            raise UsageError(
                f"reading {self.name}: read({view.nbytes}) gave {type(data).__name__}, expected at most that many bytes"
            )
        view[: len(data)] = data
        return len(data)

    def move(self, position: int) -> None:
        with suppress(Exception):  # a file closed meanwhile has no position; what was read is read
            self._file.seek(position)

    def _ends(self) -> tuple[int, int]:
        position = self._file.tell()
        self._file.seek(0, os.SEEK_END)
        end = self._file.tell()
        self._file.seek(position)
        return position, end

    def _can(self, what: str) -> bool:
        """Whether the file says that it is ``readable``, ``writable`` or ``seekable``; without such a method, yes."""
        ask = getattr(self._file, what, None)
        with map_errors({_ANY: StorageError}, f"opening {self.name}"):
            return bool(ask()) if callable(ask) else True
