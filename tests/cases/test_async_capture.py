"""Saving beside training: what is captured when, overlapping saves, and cancelling."""

from __future__ import annotations

import collections
import gc
import math
from concurrent.futures import CancelledError
from concurrent.futures import wait as wait_for_futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import s4async
from s4async.errors import ClosedError, OverlapError
from tests.cases.harness import (
    GatedFile,
    assert_same,
    full,
    noise,
)

State = dict[str, Any]


# ---- the caller changes the state right after the call (Lightning-AI/pytorch-lightning#21079, pytorch/torchtitan#930)


def _changing() -> tuple[State, State]:
    """A state, and what must be stored of it (made of other memory)."""

    def make() -> State:
        w = full(100_000, 0)
        return {
            "w": w,
            "view": w[5:9],
            "t": w[:6].reshape(2, 3).t(),
            "a": np.zeros(1000),
            "strided": np.zeros((30, 30))[::2, 1],
            "small": torch.zeros(3),
            "meta": {"step": 1, "hist": [1], "nd": {"x": {}}, "set": {1}, "deque": collections.deque([1])},
            "raw": bytearray(b"abc"),
            "sparse": torch.eye(3).to_sparse(),
        }

    return make(), make()


def _change(state: State) -> None:
    """Everything that a training loop may do to it."""
    state["w"].fill_(7)
    state["t"].add_(1)
    state["a"][:] = 7
    state["strided"][:] = 7
    state["small"].resize_(500).fill_(7)
    meta = state["meta"]
    meta["step"] = 2
    meta["hist"].append(2)
    meta["nd"]["x"]["y"] = 1
    meta["set"].add(2)
    meta["deque"].append(2)
    state["raw"][:] = b"xyzzy"
    state["sparse"]._values().fill_(7)
    state["late"] = state.pop("view")
    del state["a"]
    gc.collect()


@pytest.mark.parametrize("place", ["file", "gated", "store"])
def test_the_state_is_what_it_was_at_the_call(tmp_path: Path, place: str) -> None:
    """Elsewhere the background thread reads live memory, so the file holds a mix of steps. Right: tensors, arrays and
    nested containers as they were when ``save_async`` was called, whatever is done to them afterwards.

    ``gated``: nothing has been encoded yet when the state changes, so a late reader would be caught every time."""
    state, expected = _changing()
    file = GatedFile()
    if place == "store":
        with s4async.Checkpointer(tmp_path) as checkpointer:
            handle = checkpointer.save_async(state, step=3)
            _change(state)
            handle.result(60)
        loaded = s4async.load(tmp_path)
    else:
        target: Any = file if place == "gated" else tmp_path / "ck.s4"
        handle = s4async.save_async(state, target)
        assert handle.staged.done()
        _change(state)
        file.go.set()
        handle.result(60)
        loaded = s4async.load(file.content() if place == "gated" else target)
    assert_same(expected, loaded)


