"""Pending saves: one at a time, no failure untold, none lost at interpreter exit.

One slot per process bounds the memory of snapshots whatever the caller does; ``on_overlap`` says what a save does
when the slot is taken. A failure that nobody looked at is raised by the next save (which then saves nothing: repeat
it) and by ``wait_all``, and printed at exit; each failure is told once.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future, wait

from s4async import engine
from s4async.errors import OverlapError, UsageError
from s4async.handle import SaveHandle

__all__ = ["Pending", "Slot", "pending"]

_CANCEL_TIMEOUT_S = 30.0  # undoing a save takes one storage call


class Slot:
    """The right to run a save. ``release`` may be called twice, by whoever ends the save first."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock: threading.Lock | None = lock

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class Pending:
    """The saves of this process that have not ended, and the failures that nobody has seen."""

    def __init__(self) -> None:
        self._slot = threading.Lock()
        self._lock = threading.Lock()
        self._active: set[SaveHandle] = set()
        self._failed: list[SaveHandle] = []
        self.exit_timeout_s = 0.0

    def admit(self, on_overlap: str, what: str) -> Slot | None:
        """Take the slot. ``None``: skip. Raises an untold failure, ``OverlapError``, or waits, as the rule says."""
        self.tell_failures()
        if self._slot.acquire(blocking=False):
            return Slot(self._slot)
        if on_overlap == "skip":
            return None
        if on_overlap == "error":
            raise OverlapError(f"{what}: an earlier save is still running: {self._names()}")
        if engine.current().on_own_thread:
            raise UsageError(f"{what}: waiting for {self._names()} inside a done-callback would never end")
        self._slot.acquire()
        slot = Slot(self._slot)
        try:
            self.tell_failures()
        except BaseException:
            slot.release()
            raise
        return slot

    def add(self, handle: SaveHandle) -> None:
        """Watch a save until it ends."""
        with self._lock:
            self._active.add(handle)
        Future.add_done_callback(handle, lambda _: self._ended(handle))

    def tell_failures(self) -> None:
        """Raise the oldest failure that nobody has looked at, once."""
        with self._lock:
            failed, self._failed = [h for h in self._failed if not h.observed], []
            if not failed:
                return
            self._failed = failed[1:]
        error = failed[0].exception()
        if error is not None:
            error.add_note(
                f"This failure of an earlier save ({failed[0].what}) is raised here because nobody looked at its "
                "handle. The present call did nothing; repeat it."
            )
            raise error

    def wait_all(self, timeout: float | None) -> None:
        """Wait for every pending save. Raises ``TimeoutError``, or an untold failure."""
        if self._active and engine.current().on_own_thread:
            raise UsageError("wait_all inside a done-callback would wait for itself for ever")
        with self._lock:
            active = list(self._active)
        if wait(active, timeout).not_done:
            raise TimeoutError(f"saves still running after {timeout} s: {self._names()}")
        self.tell_failures()

    def drain(self) -> None:
        """At interpreter exit: finish, or cancel what does not end in time; print what nobody has seen."""
        with self._lock:
            active = list(self._active)
        try:
            late = wait(active, self.exit_timeout_s).not_done
        except KeyboardInterrupt:
            late = {handle for handle in active if not handle.done()}
        for handle in late:
            if isinstance(handle, SaveHandle) and handle.cancel():
                _say(f"{handle.what}: not finished at exit after {self.exit_timeout_s:g} s; it was cancelled")
        wait(late, _CANCEL_TIMEOUT_S)
        for handle in self._failed:
            if not handle.observed:
                _say(f"{handle.what} failed and nobody looked at its handle: {handle.exception()}")

    def _ended(self, handle: SaveHandle) -> None:
        with self._lock:
            self._active.discard(handle)
            if not handle.cancelled() and Future.exception(handle) is not None:
                self._failed = [h for h in self._failed if not h.observed]
                self._failed.append(handle)

    def _names(self) -> str:
        with self._lock:
            return ", ".join(repr(handle) for handle in self._active) or "one that is just starting or ending"


def _say(text: str) -> None:
    print(f"s4async: save {text}", file=sys.stderr, flush=True)


_pending = Pending()


def pending() -> Pending:
    """The process's pending saves."""
    return _pending


def _forget_in_child() -> None:
    global _pending
    _pending = Pending()


os.register_at_fork(after_in_child=_forget_in_child)
engine.at_exit(lambda: _pending.drain())
