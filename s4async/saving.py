"""What every save does: admit, capture, snapshot, and hand the rest to the engine.

On the caller's thread: the overlap rule, walking the state, copying it. Then a coroutine on the engine's loop runs the
write pipeline and commits. A ``Destination`` says where the bytes go and what the commit is: one object, or a step of
a store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import torch

from s4async import engine
from s4async.catalog import Catalog, CommitRecord, DataObject, check_step
from s4async.errors import OptionsError, PreconditionError, S4AsyncError, UsageError
from s4async.format.manifest import Manifest
from s4async.frame import Frame
from s4async.handle import CheckpointInfo, SaveHandle
from s4async.options import ON_OVERLAP, Options
from s4async.pending import Slot, pending
from s4async.pipeline.flow import Meter
from s4async.pipeline.plan import plan
from s4async.pipeline.save import SaveJob, Tools, save_object
from s4async.pipeline.snapshot import Live, Raw, Snapshot
from s4async.state import capture
from s4async.storage.base import Storage
from s4async.trace import LOG, span
from s4async.version import __version__

__all__ = ["Destination", "Draft", "ObjectDestination", "StepDestination", "begin_save", "wait_blocking"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A captured state on its way: all of a ``SaveJob`` but the place."""

    manifest: Manifest
    frames: tuple[Frame, ...]
    raw: Raw
    handle: SaveHandle

    def job(self, storage: Storage, key: str, *, if_absent: bool, commits: bool) -> SaveJob:
        """``commits``: whether completing the object is the commit."""
        hold = self.handle.hold if commits else _nothing
        return SaveJob(storage, key, if_absent, self.manifest, self.frames, self.raw, self.handle.meter, hold)


def _nothing() -> None:
    """Completing a data object makes nothing visible: the commit record does."""


class Destination(Protocol):
    """Where a save goes. ``name`` is for messages."""

    @property
    def name(self) -> str: ...

    async def store(self, draft: Draft, tools: Tools) -> CheckpointInfo:
        """Write and commit, or leave nothing visible behind."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectDestination:
    """One self-contained object, replacing an older one of that name in one moment."""

    storage: Storage
    key: str
    name: str
    owned: bool = True  # whether the storage was opened for this save and is closed after it

    async def store(self, draft: Draft, tools: Tools) -> CheckpointInfo:
        try:
            job = draft.job(self.storage, self.key, if_absent=False, commits=True)
            info, manifest = await save_object(job, tools)
        finally:
            if self.owned:
                await self.storage.close()
        return CheckpointInfo(self.name, None, manifest.raw_nbytes, info.nbytes)


@dataclass(frozen=True, slots=True)
class StepDestination:
    """A step of a store. ``step=None``: the one after the newest, or after the last that this process used."""

    catalog: Catalog
    step: int | None
    owned: bool = False  # whether the storage was opened for this save and is closed after it

    @property
    def name(self) -> str:
        return f"{self.catalog.storage.url} step {'next' if self.step is None else self.step}"

    async def store(self, draft: Draft, tools: Tools) -> CheckpointInfo:
        try:
            return await self._store(draft, tools)
        finally:
            if self.owned:
                await self.catalog.storage.close()

    async def _store(self, draft: Draft, tools: Tools) -> CheckpointInfo:
        storage = self.catalog.storage
        step = self.step
        if step is None:
            newest = await self.catalog.latest()
            step = 0 if newest is None else check_step(newest + 1)
        elif await self.catalog.exists(step):
            raise PreconditionError(f"{storage.url}: step {step} is committed already; delete it or use another step")
        draft.handle.step = step
        uuid = draft.manifest.uuid.hex()
        key = f"data/{step:020d}-{uuid}.s4"
        named = False  # whether a visible record may name the object
        try:
            info, manifest = await save_object(draft.job(storage, key, if_absent=True, commits=False), tools)
            draft.handle.state = "STORED"
            item = DataObject(key=key, rank=0, nbytes=info.nbytes, uuid=uuid)
            record = CommitRecord(
                s4async="commit",
                version=1,
                step=step,
                created=datetime.now(UTC).isoformat(timespec="milliseconds"),
                raw_bytes=manifest.raw_nbytes,
                stored_bytes=info.nbytes,
                objects=(item,),
            )
            draft.handle.hold()
            start, named = time.perf_counter(), True
            await self.catalog.commit(record)
            draft.handle.meter.commit_s += time.perf_counter() - start
        except (PreconditionError, asyncio.CancelledError) as error:
            # Nobody will name this object. After any other failure the record may be visible, so its object stays.
            if isinstance(error, PreconditionError) or not named:
                with suppress(S4AsyncError):
                    await storage.delete(key)
            raise
        return CheckpointInfo(storage.url, step, manifest.raw_nbytes, info.nbytes)


def begin_save(
    obj: object,
    destination: Destination,
    options: Options,
    *,
    background: bool,
    on_overlap: str,
    pickle_objects: bool = False,
    metadata: Mapping[str, object] | None = None,
) -> SaveHandle:
    """Everything that must happen on the caller's thread. ``background``: copy the state and return; otherwise the
    caller waits, so its own memory is read. Raises ``UnsupportedStateError``, ``OverlapError``, ``UsageError``."""
    start = time.perf_counter()
    if not background:
        engine.current().check_may_block()
    if on_overlap not in ON_OVERLAP:
        raise OptionsError(f"on_overlap={on_overlap!r}: expected one of {', '.join(ON_OVERLAP)}")
    user = _metadata(metadata)
    meter = Meter()
    handle = SaveHandle(f"to {destination.name}", meter)
    pending().exit_timeout_s = options.exit_timeout_s
    slot = pending().admit(on_overlap, handle.what)
    if slot is None:
        return _skipped(handle)
    admitted = time.perf_counter()
    try:
        with span("capture"):
            captured = capture(obj, pickle_objects=pickle_objects)
        regions = tuple(source.region for source in captured.sources)
        frames = plan(regions, options.frame_bytes, options.small_bytes)
        seen = time.perf_counter()
        raw: Raw
        if background:
            raw = Snapshot(captured.sources, frames, engine.current().arena)
        else:
            raw = Live(captured.sources)
        handle.state = "SNAPSHOTTED"
        handle.staged.set_result(None)
        manifest = Manifest(os.urandom(16), regions, (), captured.skeleton, _info(), user)
        meter.frames, meter.raw_nbytes = len(frames), manifest.raw_nbytes
        tools = engine.current().tools(options, background=background)
        draft = Draft(manifest, frames, raw, handle)
        done = time.perf_counter()
        handle.timing |= {"wait_s": admitted - start, "capture_s": seen - admitted, "snapshot_s": done - seen}
        handle.timing["stall_s"] = done - start
        work, held = _finish(draft, destination, tools), slot.hand_over()
        handle.attach(engine.current().submit(work, handle, lambda: _end(draft, held, start)))
    except BaseException:
        slot.release()
        raise
    pending().add(handle)
    return handle


async def _finish(draft: Draft, destination: Destination, tools: Tools) -> CheckpointInfo | None:
    """The background half of a save, on the engine's loop."""
    try:
        info = await destination.store(draft, tools)
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # the last two: out of code of the caller
        draft.handle.state = "FAILED"
        LOG.error("save %s failed: %s", draft.handle.what, str(error))  # a record that is kept must not keep the error
        _let_go(error)
        raise
    draft.handle.state = "COMMITTED"
    return info


