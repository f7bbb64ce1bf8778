"""Threads for blocking calls, so that the event loop never waits for a disk.

Knows nothing of what it runs. The invariant: when ``run`` ends, even by cancellation, the call has ended too, so no
thread still reads or fills memory that its owner has taken back. The price is that cancelling waits for the call in
progress, which on a dead network mount takes as long as the system lets it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from s4async.errors import ClosedError

__all__ = ["IOThreads"]

T = TypeVar("T")

THREADS = 4  # reads of one object keep an NVMe disk busy from 3 on; each upload uses one at a time
_numbers = itertools.count()


class IOThreads:
    """A bounded pool that starts with the first call; or the given executor, which is left open for its owner."""

    def __init__(self, executor: Executor | None = None, *, threads: int = THREADS) -> None:
        self._given = executor
        self._own: ThreadPoolExecutor | None = None
        self._pid = 0  # of the process that has these threads; a forked child has none of them
        self._threads = threads

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """``function(*args)`` in a thread."""
        try:
            future = asyncio.wrap_future(self._executor().submit(function, *args))
        except RuntimeError as error:
            raise ClosedError(f"no thread for a blocking call: {error}; finish before the interpreter exits") from error
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait((future,))  # unlike awaiting it, leaves the future alone when cancelled
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        if cancelled is not None:
            future.exception()  # mark it as seen; the cancellation is what the caller hears of
            raise cancelled
        return future.result()

    def close(self) -> None:
        """End the own threads once idle; a later ``run`` starts new ones."""
        own, self._own = self._own, None
        if own is not None and self._pid == os.getpid():
            own.shutdown(wait=False)

    def _executor(self) -> Executor:
        if self._given is not None:
            return self._given
        if self._own is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._own = ThreadPoolExecutor(self._threads, initializer=_name_thread)
        return self._own


def _name_thread() -> None:
    threading.current_thread().name = f"s4async-io-{next(_numbers)}"
