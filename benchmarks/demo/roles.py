"""The three processes: ``reference`` (never stopped), ``victim`` (dies in a save), ``heir`` (restores and continues).

``python -m benchmarks.demo.roles ROLE PLAN.json``; a role leaves ``ROLE.json`` beside the plan. Measuring happens in
the reference only. The digests of the witness are made before a save begins, outside every measured time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from tqdm import tqdm

import s4async
from benchmarks.demo.timeline import AsyncSave, BlockingSave, Step, Timeline
from benchmarks.demo.training import State, Training
from benchmarks.demo.witness import Digests, differences, digests

__all__ = ["DEATH", "Heir", "Plan", "Reference", "read", "write"]

T = TypeVar("T")
DEATH = 9  # the exit code of the victim, so that no other death passes for it


class Plan(msgspec.Struct, frozen=True):
    """What all three processes agree on. ``store`` and ``folder`` are paths."""

    folder: str
    store: str
    steps: int
    every: int
    death: int  # the step after which the victim's last save begins
    threads: int
    compute: str

    def training(self) -> Training:
        """The run at its beginning."""
        return Training(self.steps, getattr(torch, self.compute), self.threads)


class Reference(msgspec.Struct):
    """What the reference leaves. Losses as ``float.hex``, one per step; digests of each saved step and of the end."""

    losses: list[str]
    witness: dict[int, Digests]
    end: Digests
    timeline: Timeline


class Heir(msgspec.Struct):
    """What the heir found. ``different``: leaves of the restored state that are not the witness's; ``end_different``:
    those of the last state; ``losses`` of the steps that it took."""

    steps: list[int]
    restored: int
    restore_s: float
    leaves: int
    tensors: int
    different: list[str]
    losses: list[str]
    end_different: list[str]


def reference(plan: Plan) -> None:
    """Train to the end; a save_async after every ``every`` steps, a torch.save half-way between two of them."""
    training = plan.training()
    timeline = Timeline()
    losses: list[str] = []
    witness: dict[int, Digests] = {}
    handles: list[s4async.SaveHandle] = []
    for number in _bar(training, plan.steps, "1/3 reference"):
        start = time.perf_counter()
        losses.append(training.step().hex())
        timeline.steps.append(Step(number, start, time.perf_counter()))
        if number % plan.every == 0:
            witness[number] = digests(training.state())
            handles.append(_measured_save(training.state(), timeline))
        elif number % plan.every == plan.every // 2:
            timeline.blocking.append(_torch_save(training.state(), Path(plan.folder)))
    for handle, save in zip(handles, timeline.saves, strict=True):
        handle.result()
        save.encode_s, save.raw_bytes, save.stored_bytes = (
            handle.report.encode_s,
            handle.report.raw_bytes,
            handle.report.stored_bytes,
        )
    write(plan, Reference(losses, witness, digests(training.state()), timeline))


def _measured_save(state: State, timeline: Timeline) -> s4async.SaveHandle:
    save = AsyncSave(state["step"], time.perf_counter(), 0.0)
    handle = s4async.save_async(state)
    save.stall_s = time.perf_counter() - save.start_s
    timeline.saves.append(save)

    def note_time(_: object) -> None:
        save.done_s = time.perf_counter()

    handle.add_done_callback(note_time)
    return handle


def _torch_save(state: State, folder: Path) -> BlockingSave:
    """What torch.save costs, to the same disk. It leaves the bytes in the page cache, so flushing them is timed too."""
    path = folder / "torch-save.pt"
    path.unlink(missing_ok=True)
    start = time.perf_counter()
    torch.save(state, path)
    stall_s = time.perf_counter() - start
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return BlockingSave(state["step"], stall_s, time.perf_counter() - start)


def victim(plan: Plan) -> None:
    """Train and save, then die while the last save is on its way: no exit handler, no flush, nothing."""
    training = plan.training()
    for number in _bar(training, plan.steps, "2/3 victim   "):
        training.step()
        if number % plan.every == 0:
            s4async.save_async(training.state())
            if number == plan.death:
                os._exit(DEATH)


def heir(plan: Plan) -> None:
    """Restore the newest checkpoint, judge it, train to the end, judge that."""
    told = read(plan, Reference)
    with s4async.Checkpointer(plan.store) as store:
        steps = store.all_steps()
        for step in steps:
            store.verify(step)
    start = time.perf_counter()
    state: State = s4async.load_checkpoint(plan.store)
    restore_s = time.perf_counter() - start
    found = digests(state)
    different = differences(told.witness[state["step"]], found)
    training = plan.training()
    training.restore(state)
    losses = [training.step().hex() for _ in _bar(training, plan.steps, "3/3 heir     ")]
    ended = differences(told.end, digests(training.state()))
    tensors = sum(1 for leaf in _leaves(state) if isinstance(leaf, torch.Tensor))
    write(plan, Heir(steps, state["step"], restore_s, len(found), tensors, different, losses, ended))


def _leaves(node: object) -> Iterator[object]:
    if isinstance(node, dict):
        for value in node.values():
            yield from _leaves(value)
    else:
        yield node


def _bar(training: Training, steps: int, title: str) -> Iterator[int]:
    """The steps still to take, with a progress bar where somebody watches."""
    layout = "{desc} {percentage:3.0f}% |{bar}| step {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
    with tqdm(total=steps, initial=training.done, desc=title, disable=None, bar_format=layout) as bar:
        for number in range(training.done + 1, steps + 1):
            yield number
            bar.update()


def read(plan: Plan, kind: type[T]) -> T:
    """What another process left."""
    return msgspec.json.decode((Path(plan.folder) / f"{kind.__name__.lower()}.json").read_bytes(), type=kind)


def write(plan: Plan, record: Reference | Heir) -> None:
    """Leave ``record`` for the others."""
    (Path(plan.folder) / f"{type(record).__name__.lower()}.json").write_bytes(msgspec.json.encode(record))


if __name__ == "__main__":
    role, file = sys.argv[1:]
    {"reference": reference, "victim": victim, "heir": heir}[role](
        msgspec.json.decode(Path(file).read_bytes(), type=Plan)
    )
