"""A state as an object with nothing in it that changes from run to run: no clock, no random uuid."""

from pathlib import Path

from s4async import engine
from s4async.format.manifest import Manifest
from s4async.format.object import FOOTER_NBYTES, HEADER_NBYTES, parse_footer, unpack_manifest
from s4async.options import Options
from s4async.pipeline.flow import Meter
from s4async.pipeline.plan import plan
from s4async.pipeline.save import SaveJob, save_object
from s4async.pipeline.snapshot import Live
from s4async.state import capture
from s4async.storage.memory import MemoryStorage

__all__ = ["FOLDER", "encoded", "parts", "path"]

FOLDER = Path(__file__).parent / "v1"
OPTIONS = Options(frame_bytes=64 << 10, chunk_bytes=16 << 10, small_bytes=16 << 10)  # several of each in small files


def path(name: str) -> Path:
    return FOLDER / f"{name}.s4"


def encoded(state: object) -> bytes:
    """The bytes of ``state`` as an object."""
    captured = capture(state)
    regions = tuple(source.region for source in captured.sources)
    manifest = Manifest(b"golden vector 01", regions, (), captured.skeleton, {"writer": "golden"}, b'{"a": 1}')
    frames = plan(regions, OPTIONS.frame_bytes, OPTIONS.small_bytes)
    storage = MemoryStorage()
    job = SaveJob(storage, "x", False, manifest, frames, Live(captured.sources), Meter(), lambda: None)

    async def work() -> bytes:
        await save_object(job, engine.current().tools(OPTIONS, background=False))
        async with storage.open_object("x") as reader:
            buffer = bytearray(reader.nbytes)
            await reader.get_into(0, memoryview(buffer))
        return bytes(buffer)

    return engine.current().run(work())


def parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Header, frames, and the manifest decompressed: another zlib may compress the same manifest otherwise."""
    footer = parse_footer(data[-FOOTER_NBYTES:], len(data), "vector")
    manifest = unpack_manifest(data[footer.offset : footer.offset + footer.nbytes], footer, "vector")
    return data[:HEADER_NBYTES], data[HEADER_NBYTES : footer.offset], manifest
