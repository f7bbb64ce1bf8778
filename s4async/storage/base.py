"""Storage: named immutable objects. The protocols, and the registry from URL scheme to class.

A storage is rooted at a URL and knows nothing of checkpoints. Keys are ``/``-separated names checked by ``check_key``.
An object is written once and never changed; *visible* means that ``head``, ``list`` and ``get_into`` see it, and that
happens at one moment: when ``put`` returns or ``Upload.complete`` returns. Only ``async`` methods may wait.
Every failure is a ``StorageError`` that names the URL or path, the operation and the cause.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ObjectInfo", "Storage", "Upload"]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A visible object: its key, its size in bytes, and when it became visible (seconds since the epoch)."""

    key: str
    nbytes: int
    modified_s: float


class Upload(Protocol):
    """One object being written, front to back."""

    async def write(self, buffers: Sequence[memoryview]) -> None:
        """Append the buffers. When it returns, their memory may be reused."""
        ...

    async def complete(self) -> ObjectInfo:
        """Make the object durable and visible. Raises ``PreconditionError`` if ``if_absent`` and it exists."""
        ...


class Storage(Protocol):
    """What a driver offers. Safe for concurrent use from one event loop."""

    @property
    def url(self) -> str:
        """Where it is rooted, for messages."""
        ...

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """Write a small object in one go. Replaces an existing one atomically unless ``if_absent``
        (then ``PreconditionError``)."""
        ...

    def open_upload(
        self, key: str, *, if_absent: bool = False, nbytes_bound: int | None = None
    ) -> AbstractAsyncContextManager[Upload]:
        """Write a large object. Leaving the context without ``complete`` leaves nothing behind.
        ``nbytes_bound``: an upper bound of the size, where the driver plans parts or space by it."""
        ...

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``start``. Raises ``ObjectNotFoundError``; an object that ends too early is an
        ``IntegrityError``."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Raises ``ObjectNotFoundError``."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Visible objects whose key starts with ``prefix``, in key order."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the object; not an error if it is absent. Durable when it returns."""
        ...

    async def close(self) -> None:
        """Release connections and descriptors; idempotent."""
        ...
