"""The set of committed steps: FORMAT.md's invariants, whatever fails when."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import torch

import s4async
from s4async.catalog import MAX_STEP, Catalog, CommitRecord, DataObject, check_step
from s4async.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    IntegrityError,
    PreconditionError,
    S4AsyncError,
    UnsupportedError,
    UsageError,
)
from s4async.storage.memory import MemoryStorage
from tests.cases.harness import assert_same, full
from tests.contracts.faults import Fault, Faulty, When

State = dict[str, Any]


def record(step: int, **changes: Any) -> CommitRecord:
    item = DataObject(key=f"data/{step:020d}-x.s4", rank=0, nbytes=10, uuid="00" * 16)
    good = CommitRecord(
        s4async="commit", version=1, step=step, created="now", raw_bytes=20, stored_bytes=10, objects=(item,)
    )
    return msgspec.structs.replace(good, **changes)


def run(work: Callable[[Catalog, MemoryStorage], Any]) -> Any:
    """``work`` on an empty catalog in memory."""
    storage = MemoryStorage()
    return asyncio.run(work(Catalog(storage), storage))


def test_what_was_committed_is_read_back() -> None:
    async def work(catalog: Catalog, storage: MemoryStorage) -> None:
        for step in (3, 20, 100):
            await catalog.commit(record(step))
        assert await catalog.steps() == [3, 20, 100]
        assert await catalog.latest() == 100
        assert (await catalog.read(None)).step == 100
        assert msgspec.structs.replace(await catalog.read(20), crc32c=0) == record(20)
        assert await catalog.exists(3) and not await catalog.exists(4)

    run(work)


def test_a_step_is_committed_once() -> None:
    async def work(catalog: Catalog, storage: MemoryStorage) -> None:
        await catalog.commit(record(7, raw_bytes=1))
        with pytest.raises(PreconditionError, match="step 7 is committed already"):
            await catalog.commit(record(7, raw_bytes=2))
        assert (await catalog.read(7)).raw_bytes == 1

    run(work)


def test_absent_steps_are_told_with_what_there_is() -> None:
    async def work(catalog: Catalog, storage: MemoryStorage) -> None:
        with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint"):
            await catalog.read(None)
        await catalog.commit(record(7))
        with pytest.raises(CheckpointNotFoundError, match="step 8 is not committed; newest committed: 7"):
            await catalog.read(8)
        with pytest.raises(CheckpointNotFoundError, match="step 8"):
            await catalog.delete(8)

    run(work)


def test_other_names_among_the_records_do_not_count() -> None:
    async def work(catalog: Catalog, storage: MemoryStorage) -> None:
        for key in ("steps/5.json", "steps/00000000000000000009.json.bak", "steps/x.json", "other/y", "data/z"):
            await storage.put(key, b"{}")
        await catalog.commit(record(2))
        assert await catalog.steps() == [2]

    run(work)


KEY = "steps/00000000000000000007.json"


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"", FormatError, "schema"),
        (b"null", FormatError, "schema"),
        (b"[" * 5000, FormatError, "schema"),
        (b'{"a": 1}', FormatError, "not a commit record"),
        (b'{"s4async": "commit", "version": 1}', FormatError, "schema"),
        (b'{"s4async": "commit", "version": 9, "new": 1}', UnsupportedError, "version 9.*up to 1"),
        (record(7).sealed().replace(b'"raw_bytes":20', b'"raw_bytes":21'), CorruptionError, "checksum"),
        (record(8).sealed(), FormatError, "says step 8"),
        (record(7, objects=()).sealed(), FormatError, "0 objects"),
    ],
)
def test_damaged_records_are_told_and_can_be_deleted(data: bytes, kind: type[S4AsyncError], words: str) -> None:
    async def work(catalog: Catalog, storage: MemoryStorage) -> None:
        await storage.put(KEY, data)
        with pytest.raises(kind, match=words):
            await catalog.read(7)
        await catalog.delete(7)
        assert await catalog.steps() == []

    run(work)


def test_every_flipped_bit_of_a_record_is_told() -> None:
    sealed = record(7).sealed()

    async def work(catalog: Catalog, storage: MemoryStorage) -> None:
        for at in range(len(sealed)):
            bad = bytearray(sealed)
            bad[at] ^= 1 << at % 7
            await storage.put(KEY, bytes(bad))
            with pytest.raises((IntegrityError, UnsupportedError)):
                await catalog.read(7)

    run(work)


@pytest.mark.parametrize("step", [-1, MAX_STEP + 1, 1.0, "3", None, True, torch.tensor(3.5)])
def test_steps_are_whole_numbers(step: object) -> None:
    with pytest.raises(UsageError, match="whole number"):
        check_step(step)


def test_numbers_of_other_libraries_are_steps() -> None:
    assert check_step(torch.tensor(3)) == 3 and type(check_step(torch.tensor(3))) is int
    assert check_step(0) == 0 and check_step(MAX_STEP) == MAX_STEP


# ---- every storage call of a save and of a deletion fails in turn: the invariants of FORMAT.md, "Store"


def state(step: int) -> State:
    return {"w": full(3000, step), "step": step}


@dataclass(frozen=True)
class Outcome:
    failed: bool
    steps: list[int]


def attempt(storage: MemoryStorage, fault: Fault | None, act: Callable[[s4async.Checkpointer], object]) -> Outcome:
    """``act`` on a store of which one call fails, then what an undisturbed reader finds there."""
    failed = False
    with s4async.Checkpointer(Faulty(storage, fault)) as store:
        try:
            act(store)
        except S4AsyncError:
            failed = True
    with s4async.Checkpointer(storage) as store:
        steps = store.all_steps()
        for step in steps:
            assert_same(store.load(step), state(step))
            store.verify(step)
    return Outcome(failed, steps)


def calls_of(act: Callable[[s4async.Checkpointer], object]) -> int:
    faulty = Faulty(prepared())
    with s4async.Checkpointer(faulty) as store:
        act(store)
    return len(faulty.calls)


def prepared() -> MemoryStorage:
    storage = MemoryStorage()
    with s4async.Checkpointer(storage) as store:
        store.save(state(1), step=1)
        store.save(state(2), step=2)
    return storage


@pytest.mark.parametrize("when", When)
def test_a_save_that_fails_at_any_call_leaves_the_old_steps_and_says_so(when: When) -> None:
    def act(store: s4async.Checkpointer) -> None:
        store.save(state(3), step=3)

    count = calls_of(act)
    assert count >= 5
    for at in range(count):
        outcome = attempt(prepared(), Fault(at, when), act)
        assert outcome.steps in ([1, 2], [1, 2, 3])
        assert outcome.failed or outcome.steps == [1, 2, 3], "a save said yes and is not there"


@pytest.mark.parametrize("when", When)
def test_a_deletion_that_fails_at_any_call_leaves_whole_steps(when: When) -> None:
    def act(store: s4async.Checkpointer) -> None:
        store.delete(2)

    for at in range(calls_of(act)):
        outcome = attempt(prepared(), Fault(at, when), act)
        assert outcome.steps in ([1, 2], [1])
        assert outcome.failed or outcome.steps == [1]
