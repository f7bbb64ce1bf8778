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
from s4async.errors import ClosedError, OverlapError, UsageError
from s4async.handle import SaveHandle

__all__ = ["Pending", "Slot", "pending"]

_CANCEL_TIMEOUT_S = 30.0  # undoing a save takes one storage call


class Slot:
    """The right to run a save. Given back by ``release`` or, whatever happens, when nobody holds it any more."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._taken = False

    def take(self, *, wait: bool) -> bool:
        self._taken = self._lock.acquire(blocking=wait)
        return self._taken

    def hand_over(self) -> Slot:
        """The same right for another owner; ``release`` of this one does nothing from here on."""
        heir = Slot(self._lock)
        self._taken, heir._taken = False, self._taken
        return heir

    def release(self) -> None:
        """Let the next save in; idempotent."""
        taken, self._taken = self._taken, False
        if taken:
            self._lock.release()

    __del__ = release  # Ctrl-C can come between any two lines


class Pending:
    """The saves of this process that have not ended, and the failures that nobody has seen."""

    def __init__(self) -> None:
        self._slot = threading.Lock()
        self._lock = threading.Lock()
        self._active: set[SaveHandle] = set()
        self._failed: list[SaveHandle] = []
        self._exiting = False
        self.exit_timeout_s = 0.0

    def admit(self, on_overlap: str, what: str) -> Slot | None:
        """Take the slot. ``None``: skip. Raises an untold failure, ``OverlapError``, or waits, as the rule says;
        ``ClosedError`` once the interpreter is exiting."""
        self._check_open(what)
        self.tell_failures()
        slot = Slot(self._slot)
        if slot.take(wait=False):
            return slot
        if on_overlap == "skip":
            return None
        if on_overlap == "error":
            raise OverlapError(f"{what}: an earlier save is still running: {self._names()}")
        if engine.current().on_own_thread:
            raise UsageError(f"{what}: waiting for {self._names()} inside a done-callback would never end")
        slot.take(wait=True)
        try:
            self._check_open(what)
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

    def failed(self, handle: SaveHandle) -> None:
        """A save has failed. Called before its handle tells anybody and before the slot is free, so that whoever
        waited for either finds the failure here."""
        with self._lock:
            self._failed.append(handle)
        handle.on_look(lambda: self._forget(handle))  # an error keeps the frames it went through, and so the state

    def tell_failures(self) -> None:
        """Raise the oldest failure that nobody has looked at, once."""
        with self._lock:
            handle = next((h for h in self._failed if not h.watched), None)
            if handle is None:
                return
            self._failed.remove(handle)
        error = handle.exception()
        if error is not None:
            error.add_note(
                f"This failure of an earlier save ({handle.what}) is raised here because nobody looked at its "
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
        """At interpreter exit: admit no more saves, finish what was admitted, or cancel what does not end in time;
        print what nobody has seen."""
        self._exiting = True
        reason = f"not finished at exit after {self.exit_timeout_s:g} s"
        try:
            free = self._slot.acquire(timeout=min(self.exit_timeout_s, threading.TIMEOUT_MAX))
        except KeyboardInterrupt:
            free, reason = False, "interrupted at exit"
        with self._lock:
            active = list(self._active)
        for handle in active:
            if not free and handle.cancel():
                _say(f"{handle.what}: {reason}; it was cancelled")
        wait(active, _CANCEL_TIMEOUT_S)
        for handle in list(self._failed):
            if not handle.observed:
                _say(f"{handle.what} failed and nobody looked at its handle: {handle.exception()}")

    def _forget(self, handle: SaveHandle) -> None:
        with self._lock:
            self._failed = [h for h in self._failed if h is not handle]

    def _ended(self, handle: SaveHandle) -> None:
        with self._lock:
            self._active.discard(handle)

    def _check_open(self, what: str) -> None:
        if self._exiting:
            raise ClosedError(f"save {what}: the interpreter is exiting; save before the main thread ends")

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
