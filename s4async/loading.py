"""What every load does: find the object, read its manifest, decide what is wanted, restore it, build the state.

``Loading`` is cut where the caller's thread and the engine's loop meet: ``open`` and ``fetch`` wait for storage and run
on the loop; ``prepare`` and ``finish`` run the caller's code (``into``, ``map_location``) and stay on the caller's
thread in a blocking load. Sizes are checked against the machine's memory before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from s4async import engine
from s4async.catalog import Catalog, CommitRecord, DataObject
from s4async.device.base import Bytes
from s4async.errors import (
    BudgetError,
    CheckpointNotFoundError,
    CorruptionError,
    DeviceError,
    FormatError,
    ObjectNotFoundError,
    S4AsyncError,
    UnsafeLoadError,
    UnsupportedError,
    UsageError,
)
from s4async.format.manifest import Manifest
from s4async.handle import LoadHandle
from s4async.options import Options
from s4async.pipeline.fetch import fetch_manifest
from s4async.pipeline.flow import Meter, in_thread
from s4async.pipeline.restore import restore_regions
from s4async.state import Match, Skeleton, match
from s4async.storage.base import ObjectReader, Storage

__all__ = [
    "Found",
    "LoadRequest",
    "Loading",
    "MapLocation",
    "Where",
    "find",
    "load_blocking",
    "load_in_background",
    "naming",
]

MapLocation = (
    str | torch.device | Mapping[str, str] | Callable[[torch.UntypedStorage, str], torch.UntypedStorage | None] | None
)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What the caller asked for."""

    map_location: MapLocation = None
    weights_only: bool = True
    into: object | None = None
    keys: str | Iterable[str] | None = None
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Where:
    """A place to load from: one object under ``key``, or (``key=None``) the ``step`` of a store, newest by default.
    ``store``: what the place is if there is no such object. ``owned``: whether storages were opened for this load."""

    storage: Storage
    key: str | None
    step: int | None = None
    owned: bool = True
    store: Storage | None = None

    @property
    def name(self) -> str:
        """For messages."""
        if self.key is not None:
            return f"{self.storage.url}/{self.key}" if self.key else self.storage.url
        return f"{self.storage.url} step {'newest' if self.step is None else self.step}"


@dataclass(frozen=True, slots=True)
class Found:
    """An open object and its checked manifest."""

    reader: ObjectReader
    manifest: Manifest
    name: str  # for messages
    record: CommitRecord | None


async def find(where: Where, stack: AsyncExitStack) -> Found:
    """Open the object that ``where`` means; it is closed with ``stack``. Raises ``CheckpointNotFoundError``."""
    if where.owned:
        stack.push_async_callback(where.storage.close)
    if where.key is None:
        return await _find_step(Catalog(where.storage), where.step, stack)
    try:
        reader = await stack.enter_async_context(where.storage.open_object(where.key))
    except ObjectNotFoundError as error:
        if where.store is None:
            raise CheckpointNotFoundError(f"{where.name}: no checkpoint there: {error}") from error
    else:
        return Found(reader, await fetch_manifest(reader, where.name), where.name, None)
    stack.push_async_callback(where.store.close)
    return await _find_step(Catalog(where.store), where.step, stack)


async def _find_step(catalog: Catalog, step: int | None, stack: AsyncExitStack) -> Found:
    record = await catalog.read(step)
    item = record.objects[0]
    name = f"{catalog.storage.url} step {record.step} ({item.key})"
    try:
        reader = await stack.enter_async_context(catalog.storage.open_object(item.key))
    except ObjectNotFoundError as error:
        if not await catalog.exists(record.step):  # a delete takes the record first
            raise CheckpointNotFoundError(f"{name}: the step was deleted meanwhile") from error
        raise CorruptionError(f"{name}: the step is committed but its object is gone: {error}") from error
    if reader.nbytes != item.nbytes:
        raise CorruptionError(f"{name}: {reader.nbytes} bytes, the commit record says {item.nbytes}")
    manifest = await fetch_manifest(reader, name)
    _check_uuid(manifest, item, name)
    return Found(reader, manifest, name, record)


