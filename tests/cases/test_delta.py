"""Series of checkpoints: what is listed, what is newest, what a deletion leaves, and that every step is itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import s4async
from s4async.errors import CheckpointNotFoundError, PreconditionError, UsageError
from tests.cases.harness import all_steps, assert_same, delete_step, full, latest_step, noise, spawn, stored_bytes

State = dict[str, Any]


def _state(step: int) -> State:
    return {"w": torch.cat([noise(20_000), full(10, step)]), "n": step, "o": {0: full(5, step)}}


# ---- deleting (magda-io/magda#3761, duplicati/duplicati#360, pgmoneta/pgmoneta#542, Aiven-Open/astacus#155)


@pytest.mark.parametrize("order", [(1, 4), (7, 6), (4, 1, 7), (1, 2, 3, 4, 5, 6, 7)])
def test_deleting_steps_leaves_every_other_step_whole(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Elsewhere a kept increment pointed to a removed base, and the tool said all was well until restore day. Right:
    every listed step loads exactly, whatever was deleted before, the first and the newest included."""
    for step in range(1, 8):
        s4async.save_checkpoint(_state(step), tmp_path, step=step)
    left = list(range(1, 8))
    for step in order:
        before = stored_bytes(tmp_path)
        delete_step(tmp_path, step)
        left.remove(step)
        assert all_steps(tmp_path) == left and latest_step(tmp_path) == max(left, default=None)
        assert stored_bytes(tmp_path) < before - 60_000, "its bytes are still there"
        for kept in left:
            assert_same(_state(kept), s4async.load_checkpoint(tmp_path, kept))
        with pytest.raises(CheckpointNotFoundError, match=f"step {step}"):
            s4async.load_checkpoint(tmp_path, step)
    if not left:
        assert stored_bytes(tmp_path) == 0
        with pytest.raises(CheckpointNotFoundError):
            s4async.load(tmp_path)


def test_deleting_what_is_not_there_is_told(tmp_path: Path) -> None:
    """A wrong number must not pass as success, and must not touch the others."""
    s4async.save_checkpoint(_state(1), tmp_path, step=1)
    for step in (0, 2, 10**18):
        with pytest.raises(CheckpointNotFoundError, match=f"step {step}"):
            delete_step(tmp_path, step)
    assert all_steps(tmp_path) == [1]


def test_a_deleted_number_can_be_saved_again(tmp_path: Path) -> None:
    """Going back and repeating a step is ordinary; a committed one is never overwritten unasked."""
    s4async.save_checkpoint(_state(1), tmp_path, step=1)
    with pytest.raises(PreconditionError, match="step 1"):
        s4async.save_checkpoint(_state(2), tmp_path, step=1)
    assert_same(_state(1), s4async.load(tmp_path))
    delete_step(tmp_path, 1)
    s4async.save_checkpoint(_state(2), tmp_path, step=1)
    assert_same(_state(2), s4async.load(tmp_path))


def test_a_step_whose_record_is_damaged_can_be_deleted(tmp_path: Path) -> None:
    """Otherwise the newest step that cannot be read blocks every restart."""
    for step in (1, 2):
        s4async.save_checkpoint(_state(step), tmp_path, step=step)
    (tmp_path / "steps" / f"{2:020d}.json").write_bytes(b"{")
    with pytest.raises(s4async.errors.IntegrityError):
        s4async.load(tmp_path)
    delete_step(tmp_path, 2)
    assert_same(_state(1), s4async.load(tmp_path))


def test_a_pending_save_is_not_overtaken_by_a_deletion(tmp_path: Path) -> None:
    """Elsewhere retention acts on a checkpoint that is still being written."""
    with s4async.Checkpointer(tmp_path) as store:
        store.save(_state(1), step=1)
        store.save_async(_state(2), step=2)
        store.delete(1)
        assert store.all_steps() == [2]
        store.save_async(_state(3), step=3)
        store.delete(3)
        assert store.all_steps() == [2]
    assert_same(_state(2), s4async.load(tmp_path))


