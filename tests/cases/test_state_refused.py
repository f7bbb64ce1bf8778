"""What cannot be carried is refused by name, at once, before anything is written."""

from __future__ import annotations

import collections
import io
import socket
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

import s4async
from s4async.errors import UnsupportedStateError, UsageError
from tests.cases.harness import all_steps, full

# ---- what cannot be carried (pytorch/pytorch#3891, Lightning-AI/pytorch-lightning#15901, #18493)


@dataclass
class Holder:
    """A record of the caller's whose field holds what the test puts there."""

    fn: object
    kept: list[int] = field(default_factory=list)


class Local:
    def method(self) -> None: ...


def _bad() -> dict[str, object]:
    def generator() -> Iterator[int]:
        yield 1

    return {
        "lambda": lambda x: x,
        "generator": generator(),
        "lock": threading.Lock(),
        "event": threading.Event(),
        "thread": threading.Thread(),
        "bytesio": io.BytesIO(b"x"),
        "function": tempfile.TemporaryFile,
        "stream": sys.stderr,
        "weakref": weakref.ref(Local),
        "weakmethod": weakref.WeakMethod(Local().method),
        "bound": Local().method,
        "module": types,
        "object": object(),
        "instance": Local(),
        "iterator": iter([1]),
        "map": map(str, [1]),
        "meta": torch.empty(2, device="meta"),
        "frame": sys._getframe(),
    }


@pytest.mark.parametrize("kind", _bad())
@pytest.mark.parametrize("call", ["save", "save_async", "save_checkpoint"])
def test_what_cannot_be_carried_is_refused_by_name(tmp_path: Path, kind: str, call: str) -> None:
    """Elsewhere the save fails in the middle of training without saying which entry is to blame. Right: at once, on the
    calling thread, with the path of the entry, before anything is written; the older checkpoint stays."""
    bad, place, store = _bad()[kind], tmp_path / "ck.s4", tmp_path / "store"
    s4async.save({"w": torch.ones(2), "v": 1}, place)
    before = place.read_bytes()
    state = {"w": torch.zeros(2), "sched": {"groups": [{"fn": bad}]}}
    with pytest.raises(UnsupportedStateError, match="sched/groups/0/fn"):
        if call == "save_checkpoint":
            s4async.save_checkpoint(state, store, step=1)
        else:
            getattr(s4async, call)(state, place)
    assert place.read_bytes() == before and list(tmp_path.iterdir()) == [place]
    s4async.verify(place)


def test_refusals_name_entries_in_every_kind_of_container() -> None:
    """The path leads to the entry through whatever the state is made of."""
    bad = threading.Lock()
    cases: list[tuple[object, list[str]]] = [
        ({"a": (1, [bad])}, ["a/1/0"]),
        ({"a": {7: {"b": bad}}}, ["a/7/b"]),
        ({"a": {(0, "x"): bad}}, ["a/", "x"]),
        ({"a": collections.OrderedDict(k=bad)}, ["a/k"]),
        ({"a": collections.deque([1, bad])}, ["a/1"]),
        ({"a": Holder(bad)}, ["a/fn"]),
        ({"a": types.MappingProxyType({"k": bad})}, ["a/k"]),
        ({"a": {Local: 1}}, ["a"]),
        ({"a": {"k", Local}}, ["a"]),
        ({"a": np.array([{"x": bad}], dtype=object)}, ["a"]),
        ([0, 1, {"last": bad}], ["2/last"]),
    ]
    for state, parts in cases:
        with pytest.raises(UnsupportedStateError) as caught:
            s4async.save(state, io.BytesIO())
        assert all(part in str(caught.value) for part in parts), (parts, str(caught.value))


def test_states_without_an_end_are_refused_not_followed() -> None:
    """A container inside itself, or nested deeper than the stack, ends in a typed error and not in a crash."""
    loop: list[object] = [1]
    loop.append({"again": loop})
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    try:
        for state in ({"loop": loop}, {"deep": deep}):
            with pytest.raises(UsageError, match="loop|deep"):
                s4async.save(state, io.BytesIO())
    finally:
        while deep:  # a list this deep must be taken apart by hand
            deep = deep.pop()  # type: ignore[assignment]


def test_a_state_that_fails_while_it_is_asked_is_told_by_name() -> None:
    """An object whose ``state_dict`` raises is the caller's error, but the message must say whose it was."""

    class Broken:
        def state_dict(self) -> dict[str, object]:
            raise KeyError("shard 3")

        def load_state_dict(self, state: dict[str, object]) -> None: ...

    with pytest.raises(Exception, match="shard 3") as caught:
        s4async.save({"loader": {"train": Broken()}}, io.BytesIO())
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "loader/train" in told


def test_a_refused_save_leaves_room_for_the_next(tmp_path: Path) -> None:
    """After a refusal the next save starts at once: nothing stays taken, in memory or in the store."""
    for _ in range(3):
        with pytest.raises(UnsupportedStateError):
            s4async.save_async({"w": full(1000, 1), "bad": object()}, tmp_path / "ck.s4", on_overlap="error")
    s4async.save_async({"w": full(1000, 2)}, tmp_path / "ck.s4", on_overlap="error").result(60)
    s4async.save_checkpoint({"n": 1}, tmp_path / "store", step=1)
    assert all_steps(tmp_path / "store") == [1]


def test_sockets_are_refused_like_files() -> None:
    """A logger's connection in a callback's state is no different from an open file."""
    with socket.socket() as connection, pytest.raises(UnsupportedStateError, match="logger/sock"):
        s4async.save({"logger": {"sock": connection}}, io.BytesIO())
