"""Leased buffers: memory that is reused from frame to frame and from save to save.

Fresh memory costs page faults (0.2 to 1.3 s per GiB), so buffers are kept after release. The pool never waits: the
byte budget of a pipeline is kept by ``pipeline.flow``, which decides how many frames are in flight; the pool only
keeps what was leased at the same time, and forgets what does not fit ``keep_nbytes``. Any thread may use it.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np

from s4async.device.base import Bytes

__all__ = ["Arena", "Pool"]


class Pool:
    """Buffers by size. A lease is an array from ``lease``; give it back with ``release`` exactly once."""

    def __init__(self, keep_nbytes: int) -> None:
        self._keep_nbytes = keep_nbytes
        self._free: defaultdict[int, list[Bytes]] = defaultdict(list)
        self._free_nbytes = 0
        self._lock = threading.Lock()

    def lease(self, nbytes: int) -> Bytes:
        """An array of exactly ``nbytes`` with any content."""
        with self._lock:
            if self._free[nbytes]:
                self._free_nbytes -= nbytes
                return self._free[nbytes].pop()
        return np.empty(nbytes, np.uint8)

    def release(self, buffer: Bytes) -> None:
        """Give a lease back; the caller must not touch it again."""
        with self._lock:
            if buffer.size <= self._keep_nbytes:
                while self._free_nbytes + buffer.size > self._keep_nbytes:
                    self._drop_one()
                self._free[buffer.size].append(buffer)
                self._free_nbytes += buffer.size

    def clear(self) -> None:
        """Forget all free buffers."""
        with self._lock:
            self._free.clear()
            self._free_nbytes = 0

    def _drop_one(self) -> None:
        size = next(size for size, buffers in self._free.items() if buffers)
        self._free[size].pop()
        self._free_nbytes -= size


class Arena:
    """One large buffer, kept from save to save: the memory of snapshots, of which there is one at a time."""

    def __init__(self) -> None:
        self._kept: Bytes | None = None
        self._lock = threading.Lock()

    def lease(self, nbytes: int) -> Bytes:
        """An array of at least ``nbytes``. One that is far too large is let go, so that memory follows the state."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is None or not nbytes <= kept.size <= 2 * nbytes:
            del kept  # before the new one is there, not after
            return np.empty(nbytes, np.uint8)
        return kept

    def release(self, buffer: Bytes) -> None:
        """Give the lease back; the caller must not touch it again."""
        with self._lock:
            self._kept = buffer

    def clear(self) -> None:
        """Return the memory to the system."""
        with self._lock:
            self._kept = None
