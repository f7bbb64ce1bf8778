"""Looking at a checkpoint without building it: what its manifest says, and whether every byte is right."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass

from s4async import engine
from s4async.codecs.base import readable
from s4async.errors import FormatError
from s4async.format.manifest import CONSTANT, RAW, Manifest
from s4async.format.planes import ROUNDED
from s4async.handle import CheckpointInfo
from s4async.loading import Found, Where, find, naming
from s4async.options import Options
from s4async.pipeline.flow import Meter
from s4async.pipeline.restore import verify_object
from s4async.state import Skeleton

__all__ = ["Entry", "Inspection", "inspect_place", "verify_place"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One leaf of the state. ``dtype`` is empty where there is none.
    ``stored_bytes``: its share of the frames; tied tensors count at the first of them.
    ``codecs``: what its planes are stored with, in order; ``derived``: rounded from another tensor, no bytes."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    raw_bytes: int
    stored_bytes: int
    codecs: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a checkpoint holds. Sizes in bytes; ``stored_bytes`` is the whole object."""

    url: str
    step: int | None
    format_version: int
    info: dict[str, str | int | float | bool | None]
    metadata: dict[str, object]
    entries: tuple[Entry, ...]
    frames: int
    raw_bytes: int
    stored_bytes: int
    cpu_readable: bool


def inspect_place(where: Where, options: Options) -> Inspection:
    """Read the manifest of ``where`` and describe it."""

    async def work() -> tuple[Found, int]:
        async with AsyncExitStack() as stack:
            found = await find(where, stack)
            return found, found.reader.nbytes

    found, nbytes = engine.current().run(work())
    return _describe(found, nbytes)


def verify_place(where: Where, options: Options) -> CheckpointInfo:
    """Read and check every byte of ``where``, and that its state can be described."""
    tools = engine.current().tools(options, background=False)

    async def work() -> tuple[Found, int]:
        async with AsyncExitStack() as stack:
            found = await find(where, stack)
            await verify_object(found.reader, found.manifest, tools, Meter(), found.name)
            return found, found.reader.nbytes

    found, nbytes = engine.current().run(work())
    with naming(found.name):
        Skeleton.decode(found.manifest.skeleton, found.manifest.regions)
    _metadata(found.manifest, found.name)
    step = None if found.record is None else found.record.step
    return CheckpointInfo(found.name, step, found.manifest.raw_nbytes, nbytes)


def _describe(found: Found, nbytes: int) -> Inspection:
    manifest = found.manifest
    with naming(found.name):
        skeleton = Skeleton.decode(manifest.skeleton, manifest.regions)
    stored, codecs = _by_region(manifest)
    entries: list[Entry] = []
    seen: set[int] = set()
    for leaf in skeleton.leaves:
        own = [region for region in leaf.regions if region not in seen]
        seen.update(own)
        entries.append(
            Entry(
                name=leaf.path,
                kind=leaf.kind,
                dtype=leaf.dtype or "",
                shape=leaf.shape or (),
                raw_bytes=sum(manifest.regions[region].nbytes for region in own),
                stored_bytes=sum(stored.get(region, 0) for region in own),
                codecs="" if leaf.region is None else codecs.get(leaf.region, ""),
            )
        )
    used = {blob.codec for frame in manifest.frames for blob in frame.blobs}
    return Inspection(
        url=found.name,
        step=None if found.record is None else found.record.step,
        format_version=manifest.version,
        info=dict(manifest.info),
        metadata=_metadata(manifest, found.name),
        entries=tuple(entries),
        frames=len(manifest.frames),
        raw_bytes=manifest.raw_nbytes,
        stored_bytes=nbytes,
        cpu_readable=all(readable(codec, "cpu") for codec in used - {RAW, CONSTANT}),
    )


def _metadata(manifest: Manifest, name: str) -> dict[str, object]:
    try:
        found = json.loads(manifest.metadata)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: rule 'metadata is a JSON object': {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{name}: rule 'metadata is a JSON object': it is a {type(found).__name__}")
    return found


def _by_region(manifest: Manifest) -> tuple[dict[int, int], dict[int, str]]:
    """Stored bytes of each region (a shared frame counts in proportion to the raw bytes) and its planes' codecs."""
    stored: dict[int, int] = {}
    codecs: dict[int, str] = {}
    for frame in manifest.frames:
        planes = "derived" if frame.layout == ROUNDED else " ".join(blob.codec for blob in frame.blobs)
        at = 0
        for extent in frame.extents:
            end = at + extent.nbytes
            share = [frame.stored_nbytes * edge // frame.raw_nbytes for edge in (at, end)]  # so that shares add up
            stored[extent.region] = stored.get(extent.region, 0) + share[1] - share[0]
            codecs.setdefault(extent.region, planes)
            at = end
    return stored, codecs
