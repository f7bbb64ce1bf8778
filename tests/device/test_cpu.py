"""The CPU device keeps the contract; what is its own: byte order, bounded scratch, an early exit."""

from __future__ import annotations

import numpy as np
import pytest

from s4async.device import cpu, rounding
from s4async.device.cpu import BLOCK, CpuDevice
from s4async.errors import OperationalError
from s4async.format.planes import LAYOUTS
from tests.contracts.device import DeviceContract, some_bytes


class TestCpuDevice(DeviceContract):
    block = BLOCK

    @pytest.fixture
    def device(self) -> CpuDevice:
        return CpuDevice()


def test_big_endian_machines_are_refused() -> None:
    with pytest.raises(OperationalError, match="big endian"):
        cpu._require_little_endian("big")


def test_scratch_stays_within_some_blocks() -> None:
    device = CpuDevice()
    for layout in LAYOUTS.values():
        raw = some_bytes((3 * BLOCK + 1) * layout.itemsize)
        planes = np.empty((layout.itemsize, raw.size // layout.itemsize), np.uint8)
        device.split(raw, layout, planes)
        device.join(list(planes), layout, raw)
        device.sample(raw, layout)
    assert sum(array.nbytes for array in device._scratch._arrays.values()) <= 16 * BLOCK


def test_is_rounding_stops_at_the_first_block_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = []

    def counted(high: rounding.Words, low: rounding.Words, spare: rounding.Words) -> None:
        blocks.append(high.size)
        truly(high, low, spare)

    truly = rounding.ROUNDINGS["bfloat16"]
    monkeypatch.setitem(rounding.ROUNDINGS, "bfloat16", counted)
    high, low = np.zeros(5 * 4 * BLOCK, np.uint8), np.zeros(5 * 2 * BLOCK, np.uint8)
    device = CpuDevice()
    assert device.is_rounding(low, high, "bfloat16")
    assert len(blocks) == 5
    low[2 * BLOCK + 10] = 1  # in the second block
    blocks.clear()
    assert not device.is_rounding(low, high, "bfloat16")
    assert len(blocks) == 2
