"""Files that somebody made on purpose, every checksum right: refused by name, before memory is taken."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

import s4async
from s4async.errors import BudgetError, FormatError, IntegrityError, S4AsyncError, UsageError
from s4async.storage.memory import MemoryStorage
from tests.fuzz.forge import BLOBS, EXTENTS, FRAMES, REGIONS, Forged, seal_record, take_apart

TERABYTES = 1 << 45


def seed() -> Forged:
    file = io.BytesIO()
    s4async.save({"zeros": torch.zeros(4096), "w": torch.arange(100.0)}, file)
    return take_apart(file.getvalue())


def bomb(forged: Forged) -> None:
    """A constant plane that stands for terabytes."""
    region = next(i for i, r in enumerate(forged.manifest[REGIONS]) if r[0] == "zeros")
    forged.manifest[REGIONS][region] = ["zeros", "float32", TERABYTES, "cpu"]
    frame = next(f for f in forged.manifest[FRAMES] if f[EXTENTS][0][0] == region)
    frame[EXTENTS][0][2] = TERABYTES
    for blob in frame[BLOBS]:
        blob[2] = TERABYTES // 4


def many_bombs(forged: Forged) -> None:
    """The same in frames that are just small enough."""
    region = next(i for i, r in enumerate(forged.manifest[REGIONS]) if r[0] == "zeros")
    frames = [f for f in forged.manifest[FRAMES] if f[EXTENTS][0][0] == region]
    count, nbytes = 40_000, 1 << 30
    forged.manifest[REGIONS][region] = ["zeros", "float32", count * nbytes, "cpu"]
    copies = []
    for i in range(count):
        blobs = [[b[0], b[1], nbytes // 4, 0, 0, 0, [], b[7]] for b in frames[0][BLOBS]]
        copies.append([*frames[0][:EXTENTS], [[region, i * nbytes, nbytes, 0]], blobs])
    forged.manifest[FRAMES] = [f for f in forged.manifest[FRAMES] if f not in frames] + copies


def far_extent(forged: Forged) -> None:
    forged.manifest[FRAMES][0][EXTENTS][0][1] = 1 << 63


def deep_tree(forged: Forged) -> None:
    forged.skeleton = [1, [29, 1] * 100_000 + [29, 0], [], []]


def many_items(forged: Forged) -> None:
    """A list that says it has more items than there are bytes in the file."""
    forged.skeleton = [1, [29, 1 << 62], [], []]


@pytest.mark.parametrize(
    ("edit", "kind", "words"),
    [
        (bomb, FormatError, "limit"),
        (many_bombs, BudgetError, "available"),
        (far_extent, FormatError, "extent"),
        (deep_tree, FormatError, "skeleton|document|deep|nest"),
        (many_items, FormatError, "skeleton|document|count|items"),
    ],
)
def test_a_forged_object_is_refused(edit: Callable[[Forged], None], kind: type[S4AsyncError], words: str) -> None:
    forged = seed()
    edit(forged)
    with pytest.raises(kind, match=words):
        s4async.load(io.BytesIO(forged.sealed()))


@pytest.mark.parametrize("key", ["../secret.s4", "/etc/passwd", "data/../../x", "data/\x00", ""])
def test_a_record_cannot_point_out_of_its_store(key: str) -> None:
    storage = MemoryStorage()
    with s4async.Checkpointer(storage) as store:
        store.save({"n": 1}, step=7)
        name = "steps/00000000000000000007.json"

        async def rewrite() -> None:
            async with storage.open_object(name) as reader:
                buffer = bytearray(reader.nbytes)
                await reader.get_into(0, memoryview(buffer))
            fields: dict[str, Any] = msgspec.json.decode(buffer)
            fields["objects"][0]["key"] = key
            await storage.put(name, seal_record(fields))

        asyncio.run(rewrite())
        with pytest.raises((IntegrityError, UsageError)):
            store.load()
        store.delete(7)  # touches the record only
        assert store.all_steps() == []