def _check_uuid(manifest: Manifest, item: DataObject, name: str) -> None:
    if manifest.uuid.hex() != item.uuid:
        raise CorruptionError(
            f"{name}: this is another save's object: uuid {manifest.uuid.hex()}, the commit record says {item.uuid}"
        )


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put ``name`` before what the skeleton says is wrong with it: it does not know where it came from."""
    try:
        yield
    except (FormatError, UnsafeLoadError, UnsupportedError) as error:
        raise type(error)(f"{name}: {error}") from error


class Loading:
    """One load, in four steps. ``meter`` counts for ``LoadHandle.progress``."""

    def __init__(self, where: Where, request: LoadRequest, options: Options, meter: Meter) -> None:
        self._where = where
        self._request = request
        self._tools = engine.current().tools(options, background=False)
        self._meter = meter
        self._stack = AsyncExitStack()
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._memory: dict[int, Bytes] = {}

    async def open(self) -> None:
        self._found = await find(self._where, self._stack)

    def prepare(self) -> None:
        """Decide which regions are wanted and where they go; allocates, changes nothing of the caller's."""
        manifest, request = self._found.manifest, self._request
        with naming(self._found.name):
            skeleton = Skeleton.decode(manifest.skeleton, manifest.regions)
            self._skeleton = skeleton if request.keys is None else skeleton.select(request.keys)
            self._skeleton.check_safe(request.weights_only)  # here, before tensors of `into` are overwritten
        self._match: Match | None = None
        targets: Mapping[int, torch.Tensor] = {}
        if request.into is not None:
            self._match = match(self._skeleton, request.into, strict=request.strict, whole=request.keys is None)
            targets = self._match.targets
        wanted = self._skeleton.region_indexes if self._match is None else self._match.region_indexes
        fresh = [index for index in sorted(wanted) if index not in targets]
        _check_memory(sum(manifest.regions[index].nbytes for index in fresh), self._found.name)
        for index in fresh:
            storage = _allocate(manifest.regions[index].nbytes, self._found.name)
            self._storages[index] = storage
            self._memory[index] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        for index, target in targets.items():
            self._memory[index] = target.numpy()

    async def fetch(self) -> None:
        found = self._found
        try:
            await restore_regions(found.reader, found.manifest, self._memory, self._tools, self._meter, found.name)
        except S4AsyncError as error:
            if self._match is not None and self._match.targets:
                error.add_note("Tensors of `into` may be partly overwritten: load another checkpoint before their use.")
            raise

    def finish(self) -> Any:
        """Build the state, or fill ``into`` and return the report."""
        with naming(self._found.name):
            return self._finish()

    def _finish(self) -> Any:
        if self._match is not None:
            return self._match.fill(self._storages, weights_only=self._request.weights_only)
        regions = self._found.manifest.regions
        host = self._skeleton.host_regions  # arrays and byte strings stay where they are
        placed = {
            index: storage if index in host else _placed(storage, regions[index].location, self._request.map_location)
            for index, storage in self._storages.items()
        }
        return self._skeleton.build(placed, weights_only=self._request.weights_only)

    async def close(self) -> None:
        await self._stack.aclose()


def _allocate(nbytes: int, name: str) -> torch.UntypedStorage:
    try:
        return torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
    except (RuntimeError, MemoryError) as error:
        raise BudgetError(f"{name}: no memory for a tensor of {nbytes} bytes; use keys= or into=") from error


def _check_memory(nbytes: int, name: str) -> None:
    available = _available_memory()
    if available is not None and nbytes > available:
        raise BudgetError(
            f"{name}: its tensors need {nbytes} bytes, {available} are available on this machine; "
            "load a part with keys=, or into tensors that exist already with into="
        )


def _available_memory() -> int | None:
    """Bytes that can be allocated without swapping, where the system tells (Linux)."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


Restore = Callable[[torch.UntypedStorage, str], torch.UntypedStorage]


def _placed(storage: torch.UntypedStorage, location: str, map_location: MapLocation) -> torch.UntypedStorage:
    """The storage on the device that ``map_location`` means, as ``torch.load`` understands it."""
    restore: Restore = torch.serialization.default_restore_location
    try:
        if map_location is None:
            return storage if location == "cpu" else restore(storage, location)
        if isinstance(map_location, str | torch.device):
            return restore(storage, str(map_location))
        if isinstance(map_location, Mapping):
            return restore(storage, map_location.get(location, location))
        if not callable(map_location):
            raise UsageError(f"map_location={map_location!r}: expected a device, a mapping or a function, or None")
        moved = map_location(storage, location)
        return restore(storage, location) if moved is None else moved
    except (RuntimeError, AssertionError) as error:
        where = "there" if map_location is None else f"as map_location={map_location!r} says"
        raise DeviceError(
            f"a tensor saved on {location!r} cannot be restored {where}; give a map_location that this machine has, "
            f'for example map_location="cpu": {error}'
        ) from error


def load_blocking(where: Where, request: LoadRequest, options: Options) -> Any:
    """Load on the caller's thread, storage work on the engine."""
    run = engine.current().run
    loading = Loading(where, request, options, Meter())
    try:
        run(loading.open())
        loading.prepare()
        run(loading.fetch())
        return loading.finish()
    finally:
        run(loading.close())


def load_in_background(where: Where, request: LoadRequest, options: Options) -> LoadHandle:
    """Load behind a handle; the caller's code (``into``, ``map_location``) runs on a worker thread."""
    meter = Meter()
    handle = LoadHandle(f"from {where.name}", meter)
    loading = Loading(where, request, options, meter)
    threads = engine.current().tools(options, background=False).threads

    async def work() -> Any:
        try:
            await loading.open()
            await in_thread(threads, loading.prepare)
            await loading.fetch()
            return await in_thread(threads, loading.finish)
        finally:
            await loading.close()

    handle.attach(engine.current().submit(work(), handle))
    return handle