def test_training_right_after_the_call_is_not_seen(tmp_path: Path) -> None:
    """The same with live modules and optimizers: a step, a cast and a move to another memory come too late."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.BatchNorm1d(50))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)

    def step() -> None:
        model(torch.rand(8, 50)).square().mean().backward()
        optimizer.step()

    step()
    expected = s4async.load(_saved({"m": model.state_dict(), "o": optimizer.state_dict()}, tmp_path / "before.s4"))
    file = GatedFile()
    handle = s4async.save_async({"m": model, "o": optimizer}, file)
    step()
    model.double()
    optimizer.param_groups[0]["lr"] = 5.0
    for parameter in model.parameters():
        parameter.data.fill_(-1)
    file.go.set()
    handle.result(60)
    assert_same(expected, s4async.load(file.content()))


def _saved(state: object, place: Path) -> Path:
    s4async.save(state, place)
    return place


def test_saves_in_a_row_hold_one_step_each(tmp_path: Path) -> None:
    """A snapshot buffer that is reused from save to save must not be overwritten while it is still being written."""
    w = full(1_000_000, 0)
    handles = []
    for step in range(6):
        w.fill_(step)
        handles.append(s4async.save_async({"w": w, "step": step}, tmp_path / f"{step}.s4"))
    w.fill_(-1)
    for step, handle in enumerate(handles):
        handle.result(60)
        loaded = s4async.load(tmp_path / f"{step}.s4")
        assert loaded["step"] == step and loaded["w"].eq(step).all()


@pytest.mark.gpu
def test_tensors_on_a_gpu_are_captured_at_the_call(tmp_path: Path) -> None:
    """The same on a device, where a copy can be late twice: in its stream and in its memory."""
    for repetition in range(5):
        w = torch.full((8_000_000,), float(repetition), device="cuda")
        handle = s4async.save_async({"w": w, "half": w[: 1 << 20].bfloat16()}, tmp_path / "ck.s4")
        w.fill_(-1)
        del w
        junk = torch.full((8_000_000,), -2.0, device="cuda")
        handle.result(60)
        loaded = s4async.load(tmp_path / "ck.s4", map_location="cpu")
        assert loaded["w"].eq(repetition).all() and loaded["half"].eq(repetition).all()
        del junk


# ---- neighbours: overlap, cancelling, closing


def test_the_overlap_rule_holds_while_a_save_runs() -> None:
    """Two saves to one place that both report success, interleaved, are worse than an error."""
    file, second = GatedFile(), GatedFile()
    second.go.set()
    first = s4async.save_async({"n": 1}, file)
    assert file.entered.wait(60)
    with pytest.raises(OverlapError):
        s4async.save_async({"n": 2}, second, on_overlap="error")
    skipped = s4async.save_async({"n": 2}, second, on_overlap="skip")
    assert skipped.skipped and skipped.result(0) is None and not second.getvalue()
    file.go.set()
    waited = s4async.save_async({"n": 3}, second)
    assert first.done() and waited.result(60) is not None
    assert s4async.load(second.content()) == {"n": 3}


@pytest.mark.parametrize("moment", ["at once", "while writing"])
def test_cancelling_leaves_nothing_and_frees_the_way(tmp_path: Path, moment: str) -> None:
    """A cancelled save must give everything back, whenever it is cancelled, or the next one waits for ever."""
    for _ in range(20 if moment == "at once" else 1):
        file = GatedFile()
        handle = s4async.save_async({"w": full(1000, 1)}, file)
        if moment == "while writing":
            assert file.entered.wait(60)
        assert handle.cancel()
        file.go.set()
        with pytest.raises(CancelledError):
            handle.result(60)
        assert "CANCELLED" in repr(handle) and not file.getvalue()
        s4async.save_async({"n": 2}, tmp_path / "ck.s4", on_overlap="wait").result(60)
        assert not handle.cancel()


def test_a_cancelled_step_does_not_exist(tmp_path: Path) -> None:
    """The same in a store: whatever ``cancel`` answered is what has happened."""
    with s4async.Checkpointer(tmp_path) as store:
        for step in range(10):
            handle = store.save_async({"w": full(1000, step)}, step=step)
            cancelled = handle.cancel()
            wait_for_futures([handle])
            assert handle.cancelled() == cancelled and (step in store.all_steps()) == (not cancelled)
        with pytest.raises(ClosedError):
            store.close()
            store.save({"n": 1}, step=99)


def test_the_report_adds_up(tmp_path: Path) -> None:
    """Numbers that a training log shows: sizes of what is there, times that are not negative."""
    handle = s4async.save_async({"w": full(100_000, 1), "b": noise(1000).bfloat16()}, tmp_path / "ck.s4")
    info = handle.result(60)
    report, progress = handle.report, handle.progress()
    assert info is not None and info.stored_bytes == report.stored_bytes == (tmp_path / "ck.s4").stat().st_size
    assert info.raw_bytes == report.raw_bytes == progress.raw_bytes_done == 402_000
    assert {name: sizes[0] for name, sizes in report.by_dtype.items()} == {"float32": 400_000, "bfloat16": 2_000}
    assert math.isclose(report.ratio, report.stored_bytes / report.raw_bytes)
    assert 0 <= report.stall_s <= report.total_s and report.commit_s > 0
