"""The copy in memory: independent of its source, in frame order, in reused memory."""

import pytest
import torch

from s4async.device.pool import Arena
from s4async.errors import BudgetError
from s4async.frame import Extent
from s4async.pipeline.plan import plan
from s4async.pipeline.snapshot import Live, Raw, Snapshot
from s4async.state import capture

FRAME, SMALL = 8192, 4096


def state() -> dict[str, torch.Tensor]:
    return {
        "big": torch.arange(7000.0),
        "a.bias": torch.ones(10),
        "b.bias": torch.zeros(7),
        "steps": torch.arange(100.0)[::3],
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "none": torch.empty(0, 3),
    }


@pytest.mark.parametrize("kind", ["snapshot", "live"])
def test_frames_and_extents_hold_the_regions_bytes(kind: str) -> None:
    sources = capture(state()).sources
    frames = plan([s.region for s in sources], FRAME, SMALL)
    raw: Raw = Snapshot(sources, frames, Arena()) if kind == "snapshot" else Live(sources)
    whole = {i: s.tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for i, s in enumerate(sources)}
    for frame in frames:
        parts = [whole[e.region][e.offset : e.offset + e.nbytes] for e in frame.extents]
        assert raw.frame(frame).tobytes() == b"".join(parts)
        assert raw.extent(frame.extents[0]).tobytes() == parts[0]
    assert any(len(frame.extents) > 1 for frame in frames)


def test_a_snapshot_does_not_follow_its_source() -> None:
    tensors = state()
    sources = capture(tensors).sources
    frames = plan([s.region for s in sources], FRAME, SMALL)
    snapshot = Snapshot(sources, frames, Arena())
    before = [snapshot.frame(frame).tobytes() for frame in frames]
    for tensor in tensors.values():
        tensor.zero_()
    assert [snapshot.frame(frame).tobytes() for frame in frames] == before


def test_memory_is_reused_from_save_to_save_and_follows_the_state() -> None:
    arena = Arena()

    def address(count: int) -> int:
        sources = capture({"w": torch.ones(count)}).sources
        snapshot = Snapshot(sources, plan([s.region for s in sources], FRAME, SMALL), arena)
        pointer = int(snapshot.extent(Extent(0, 0, 4)).ctypes.data)
        snapshot.release()
        snapshot.release()
        return pointer

    first = address(300_000)
    assert address(300_000) == first
    assert address(290_000) == first
    kept = arena.lease(1000)
    assert kept.size < 300_000  # the large one was let go


def test_a_released_snapshot_is_not_read() -> None:
    sources = capture({"w": torch.ones(9)}).sources
    snapshot = Snapshot(sources, plan([s.region for s in sources], FRAME, SMALL), Arena())
    snapshot.release()
    with pytest.raises(BudgetError, match="released"):
        snapshot.extent(Extent(0, 0, 4))


def test_no_memory_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(nbytes: int) -> None:
        raise MemoryError

    arena = Arena()
    monkeypatch.setattr(arena, "lease", no_memory)
    sources = capture({"w": torch.ones(9)}).sources
    with pytest.raises(BudgetError, match="36 bytes"):
        Snapshot(sources, plan([s.region for s in sources], FRAME, SMALL), arena)
