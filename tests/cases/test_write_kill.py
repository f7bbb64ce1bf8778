"""kill -9 at any moment leaves a whole checkpoint: the old one or the new one."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import s4async
from tests.cases.harness import all_steps, assert_same, full, noise, spawn

# ---- kill -9 at any moment (Lightning-AI/pytorch-lightning#688, sgl-project/SpecForge#659)

# A process that has imported everything and forks one saver per line of its stdin, so that a kill costs no start-up.
_NURSERY = """
def check_of(n):
    return {{"n": n, "w": noise(500_000, n), "c": full(100_000, n), "x": [n] * 3}}

def run(line):
    {body}

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        run(line)
        os._exit(0)
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("dead", flush=True)
"""


class Nursery:
    """Savers to be killed. ``start(line)`` gives the pid of the next one; ``said`` what it printed once it is dead."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def start(self, line: object) -> int:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def line(self) -> str:
        return str(self._process.stdout.readline()).strip()

    def said(self) -> list[str]:
        lines = []
        while (line := self.line()) != "dead":
            assert line, "the nursery is gone"
            lines.append(line)
        return lines


@contextmanager
def nursery(body: str) -> Iterator[Nursery]:
    with spawn(_NURSERY.format(body=body.replace("\n", "\n    "))) as process:
        try:
            yield Nursery(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


def _state(n: int) -> dict[str, Any]:
    return {"n": n, "w": noise(500_000, n), "c": full(100_000, n), "x": [n] * 3}


_SAVE_FOR_EVER = """n = int(line) * 10**6
while True:
    n += 1
    s4async.save(check_of(n), {place!r})
    print(n, flush=True)"""


@pytest.mark.parametrize("kills", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path, kills: int) -> None:
    """Elsewhere: a truncated file under the final name, or retention that had already removed the older one. Right: it
    loads whatever the moment, as one version and not a mixture, no older than the last one acknowledged; and what the
    kills leave behind is removed by the next save."""
    place = tmp_path / "folder" / "ck.s4"
    moments = random.Random(kills)
    with nursery(_SAVE_FOR_EVER.format(place=str(place))) as savers:
        for kill in range(kills):
            pid = savers.start(kill)
            acknowledged = savers.line()
            time.sleep(moments.random() * 0.1)  # the kill must come at no particular moment
            os.kill(pid, signal.SIGKILL)
            last = int([acknowledged, *savers.said()][-1])
            loaded = s4async.load(place)
            assert loaded["n"] >= last, "an acknowledged save was lost"
            assert_same(_state(loaded["n"]), loaded)
            s4async.verify(place)
    s4async.save({"n": 0}, place)
    assert list(place.parent.iterdir()) == [place]


# Dies at the n-th system call that writes: every state that a crash can leave behind, without any chance in it.
_DIE_AT = """left = [int(line)]
def deadly(name):
    real = getattr(os, name)
    def call(*a, **k):
        if name != "open" or a[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return real(*a, **k)
    setattr(os, name, call)
for name in ("open", "write", "writev", "fsync", "rename", "link", "unlink", "mkdir", "fchmod", "fchown"):
    deadly(name)
{save}
print("saved", flush=True)"""


@pytest.mark.parametrize("kind", ["object", "store"])
def test_a_death_at_every_system_call_leaves_old_or_new(tmp_path: Path, kind: str) -> None:
    """The same without chance: the process dies before its first, second, ... writing system call. Always the old
    version or the new one loads, nothing else is listed, and a repeated save succeeds."""
    place = tmp_path / "place"
    if kind == "object":
        s4async.save(_state(1), place)
        save = f"s4async.save(check_of(2), {str(place)!r})"
    else:
        s4async.save_checkpoint(_state(1), place, step=1)
        save = f"s4async.save_checkpoint(check_of(2), {str(place)!r}, step=2)"
    seen = set()
    with nursery(_DIE_AT.format(save=save)) as savers:
        for calls in range(100):
            savers.start(calls)
            if savers.said() == ["saved"]:
                break
            loaded = s4async.load(place)
            assert_same(_state(loaded["n"]), loaded)
            s4async.verify(place)
            seen.add(loaded["n"])
            if kind == "store":
                assert all_steps(place) == list(range(1, loaded["n"] + 1))
                if loaded["n"] == 2:
                    with s4async.Checkpointer(place) as store:
                        store.delete(2)
            elif loaded["n"] == 2:
                s4async.save(_state(1), place)
    assert seen == {1, 2}, "it died only before, or only after, the commit"
    assert calls > 5
    assert s4async.load(place)["n"] == 2
