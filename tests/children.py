"""Child processes that cost milliseconds: forked from one interpreter that has imported everything and begun nothing.

Each child runs its code as the main module would, at top level, and then ends as any script does: tracebacks, exit
hooks, signals and exit codes are the interpreter's own. stdout and stderr go to files, so nothing can block on a pipe.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Done", "run_child"]

ROOT = Path(__file__).resolve().parent.parent

_MAIN = """
import asyncio, atexit, gc, io, json, multiprocessing, os, signal, sys, threading, time, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # the point of some tests
import torch
import s4async
from concurrent.futures import wait
from s4async.errors import *
from tests.cases.harness import FailingFile, GatedFile, full, noise

gc.collect()
gc.freeze()  # or every child's last collection copies all pages

for _line in sys.stdin:
    if os.fork() == 0:
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    os._exit(0)

_order = json.loads(_line)
for _fd, _path in enumerate(("/dev/null", _order["stdout"], _order["stderr"])):
    os.dup2(os.open(_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), _fd)
os.chdir(_order["cwd"])
os.environ.update(_order["env"])
signal.alarm(_order["limit"])  # a hang ends it: exit code -SIGALRM
exec(compile(_order["code"], "<child>", "exec"))
"""


@dataclass(frozen=True)
class Done:
    """``returncode`` as in ``subprocess``: negative for a signal."""

    returncode: int
    stdout: str
    stderr: str


class _Nursery:
    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._close)

    def run(self, order: dict[str, object]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def _close(self) -> None:
        self._process.communicate()


@functools.cache
def _nursery() -> _Nursery:
    return _Nursery()


def run_child(code: str, *, cwd: Path | None = None, limit_s: int = 30, **env: str) -> Done:
    """Run ``code`` to its end. It sees the names that ``_MAIN`` imports. Killed by SIGALRM after ``limit_s``."""
    with tempfile.TemporaryDirectory() as folder:
        order = {
            "code": textwrap.dedent(code),
            "stdout": f"{folder}/stdout",
            "stderr": f"{folder}/stderr",
            "cwd": str(cwd or folder),
            "env": env,
            "limit": limit_s,
        }
        returncode = _nursery().run(order)
        return Done(returncode, Path(folder, "stdout").read_text(), Path(folder, "stderr").read_text())
