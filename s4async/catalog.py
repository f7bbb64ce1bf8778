"""Catalog: the set of committed checkpoints under one URL. FORMAT.md, "Store".

Write order: data object, then the commit record, conditionally; read order is the reverse; delete order is the record
first. So a step exists exactly if its record does, and whatever a record names was durable before it. Nothing here
depends on a mutable pointer: the newest step is the largest number among the records.
"""

from __future__ import annotations

import operator
import re

import crc32c
import msgspec

from s4async.errors import (
    CheckpointNotFoundError,
    CommitError,
    CorruptionError,
    FormatError,
    ObjectNotFoundError,
    PreconditionError,
    StorageError,
    UnsupportedError,
    UsageError,
)
from s4async.storage.base import Storage, key_fault

__all__ = ["Catalog", "CommitRecord", "DataObject", "check_step"]

RECORD_VERSION = 1
MAX_STEP = 10**18
_MAX_RECORD_NBYTES = 16 << 20
_RECORD_KEY = re.compile(r"steps/([0-9]{20})\.json")


class DataObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One object of a checkpoint: what a reader must find under ``key``."""

    key: str
    rank: int
    nbytes: int
    uuid: str  # hex; the object's own, so that a swapped object is told


class CommitRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one thing that makes a step exist. ``parent``: the step that a delta was taken against."""

    s4async: str
    version: int
    step: int
    created: str
    raw_bytes: int
    stored_bytes: int
    objects: tuple[DataObject, ...]
    parent: int | None = None
    crc32c: int = 0  # of this record's JSON with crc32c = 0

    def sealed(self) -> bytes:
        return msgspec.json.encode(msgspec.structs.replace(self, crc32c=self._checksum()))

    def check(self, where: str) -> None:
        if self.crc32c != (actual := self._checksum()):
            raise CorruptionError(f"{where}: record checksum: expected {self.crc32c:#010x}, actual {actual:#010x}")

    def _checksum(self) -> int:
        value: int = crc32c.crc32c(msgspec.json.encode(msgspec.structs.replace(self, crc32c=0)))
        return value


class _Gate(msgspec.Struct):
    """What is read before anything else: enough to tell a newer record from a damaged one."""

    s4async: str = ""
    version: int = 0


def check_step(step: object) -> int:
    """The step as an int. Raises ``UsageError`` unless it is a whole number from 0 to 10**18."""
    try:
        value = operator.index(step)  # type: ignore[arg-type]  # which is to be found out
    except TypeError:
        value = -1
    if isinstance(step, bool) or not 0 <= value <= MAX_STEP:
        raise UsageError(f"step={step!r}: expected a whole number from 0 to {MAX_STEP}")
    return value


class Catalog:
    """Committed steps of one storage. Used on the engine's loop."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def steps(self) -> list[int]:
        """Committed steps, ascending."""
        found = [_RECORD_KEY.fullmatch(info.key) async for info in self.storage.list("steps/")]
        return sorted(step for match in found if match and (step := int(match[1])) <= MAX_STEP)

    async def latest(self) -> int | None:
        """The newest committed step."""
        steps = await self.steps()
        return steps[-1] if steps else None

    async def exists(self, step: int) -> bool:
        try:
            await self.storage.head(_key(step))
        except ObjectNotFoundError:
            return False
        return True

    async def read(self, step: int | None) -> CommitRecord:
        """The record of ``step``, or of the newest. Raises ``CheckpointNotFoundError``, ``IntegrityError`` kinds."""
        url = self.storage.url
        if step is None:
            step = await self.latest()
            if step is None:
                raise CheckpointNotFoundError(f"{url}: no committed checkpoint in this store")
        where = f"{url}/{_key(step)}"
        try:
            data = await self._get(_key(step), where)
        except ObjectNotFoundError:
            have = await self.steps()
            shown = ", ".join(map(str, have[-5:])) or "none"
            raise CheckpointNotFoundError(f"{url}: step {step} is not committed; newest committed: {shown}") from None
        record = _parse(data, where)
        record.check(where)
        if record.step != step or not record.objects:
            raise FormatError(
                f"{where}: the record of step {step} says step {record.step}, {len(record.objects)} objects"
            )
        for item in record.objects:
            if fault := key_fault(item.key):
                raise FormatError(f"{where}: the record names an object {item.key!r}, which {fault}")
        return record

    async def commit(self, record: CommitRecord) -> None:
        """Make the step exist. Raises ``PreconditionError`` if it does already, ``CommitError`` for the rest."""
        where = f"{self.storage.url}/{_key(record.step)}"
        try:
            await self.storage.put(_key(record.step), record.sealed(), if_absent=True)
        except PreconditionError as error:
            raise PreconditionError(
                f"{self.storage.url}: step {record.step} is committed already; delete it first or use another step"
            ) from error
        except StorageError as error:
            raise CommitError(f"{where}: the data is stored but not committed; repeat the save: {error}") from error

    async def delete(self, step: int) -> None:
        """Remove a step: its record first, then its objects. Raises ``CheckpointNotFoundError``."""
        if not await self.exists(step):
            raise CheckpointNotFoundError(f"{self.storage.url}: step {step} is not committed")
        try:
            objects = (await self.read(step)).objects
        except (CorruptionError, FormatError, UnsupportedError):
            objects = ()  # a record that cannot be read still must go; its objects are left to gc
        await self.storage.delete(_key(step))
        for item in objects:
            await self.storage.delete(item.key)

    async def _get(self, key: str, where: str) -> bytes:
        async with self.storage.open_object(key) as reader:
            if reader.nbytes > _MAX_RECORD_NBYTES:
                raise FormatError(f"{where}: a record of {reader.nbytes} bytes, the limit is {_MAX_RECORD_NBYTES}")
            buffer = bytearray(reader.nbytes)
            await reader.get_into(0, memoryview(buffer))
        return bytes(buffer)


def _key(step: int) -> str:
    return f"steps/{step:020d}.json"


def _parse(data: bytes, where: str) -> CommitRecord:
    try:
        gate = msgspec.json.decode(data, type=_Gate)
        if gate.s4async != "commit":
            raise FormatError(f"{where}: not a commit record of s4async")
        if gate.version > RECORD_VERSION:
            raise UnsupportedError(
                f"{where}: record version {gate.version}; this build reads up to {RECORD_VERSION}; upgrade s4async"
            )
        return msgspec.json.decode(data, type=CommitRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: the record breaks its schema: {error}") from error
