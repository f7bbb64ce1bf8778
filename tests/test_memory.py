"""Memory, descriptors and threads plateau: a run of months saves thousands of times."""

import gc
import io
import os
import threading
import weakref
from pathlib import Path

import pytest
import torch

import s4async
from tests.cases.harness import FailingFile

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_a_thousand_saves_and_loads_take_no_more_than_a_hundred(tmp_path: Path) -> None:
    def turn(i: int) -> None:
        w = torch.full((60_000 + i % 7 * 1000,), float(i))
        state = {"w": w, "m": {"step": i, "lr": [0.1] * (i % 5)}}
        handle = s4async.save_async(state, tmp_path / f"{i % 3}.s4")
        w.zero_()
        handle.result()
        if i % 10 == 0:
            assert s4async.load(tmp_path / f"{i % 3}.s4")["w"][0] == i

    for i in range(150):
        turn(i)
    before = resident_bytes(), descriptors(), threading.active_count()
    for i in range(1000):
        turn(i)
    after = resident_bytes(), descriptors(), threading.active_count()
    assert after[0] - before[0] < 16 << 20
    assert after[1] <= before[1] + 2
    assert after[2] <= before[2] + 2


def test_a_handle_keeps_nothing_of_the_state() -> None:
    tensor = torch.ones(1000)
    gone = weakref.ref(tensor)
    handle = s4async.save_async({"w": tensor}, io.BytesIO())
    del tensor
    assert handle.result() is not None
    gc.collect()
    assert gone() is None


def test_a_failed_save_keeps_nothing_of_the_state() -> None:
    tensor = torch.ones(1000)
    gone = weakref.ref(tensor)
    with pytest.raises(s4async.errors.StorageError) as caught:
        s4async.save({"w": tensor}, FailingFile(10))
    assert caught.value is not None
    del tensor, caught
    gc.collect()
    assert gone() is None