def _let_go(error: BaseException) -> None:
    """Clear the frames behind an error: whoever keeps its handle would keep their buffers, which are the snapshot."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        traceback.clear_frames(link.__traceback__)
        chain.append(link)
        link = link.__cause__ or link.__context__


def _end(draft: Draft, slot: Slot, start: float) -> None:
    """However the save ended: give back its memory and let the next one in, before anybody is told."""
    handle = draft.handle
    if handle.state not in ("COMMITTED", "FAILED"):
        handle.state = "CANCELLED"
    draft.raw.release()
    handle.timing["total_s"] = time.perf_counter() - start
    if handle.state == "FAILED":
        pending().failed(handle)
    slot.release()
    if handle.state == "COMMITTED" and LOG.isEnabledFor(logging.INFO):
        r = handle.report
        LOG.info(
            "save %s committed: %d bytes as %d (%.1f %%), stalled %.3f s, %.3f s in all",
            *(handle.what, r.raw_bytes, r.stored_bytes, 100 * r.ratio, r.stall_s, r.total_s),
        )


def wait_blocking(handle: SaveHandle) -> CheckpointInfo | None:
    """The outcome of a save whose caller waits: Ctrl-C cancels it and waits until nothing of it is left."""
    try:
        return handle.result()
    except BaseException:
        if not handle.done():
            handle.cancel()
            wait([handle])
        raise


def _skipped(handle: SaveHandle) -> SaveHandle:
    handle.state = "SKIPPED"
    handle.staged.set_result(None)
    handle.set_result(None)
    return handle


def _metadata(metadata: Mapping[str, object] | None) -> bytes:
    try:
        return json.dumps(dict(metadata or {}), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"metadata must be plain JSON (text, numbers, lists, mappings): {error}") from error


def _info() -> dict[str, str | int | float | bool | None]:
    return {
        "writer": f"s4async {__version__}",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": "cpu",
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