# ---- changes between saves (RLinf/RLinf#655, pytorch/pytorch#137327, formancehq/ledger#2044)


def _float(*words: int) -> torch.Tensor:
    return torch.tensor(words, dtype=torch.int32).view(torch.float32)


def _sequence() -> list[State]:
    tied = noise(10, 5)
    minus_zero = -0x80000000
    return [
        {
            "a": torch.zeros(2, 6),
            "b": torch.zeros(4),
            "c": _float(0x7FC00001, 0),
            "d": {"x": full(3, 1)},
            "e": full(8, 1).bfloat16(),
            "n": 1,
        },
        {
            "a": torch.zeros(3, 4),
            "b": torch.zeros(4, dtype=torch.int32),
            "c": _float(0x7FC00002, minus_zero),
            "e": full(8, 1).half(),
            "n": 1.0,
        },
        {"a": torch.zeros(12), "c": _float(0x7FC00002, 0), "d": None, "e": full(9, 1).half(), "n": True},
        {
            "g": full(3, 2),
            "d": {"x": full(3, 1)},
            "a": torch.zeros(0),
            "e": torch.zeros(12).reshape(3, 4).t(),
            "n": "1",
        },
        {"tied": tied, "again": tied, "n": {"1": 1}},
        {"tied": tied, "again": tied.clone(), "n": {1: 1}},
        {"g": "now text", "a": torch.zeros(2, 6), "b": torch.zeros(4), "c": _float(0x7FC00001, 0), "n": 1},
        {},
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_step_of_a_changing_series_is_exact(tmp_path: Path, asynchronous: bool) -> None:
    """Elsewhere sizes no longer match, an "empty" difference is dropped, or a deleted entry comes back. Right: each
    step exact, 0.0 told from -0.0, NaN payloads, key order, types, and ties or their absence."""
    with s4async.Checkpointer(tmp_path) as store:
        for step, state in enumerate(_sequence() * 2):
            if asynchronous:
                store.save_async(state, step=step)
            else:
                store.save(state, step=step)
    for step, state in reversed(list(enumerate(_sequence() * 2))):
        loaded = s4async.load_checkpoint(tmp_path, step)
        assert_same(state, loaded)
        if "tied" in state:
            assert (loaded["tied"].data_ptr() == loaded["again"].data_ptr()) == (1 not in state["n"])


def test_a_single_bit_makes_another_checkpoint(tmp_path: Path) -> None:
    """One flipped bit in a large tensor, in every position of a word."""
    words = torch.zeros(40_000, dtype=torch.int32)
    for bit in range(32):
        words[bit * 1000] = 1 << bit if bit < 31 else -(1 << 31)
        s4async.save_checkpoint({"w": words.view(torch.float32)}, tmp_path, step=bit)
    expected = torch.zeros(40_000, dtype=torch.int32)
    for bit in range(32):
        expected[bit * 1000] = 1 << bit if bit < 31 else -(1 << 31)
        assert torch.equal(s4async.load_checkpoint(tmp_path, bit)["w"].view(torch.int32), expected)


# ---- which is the newest whole one (huggingface/transformers#35782, #27138, huggingface/accelerate#1163)


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    """Elsewhere "checkpoint-10000" was sorted as text, or by time, and the newest was deleted."""
    steps = [9000, 10000, 9500, 0, 2**40, 999_999_999_999_999_999, 7]
    for step in steps:
        s4async.save_checkpoint({"n": step}, tmp_path, step=step)
        os.utime(tmp_path / "steps" / f"{step:020d}.json", (1, 1))
    assert all_steps(tmp_path) == sorted(steps)
    assert latest_step(tmp_path) == max(steps) == s4async.load(tmp_path)["n"]
    assert all(s4async.load_checkpoint(tmp_path, step)["n"] == step for step in steps)


@pytest.mark.parametrize("step", [-1, 1.0, True, "3", 10**18 + 1, None])
def test_steps_that_are_no_numbers_are_refused(tmp_path: Path, step: Any) -> None:
    """A step that is sorted or formatted differently from what the caller thinks is a step that is lost."""
    with s4async.Checkpointer(tmp_path / "store") as store:
        if step is None:  # the next one
            store.save({"n": 0})
            store.save({"n": 1})
            assert store.all_steps() == [0, 1]
            return
        with pytest.raises(UsageError, match="step"):
            store.save({"n": 0}, step=step)
    assert not (tmp_path / "store").exists()


def test_an_interrupted_save_never_counts(tmp_path: Path) -> None:
    """Elsewhere the highest-numbered but unfinished folder was chosen and the job could not start."""
    for step in (9500, 10000):
        s4async.save_checkpoint({"n": step}, tmp_path, step=step)
    saver = f"""
    import s4async.storage.newfile as newfile
    complete = newfile.NewFile.complete
    def told(self):
        print("complete", flush=True)
        sys.stdin.readline()
        return complete(self)
    newfile.NewFile.complete = told
    s4async.save_checkpoint({{"n": 20000, "w": noise(3_000_000)}}, {str(tmp_path)!r}, step=20000)
    print("saved", flush=True)
    """
    for lines in (0, 1):  # killed before the object is complete, and before its commit record is
        with spawn(saver) as process:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == "complete\n"
            for _ in range(lines):
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "complete\n"
            process.send_signal(signal.SIGKILL)
        assert latest_step(tmp_path) == 10000 and all_steps(tmp_path) == [9500, 10000]
        assert s4async.load(tmp_path) == {"n": 10000}
    s4async.save_checkpoint({"n": 20000}, tmp_path, step=20000)
    assert s4async.load(tmp_path) == {"n": 20000}


def test_junk_in_the_folder_does_not_count(tmp_path: Path) -> None:
    """Empty or foreign folders and files, with names that look like steps, neither count nor disturb."""
    s4async.save_checkpoint({"n": 5}, tmp_path, step=5)
    for junk in ("checkpoint-99999", "step-000000099999", ".tmp-5", "step-abc", "steps/99", f"steps/{99:020d}.json.d"):
        (tmp_path / junk).mkdir()
    (tmp_path / "steps" / f"{99:020d}.json").mkdir()
    for junk in (f"steps/{98:020d}.json~", f"steps/{97:020d}.tmp", "steps/96.json", f"steps/x{95:020d}.json"):
        (tmp_path / junk).write_text("junk")
    (tmp_path / "data" / "foreign.bin").write_text("junk")
    assert all_steps(tmp_path) == [5] and latest_step(tmp_path) == 5 and s4async.load(tmp_path) == {"n": 5}
    s4async.save_checkpoint({"n": 6}, tmp_path, step=6)
    assert all_steps(tmp_path) == [5, 6]
    delete_step(tmp_path, 5)
    assert s4async.load(tmp_path) == {"n": 6} and (tmp_path / "data" / "foreign.bin").exists()


def test_an_empty_or_missing_store_has_no_newest(tmp_path: Path) -> None:
    """The first start of a job: nothing there yet is no error to ask about, and a clear one to load from."""
    for place in (tmp_path / "missing", tmp_path):
        assert all_steps(place) == [] and latest_step(place) is None
        with pytest.raises(CheckpointNotFoundError):
            s4async.load_checkpoint(place)
    assert not (tmp_path / "missing").exists()


def test_two_writers_of_one_step_have_one_winner(tmp_path: Path) -> None:
    """Two jobs started by mistake: one is told, and the step is one of the two states, whole."""
    codes = []
    processes = [
        spawn(f"""
        sys.stdin.readline()
        try:
            s4async.save_checkpoint({{"n": {n}, "w": noise(300_000, {n})}}, {str(tmp_path)!r}, step=1)
        except PreconditionError:
            sys.exit(7)
        """)
        for n in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        codes.append(process.returncode)
    assert sorted(codes) == [0, 7]
    winner = codes.index(0)
    assert_same({"n": winner, "w": noise(300_000, winner)}, s4async.load(tmp_path))
