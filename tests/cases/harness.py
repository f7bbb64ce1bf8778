"""What the cases share: exact comparison, sizes of what was stored, fresh interpreters, files that misbehave.

The cases were collected from public reports about other tools; each stands for a family of situations. Two rules hold
in all of them and are not repeated: a value, type, key or order that comes back is exact or a typed error names the
entry; and success means durable and complete, with the older version loadable until then.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import s4async
from s4async.format import manifest as records
from s4async.format.manifest import Manifest
from s4async.format.object import FOOTER_NBYTES, HEADER_NBYTES, pack_tail, parse_footer, parse_header, unpack_manifest

__all__ = [
    "ROOT",
    "FailingFile",
    "GatedFile",
    "all_steps",
    "assert_same",
    "bits",
    "child",
    "delete_step",
    "edit_manifest",
    "full",
    "latest_step",
    "moved",
    "noise",
    "round_trip",
    "spawn",
    "stored_bytes",
]

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100  # of a child: far above what it needs, below the limit of a test

_PRELUDE = """
import gc, io, logging, multiprocessing, os, random, resource, signal, sys, threading, time
import numpy as np
import torch
import s4async
from s4async.errors import *
from tests.cases.harness import *
"""


def full(n: int, value: float) -> torch.Tensor:
    """A tensor that compresses to nothing."""
    return torch.full((n,), float(value))


def noise(n: int, seed: int = 0) -> torch.Tensor:
    """A float32 tensor whose fractions do not compress; the same for the same seed."""
    return torch.rand(n, generator=torch.Generator().manual_seed(seed))


def round_trip(state: object, **options: Any) -> Any:
    """Save to a file of its own and load it; ``options`` go to ``load``."""
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "ck.s4")
        s4async.save(state, place)
        return s4async.load(place, **options)


def stored_bytes(place: str | os.PathLike[str]) -> int:
    """Bytes of a file, or of every file below a folder, hidden ones included."""
    path = Path(place)
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


def all_steps(store: str | os.PathLike[str]) -> list[int]:
    with s4async.Checkpointer(store) as checkpointer:
        return checkpointer.all_steps()


def latest_step(store: str | os.PathLike[str]) -> int | None:
    with s4async.Checkpointer(store) as checkpointer:
        return checkpointer.latest_step()


def delete_step(store: str | os.PathLike[str], step: int) -> None:
    with s4async.Checkpointer(store) as checkpointer:
        checkpointer.delete(step)


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, bytes]:
    """Every bit of a strided tensor, in the order of its elements."""
    dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # a reshape keeps odd strides of size-1 dimensions
    return dense.dtype, flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same(a: Any, b: Any, at: str = "$") -> None:
    """Exact equality: types, key order, dtype, shape, layout, device, every bit of every number."""
    assert type(a) is type(b), (at, type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.layout, a.device) == (b.dtype, b.shape, b.layout, b.device), at
        strided = a.layout == torch.strided
        assert bits(a if strided else a.to_dense()) == bits(b if strided else b.to_dense()), at
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), at
        assert list(a.flat) == list(b.flat) if a.dtype.hasobject else a.tobytes() == b.tobytes(), at
    elif isinstance(a, np.generic):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), at
    elif isinstance(a, dict):
        assert [(type(k), k) for k in a] == [(type(k), k) for k in b], (at, list(a)[:5], list(b)[:5])
        for key in a:
            assert_same(a[key], b[key], f"{at}[{key!r:.40}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), at
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{at}[{index}]")
    elif isinstance(a, float):
        assert struct.pack("d", a) == struct.pack("d", b), at
    elif isinstance(a, complex):
        assert_same((a.real, a.imag), (b.real, b.imag), at)
    else:
        assert a == b, at


def edit_manifest(place: Path, edit: Callable[[Manifest], Manifest], copy: Path) -> Path:
    """Write to ``copy`` the object at ``place`` with another manifest and everything that belongs to it right again:
    what a newer or foreign writer might have written."""
    data, where = place.read_bytes(), str(place)
    header = parse_header(data[:HEADER_NBYTES], where)
    footer = parse_footer(data[-FOOTER_NBYTES:], len(data), where)
    stored = data[footer.offset : footer.offset + footer.nbytes]
    manifest = records.decode(unpack_manifest(stored, footer, where), header, footer.offset, where)
    copy.write_bytes(data[: footer.offset] + pack_tail(records.encode(edit(manifest)), footer.offset))
    return copy


def moved(location: str) -> Callable[[Manifest], Manifest]:
    """An edit: every region was saved on ``location``."""
    return lambda m: replace(m, regions=tuple(replace(region, location=location) for region in m.regions))


class GatedFile(io.BytesIO):
    """A file whose first write waits until ``go`` is set: a save in progress for as long as a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.go = threading.Event()

    def write(self, data: Any, /) -> int:
        self.entered.set()
        if not self.go.wait(TIMEOUT_S):
            raise TimeoutError("nobody opened the gate")
        return super().write(data)

    def content(self) -> io.BytesIO:
        return io.BytesIO(self.getvalue())


class FailingFile(io.BytesIO):
    """A file that takes ``room`` bytes and then says that the disk is full."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > self.room:
            raise OSError(28, "No space left on device")
        return super().write(data)


def _command(code: str) -> tuple[list[str], dict[str, str]]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return [sys.executable, "-u", "-c", _PRELUDE + textwrap.dedent(code)], {**os.environ, "PYTHONPATH": path}


def child(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter that has imported this harness, torch and the errors."""
    command, base = _command(code)
    return subprocess.run(command, env={**base, **env}, timeout=TIMEOUT_S, capture_output=True, text=True, check=False)


def spawn(code: str) -> subprocess.Popen[str]:
    """Start the same and go on; its stdin and stdout are pipes, its stderr is this process's."""
    command, env = _command(code)
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
