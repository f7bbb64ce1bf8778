"""Handles: what a caller holds while a save or load runs. Futures of the standard library, and awaitable.

The life of a save, each state visible in ``repr``::

    SNAPSHOTTED -> STORED -> COMMITTED        from each -> FAILED | CANCELLED;   SKIPPED from the start

A handle is completed by the engine's loop. It knows whether anybody looked at its outcome, so that a failure that
nobody saw can be told later (``pending``). It never blocks in ``__del__`` and holds no reference to the caller's state.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from s4async import engine
from s4async.errors import UsageError
from s4async.pipeline.flow import Meter

__all__ = ["CheckpointInfo", "Handle", "LoadHandle", "Progress", "SaveHandle", "SaveReport"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint that is durable and visible. ``step`` is ``None`` for a single object."""

    url: str
    step: int | None
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a save or load stands. ``state`` as in ``repr``; counts grow to their totals."""

    state: str
    frames_done: int
    frames: int
    raw_bytes_done: int
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What a save cost. Times in seconds, sizes in bytes; final once the handle is done.

    ``stall_s``: how long ``save_async`` kept the caller, of which ``wait_s`` waiting for an earlier save,
    ``capture_s`` walking the state and ``snapshot_s`` copying it. ``encode_s`` is summed over threads, ``upload_s`` is
    time spent waiting for the storage, ``commit_s`` making it durable, ``total_s`` from call to commit.
    ``by_dtype``: (raw, stored) bytes per dtype. ``stored_bytes`` counts everything: header, manifest, footer.
    """

    stall_s: float
    wait_s: float
    capture_s: float
    snapshot_s: float
    encode_s: float
    upload_s: float
    commit_s: float
    total_s: float
    raw_bytes: int
    stored_bytes: int
    by_dtype: dict[str, tuple[int, int]]

    @property
    def ratio(self) -> float:
        """Stored over raw bytes; 0 for an empty state."""
        return self.stored_bytes / self.raw_bytes if self.raw_bytes else 0.0


