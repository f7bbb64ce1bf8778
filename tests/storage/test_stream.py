from __future__ import annotations

import asyncio
import bz2
import errno
import gzip
import io
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from s4async.errors import CorruptionError, ObjectNotFoundError, StorageError, UnsupportedError, UsageError
from s4async.storage.base import Storage
from s4async.storage.stream import STREAM_KEY, StreamStorage
from tests.contracts.storage import ObjectContract, Run, keys, noise, read

T = TypeVar("T")


class Custom:
    """The least that ``torch.save`` and ``torch.load`` ask for. Keeps what it is given, as such classes do."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.position = 0

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def read(self, count: int = -1) -> bytes:
        whole = b"".join(self.pieces)
        data = whole[self.position :] if count < 0 else whole[self.position : self.position + min(count, 5000)]
        self.position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> None:
        self.position = (0, self.position, sum(map(len, self.pieces)))[whence] + offset

    def tell(self) -> int:
        return self.position

    def truncate(self, size: int) -> None:
        self.pieces = [b"".join(self.pieces)[:size]]


def make(kind: str, folder: Path) -> Any:
    if kind == "file":
        return open(folder / "x", "w+b")
    if kind == "raw":
        return open(folder / "x", "w+b", buffering=0)
    makers: dict[str, Callable[[], Any]] = {
        "bytesio": io.BytesIO,
        "named": tempfile.NamedTemporaryFile,
        "unbuffered": lambda: tempfile.NamedTemporaryFile(buffering=0),  # noqa: SIM115 -- the fixture closes it
        "spooled": tempfile.SpooledTemporaryFile,
        "custom": Custom,
    }
    return makers[kind]()


class TestStreamStorage(ObjectContract):
    key = STREAM_KEY

    @pytest.fixture(params=["bytesio", "file", "raw", "named", "unbuffered", "spooled", "custom"])
    def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
        file = make(request.param, tmp_path)
        self.file = file
        storage = StreamStorage(file)
        yield storage
        asyncio.run(storage.close())
        getattr(file, "close", int)()

    def between(self, storage: Storage) -> None:
        self.file.seek(0)

    async def is_absent(self, storage: Storage, key: str) -> bool:
        self.file.seek(0)
        return not self.file.read()

    def test_nothing_is_there_at_first(self, storage: Storage, run: Run[Any]) -> None:
        assert run(storage.head(self.key)).nbytes == 0  # an open file always has its object


def run(work: Callable[[StreamStorage], Coroutine[Any, Any, T]], file: object) -> T:
    async def body() -> T:
        storage = StreamStorage(file)
        try:
            return await work(storage)
        finally:
            await storage.close()

    return asyncio.run(body())


def put(data: bytes) -> Callable[[StreamStorage], Coroutine[Any, Any, Any]]:
    return lambda storage: storage.put(STREAM_KEY, data)


def get(storage: StreamStorage) -> Coroutine[Any, Any, bytes]:
    return read(storage, STREAM_KEY)


async def fail_in_the_middle(storage: StreamStorage) -> None:
    async with storage.open_upload(STREAM_KEY) as upload:
        await upload.write([memoryview(b"half")])
        raise ZeroDivisionError


def test_positions_are_respected() -> None:
    file = io.BytesIO(b"head")
    file.seek(4)
    run(put(b"first"), file)
    assert file.tell() == 9
    run(put(b"second"), file)
    assert file.getvalue() == b"headfirstsecond"
    file.seek(9)
    assert run(get, file) == b"second"
    assert file.tell() == 15
    file.seek(4)
    assert run(get, file) == b"firstsecond"
    assert run(get, file) == b""


def test_the_position_comes_back_when_reading_fails() -> None:
    async def misread(storage: StreamStorage) -> None:
        async with storage.open_object(STREAM_KEY) as reader:
            await reader.get_into(0, memoryview(bytearray(3)))
            await reader.get_into(0, memoryview(bytearray(99)))

    file = io.BytesIO(b"12345678")
    file.seek(2)
    with pytest.raises(CorruptionError, match="<BytesIO>.* ends after 6 bytes"):
        run(misread, file)
    assert file.tell() == 2


@pytest.mark.parametrize("kind", ["bytesio", "file", "raw", "unbuffered", "spooled", "custom"])
def test_a_failed_upload_is_taken_back(tmp_path: Path, kind: str) -> None:
    file = make(kind, tmp_path)
    file.write(b"mine")
    if kind == "custom":
        file.seek(4)
    with pytest.raises(ZeroDivisionError):
        run(fail_in_the_middle, file)
    assert file.tell() == 4
    file.seek(0)
    assert file.read() == b"mine"
    getattr(file, "close", int)()


def test_a_failed_upload_into_the_middle_cuts_nothing_off() -> None:
    file = io.BytesIO(b"0123456789")
    file.seek(3)
    with pytest.raises(ZeroDivisionError):
        run(fail_in_the_middle, file)
    assert file.tell() == 3
    assert file.getvalue() == b"012half789"


def test_appending(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"mine")
    with open(tmp_path / "x", "ab") as file:
        with pytest.raises(ZeroDivisionError):
            run(fail_in_the_middle, file)
        run(put(b"!"), file)
        assert (tmp_path / "x").read_bytes() == b"mine!"  # flushed
        assert not file.closed


def test_writing_into_a_pipe_and_a_device() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as source:
        with open(writing, "wb") as file:
            assert run(put(b"through"), file).nbytes == 7
        assert source.read() == b"through"
    with open("/dev/null", "wb") as file:
        assert run(put(noise(1 << 20)), file).nbytes == 1 << 20
    for size in (100, 1 << 20):  # the small one stays in the file's buffer until it is flushed
        with suppress(OSError), open("/dev/full", "wb") as file:
            with pytest.raises(StorageError, match="<BufferedWriter '/dev/full'>: .*No space left on device") as caught:
                run(put(bytes(size)), file)
            assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("opener", [gzip.open, bz2.open])
def test_compressed_files(tmp_path: Path, opener: Callable[..., Any]) -> None:
    with opener(tmp_path / "x", "wb") as file:
        run(put(noise(50_000)), file)
    with opener(tmp_path / "x", "rb") as file:
        assert run(get, file) == noise(50_000)


def test_memory_is_not_kept_by_objects_that_keep_what_they_get() -> None:
    file = Custom()

    async def work(storage: StreamStorage) -> None:
        buffer = bytearray(b"1111")
        async with storage.open_upload(STREAM_KEY) as upload:
            await upload.write([memoryview(buffer)])
            buffer[:] = b"2222"
            await upload.complete()

    run(work, file)
    assert b"".join(file.pieces) == b"1111"


class Raw(io.RawIOBase):
    """Takes a few bytes at a time."""

    def __init__(self, result: Callable[[int], int | None]) -> None:
        self.data = bytearray()
        self.result = result

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int | None:
        count = self.result(len(data))
        self.data += bytes(data)[: count or 0]
        return count


def test_short_writes() -> None:
    raw = Raw(lambda count: min(count, 7))
    run(put(noise(1000)), raw)
    assert raw.data == noise(1000)
    with pytest.raises(StorageError, match="took None of 10 bytes"):
        run(put(bytes(10)), Raw(lambda count: None))
    with pytest.raises(StorageError, match="took 0 of 10 bytes"):
        run(put(bytes(10)), Raw(lambda count: 0))

    class Short(Custom):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            return len(data) - 1

    with pytest.raises(StorageError, match="took 9 of 10 bytes"):
        run(put(bytes(10)), Short())


def test_text_files_are_refused(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w+") as opened, tempfile.NamedTemporaryFile("w+") as named:
        for file in (opened, named, io.StringIO()):
            with pytest.raises(UsageError, match="text file; open it in binary mode"):
                StreamStorage(file)
    with tempfile.SpooledTemporaryFile(mode="w+") as spooled:
        with pytest.raises(UsageError, match="writing bytes to <SpooledTemporaryFile>"):
            run(put(b"1"), spooled)
        spooled.write("text")
        spooled.seek(0)
        with pytest.raises(UsageError, match="reading <SpooledTemporaryFile>"):
            run(get, spooled)

    class Text(Custom):
        def read(self, count: int = -1) -> str:  # type: ignore[override]
            return "text"

    text = Text()
    text.pieces = [b"1234"]
    with pytest.raises(UsageError, match=r"read\(4\) gave str"):
        run(get, text)


def test_what_cannot_do_the_job_is_refused(tmp_path: Path) -> None:
    for thing in (object(), 3, [b"1"]):
        with pytest.raises(UsageError, match="expected a path, a URL or an open binary file"):
            StreamStorage(thing)
    (tmp_path / "x").write_bytes(b"123")
    with open(tmp_path / "x", "rb") as readable, pytest.raises(UsageError, match="open it in mode 'wb'"):
        run(put(b"1"), readable)
    with open(tmp_path / "x", "ab") as writable, pytest.raises(UsageError, match="open it in mode 'rb'"):
        run(get, writable)
    reading, writing = os.pipe()
    os.close(writing)
    with open(reading, "rb") as pipe, pytest.raises(UsageError, match=r"cannot seek; pass io.BytesIO\(file.read\(\)\)"):
        run(get, pipe)

    class Reader:
        def read(self, count: int) -> bytes:
            return b""

    with pytest.raises(UsageError, match="cannot seek"):
        run(get, Reader())
    with pytest.raises(UsageError, match="not open for writing"):
        run(put(b"1"), Reader())


def test_closed_files() -> None:
    file = io.BytesIO()
    storage = StreamStorage(file)
    file.close()
    for work in (storage.put(STREAM_KEY, b"1"), read(storage, STREAM_KEY), storage.head(STREAM_KEY)):
        with pytest.raises(StorageError, match="<BytesIO>: I/O operation on closed file"):
            asyncio.run(work)
    asyncio.run(storage.close())


def test_errors_of_the_file_are_mapped() -> None:
    class Broken(Custom):
        def write(self, data: bytes) -> None:
            raise KeyError("odd")

        def read(self, count: int = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    for work in (put(b"1"), get):
        file = Broken()
        file.pieces = [b"123"]
        with pytest.raises(StorageError, match="<Broken>: ") as caught:
            run(work, file)
        assert isinstance(caught.value.__cause__, KeyError | OSError)


def test_a_file_that_shrinks() -> None:
    async def work(storage: StreamStorage) -> None:
        async with storage.open_object(STREAM_KEY) as reader:
            file.truncate(4)
            await reader.get_into(0, memoryview(bytearray(10)))

    file = io.BytesIO(bytes(10))
    with pytest.raises(CorruptionError, match="expected 10 bytes.* ends after 4"):
        run(work, file)


def test_what_an_open_file_has_no_notion_of() -> None:
    async def work(storage: StreamStorage) -> None:
        with pytest.raises(UnsupportedError, match="whether an object exists"):
            await storage.put(STREAM_KEY, b"1", if_absent=True)
        with pytest.raises(UnsupportedError, match="truncate it yourself"):
            await storage.delete(STREAM_KEY)
        with pytest.raises(ObjectNotFoundError, match="'other'"):
            await storage.head("other")
        assert await keys(storage) == [STREAM_KEY]
        assert await keys(storage, "x") == []

    run(work, io.BytesIO(b"123"))


def test_a_temporary_file_lives_as_long_as_its_storage() -> None:
    storage = StreamStorage(tempfile.NamedTemporaryFile())  # noqa: SIM115 -- nobody else holds it: the point
    asyncio.run(storage.put(STREAM_KEY, b"123"))
    asyncio.run(storage.close())
    storage._stream._owner.close()  # type: ignore[attr-defined]
