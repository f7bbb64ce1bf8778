"""What must be true of every input: an error of our tree, or a state; for bytes damaged at random, the exact state.

A mutation that keeps every checksum right may well say something else that is valid, so there only the kind of outcome
is checked. The machine's memory is said to be small, so that a bomb is refused as it would be on any machine.
"""

from __future__ import annotations

import asyncio
import io
from unittest import mock

import s4async
from s4async import loading
from s4async.catalog import Catalog
from s4async.errors import S4AsyncError
from s4async.storage.memory import MemoryStorage
from tests.cases.harness import assert_same
from tests.fuzz.mutators import MUTATORS
from tests.vectors.golden import path
from tests.vectors.states import STATES

__all__ = ["RECORD", "SEEDS", "check"]

MEMORY_NBYTES = 64 << 20
SEEDS = {name: path(name).read_bytes() for name in STATES if name != "floats"}  # that one is large


def _a_record() -> bytes:
    storage = MemoryStorage()
    with s4async.Checkpointer(storage) as store:
        store.save({"n": 1}, step=7)

    async def read() -> bytes:
        return await Catalog(storage)._get("steps/00000000000000000007.json", "seed")

    return asyncio.run(read())


RECORD = _a_record()


def check(target: str, name: str, data: bytes) -> str:
    """Load what ``MUTATORS[target]`` made of seed ``name``. Returns the error's name, or ``"loaded"``."""
    assert target in MUTATORS
    with mock.patch.object(loading, "_available_memory", return_value=MEMORY_NBYTES):
        try:
            if target == "record":
                _load_record(data)
            else:
                state = s4async.load(io.BytesIO(data))
                if target == "raw":
                    assert_same(STATES[name](), state)
        except S4AsyncError as error:
            assert str(error)  # noqa: PT017 - any error of the tree will do, but it must say something
            return type(error).__name__
    return "loaded"


def _load_record(data: bytes) -> None:
    storage = MemoryStorage()

    async def put() -> None:
        await storage.put("steps/00000000000000000007.json", data)

    asyncio.run(put())
    with s4async.Checkpointer(storage) as store:
        store.load(7)