class Handle(Future[T]):
    """A future of the engine: ``result``, ``exception``, ``done``, ``add_done_callback``, ``await`` and ``cancel``."""

    def __init__(self, what: str, meter: Meter) -> None:
        super().__init__()
        self.what = what
        self.meter = meter
        self.observed = False
        self._on_look: Callable[[], None] | None = None
        self.state = "RUNNING"
        self._watchers: set[object] = set()  # one for each that is waiting for the outcome now
        self._job: engine.Job[T] | None = None
        self._held = False
        self._pid = os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child's copy: the work goes on in the parent, and nothing of it is heard here."""
        return os.getpid() != self._pid

    @property
    def watched(self) -> bool:
        """Whether somebody has looked at the outcome, or is waiting for it now."""
        return self.observed or bool(self._watchers)

    def look(self) -> None:
        """Note that somebody has looked at the outcome, or is sure to be told."""
        self.observed = True
        forget, self._on_look = self._on_look, None
        if forget is not None:
            forget()

    def on_look(self, forget: Callable[[], None]) -> None:
        """Call ``forget`` once somebody has looked; at once if somebody has."""
        self._on_look = forget
        if self.observed:
            self.look()

    def attach(self, job: engine.Job[T]) -> None:
        """The work behind the handle, which may have begun, and may even be committing, by now."""
        self._job = job
        if self._held:
            job.hold()

    def hold(self) -> None:
        """On the loop: the commit begins; ``cancel`` comes too late from here on."""
        self._held = True
        if self._job is not None:
            self._job.hold()

    def result(self, timeout: float | None = None) -> T:
        """Wait and return the outcome, or raise what the background raised. Raises ``TimeoutError``,
        ``concurrent.futures.CancelledError``, and ``UsageError`` where waiting could never end."""
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait and return what the background raised, ``None`` if nothing. Raises as ``result``."""
        self._may_wait()
        with self._watching():
            error = super().exception(timeout)
            self.look()
        return error

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn(handle)`` once done, on the engine's thread: it must be quick, and may not call blocking s4async
        functions. Counts as looking at the outcome."""
        self.look()
        super().add_done_callback(fn)

    def cancel(self) -> bool:
        """Stop the work. ``True``: it will not be committed, and ``result`` raises ``CancelledError`` once what had
        begun is undone. ``False``: too late, it is done or being committed."""
        if self._job is None or self.done():
            return False
        self._check_process()
        if engine.current().on_own_thread:
            return self._job.cancel_now()
        return self._job.cancel().result()

    def progress(self) -> Progress:
        """Counters as of now; cheap, from any thread."""
        m = self.meter
        return Progress(self.state, m.frames_done, m.frames, m.raw_done_nbytes, m.raw_nbytes, m.stored_nbytes)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in any running asyncio loop. Cancelling the await does not cancel the work."""
        if not self.done():
            self._check_process()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def tell() -> None:
            if not outcome.done():
                _copy_outcome(self, outcome)

        def wake(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the awaiting loop was closed meanwhile: nobody waits any more
                loop.call_soon_threadsafe(tell)

        super().add_done_callback(wake)
        with self._watching():
            value = yield from outcome.__await__()
        return value

    def __repr__(self) -> str:
        p = self.progress()
        return (
            f"<{type(self).__name__} {self.what} {p.state} frames {p.frames_done}/{p.frames} "
            f"bytes {p.raw_bytes_done}/{p.raw_bytes} stored {p.stored_bytes}>"
        )

    def _may_wait(self) -> None:
        if self.done():
            return
        self._check_process()
        if engine.current().on_own_thread:
            raise UsageError(f"{self!r} is not done, and waiting for it on the engine's thread would never end")

    def _check_process(self) -> None:
        if self.inherited:
            raise UsageError(f"{self!r} belongs to process {self._pid}; a forked child can neither wait nor cancel")

    @contextmanager
    def _watching(self) -> Iterator[None]:
        token = object()
        self._watchers.add(token)
        try:
            yield
        finally:
            self._watchers.discard(token)


def _copy_outcome(source: Handle[T], target: asyncio.Future[T]) -> None:
    source.look()
    if source.cancelled():
        target.cancel()
    elif (error := Future.exception(source)) is not None:
        target.set_exception(error)
    else:
        target.set_result(Future.result(source))


class LoadHandle(Handle[Any]):
    """The future of a ``load_async``. ``RUNNING -> RESTORED | FAILED | CANCELLED``."""

    def progress(self) -> Progress:
        """Counters as of now; cheap, from any thread."""
        state = "RUNNING"
        if self.cancelled():
            state = "CANCELLED"
        elif self.done():
            state = "RESTORED" if Future.exception(self) is None else "FAILED"
        return replace(super().progress(), state=state)


class SaveHandle(Handle["CheckpointInfo | None"]):
    """The future of a save: its result is a ``CheckpointInfo``, or ``None`` where the overlap rule skipped it.

    ``staged`` is a second future: done when the state may change, that is before ``save_async`` returns on a CPU.
    """

    def __init__(self, what: str, meter: Meter) -> None:
        super().__init__(what, meter)
        self.staged: Future[None] = Future()
        self.step: int | None = None
        self.timing: dict[str, float] = {}

    @property
    def skipped(self) -> bool:
        """Whether ``on_overlap="skip"`` left this save out."""
        return self.state == "SKIPPED"

    @property
    def report(self) -> SaveReport:
        """What the save cost so far."""
        m = self.meter
        t = dict.fromkeys(("stall_s", "wait_s", "capture_s", "snapshot_s", "total_s"), 0.0) | self.timing
        return SaveReport(
            **t,
            encode_s=m.encode_s,
            upload_s=m.upload_s,
            commit_s=m.commit_s,
            raw_bytes=m.raw_nbytes,
            stored_bytes=m.stored_nbytes,
            by_dtype=dict(m.by_dtype),
        )
