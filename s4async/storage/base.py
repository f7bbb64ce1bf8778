"""Storage: named immutable objects. The protocols, the rules for keys, and the registry from URL scheme to class.

A storage is rooted at a URL and knows nothing of checkpoints. Keys are ``/``-separated names checked by ``check_key``.
An object is written once and never changed; *visible* means that ``head``, ``list`` and ``open_object`` see it, and
that happens at one moment: when ``put`` returns or ``Upload.complete`` returns. Only ``async`` methods may wait, and
when one of them ends, however it ends, nobody touches the caller's buffers any more.
Every failure is a ``StorageError`` that names the URL or path, the operation and the cause; an object that ends too
early is a ``CorruptionError``; a key or URL that cannot be one is a ``UsageError``.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import unquote_to_bytes

from s4async.errors import CorruptionError, StorageError, UnsupportedError, UsageError

__all__ = [
    "MAX_KEY_NBYTES",
    "TEMPORARY_SUFFIX",
    "ObjectInfo",
    "ObjectReader",
    "Storage",
    "Upload",
    "as_bytes",
    "check_key",
    "check_range",
    "is_local",
    "key_fault",
    "local_path",
    "open_storage",
    "register",
    "split_url",
]

MAX_KEY_NBYTES = 1024  # S3's limit, so that every key fits every storage
TEMPORARY_SUFFIX = ".s4tmp"  # with a leading dot: names of unfinished uploads in folders, never keys

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FILE_URL = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>/.*)", re.IGNORECASE | re.DOTALL)
_COLLAPSED_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # what pathlib makes of a URL


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A visible object: its key, its size in bytes, and when it was written (seconds since the epoch)."""

    key: str
    nbytes: int
    modified_s: float


class Upload(Protocol):
    """One object being written, front to back, one call at a time. After a failed or cancelled call the upload is
    spoilt: every further call raises."""

    async def write(self, buffers: Sequence[memoryview]) -> None:
        """Append the buffers (C-contiguous). When it returns, their memory may be reused."""
        ...

    async def complete(self) -> ObjectInfo:
        """Make the object durable and visible. Raises ``PreconditionError`` if ``if_absent`` and it exists."""
        ...


class ObjectReader(Protocol):
    """One object being read. All calls see the object as it was when it was opened, even if it is replaced or deleted
    meanwhile; a storage that cannot go on reading the old one raises."""

    @property
    def nbytes(self) -> int:
        """Size of the object."""
        ...

    async def get_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` (writable, C-contiguous) from byte ``start``. Calls may run side by side. Raises
        ``CorruptionError`` if the object ends too early."""
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

    def open_object(self, key: str) -> AbstractAsyncContextManager[ObjectReader]:
        """Read an object, in any order. Raises ``ObjectNotFoundError`` on entering."""
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
        """Release connections, threads and descriptors; idempotent. Objects stay."""
        ...


def key_fault(key: str) -> str:
    """What is wrong with ``key``, in words that follow its name; ``""`` if nothing is."""
    if _CONTROL.search(key) or "\\" in key:
        return "contains a control character or a backslash"
    try:
        nbytes = len(key.encode("utf-8", "surrogateescape"))  # so that file names that are not UTF-8 stay possible
    except UnicodeEncodeError:
        return "contains a character that UTF-8 cannot express"
    if nbytes > MAX_KEY_NBYTES:
        return f"has {nbytes} bytes, expected at most {MAX_KEY_NBYTES}"
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            return f"has the segment {segment!r}, expected names separated by single slashes"
        if segment.startswith(".") and segment.endswith(TEMPORARY_SUFFIX):
            return f"has the segment {segment!r}, a name kept for unfinished uploads"
    return ""


def check_key(key: str) -> None:
    """Raise ``UsageError`` unless ``key`` can name an object: segments separated by single slashes, none of them
    empty, ``.``, ``..`` or a temporary's name; no control characters, no backslash; at most 1,024 bytes."""
    fault = key_fault(key)
    if fault:
        raise UsageError(f"object name {key!r} {fault}; choose another name")


def check_range(where: str, start: int, count: int, nbytes: int) -> None:
    """Raise ``CorruptionError`` unless ``count`` bytes from ``start`` lie inside the ``nbytes`` of object ``where``."""
    if start < 0 or start + count > nbytes:
        raise CorruptionError(
            f"reading {where}: expected {count} bytes from byte {start}, the object ends after {nbytes} bytes; "
            "it was cut short or is not a checkpoint: restore another copy"
        )


def as_bytes(buffer: memoryview) -> memoryview:
    """The same memory, one-dimensional and counted in bytes."""
    if buffer.ndim == 1 and buffer.format == "B":
        return buffer
    return buffer.cast("B") if buffer.nbytes else memoryview(b"")  # cast refuses a zero in the shape


_REGISTRY = {
    "": "s4async.storage.local:LocalStorage",
    "file": "s4async.storage.local:LocalStorage",
    "memory": "s4async.storage.memory:MemoryStorage",
}


def register(scheme: str, target: str) -> None:
    """Make ``open_storage`` call ``target`` (``"module:Class"``, imported on first use) with URLs of ``scheme``."""
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) or not re.fullmatch(r"[\w.]+:\w+", target):
        raise UsageError(f"register({scheme!r}, {target!r}): expected a lower-case scheme and 'module:Class'")
    _REGISTRY[scheme] = target


def open_storage(url: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Storage:
    """The storage rooted at a folder path or URL. Touches neither disk nor network yet. Raises ``UnsupportedError``
    if this build has no storage for the scheme, or lacks a package that it needs."""
    text = _text(url)
    scheme = _scheme(text)
    target = _REGISTRY.get(scheme)
    if target is None:
        known = ", ".join(f"{name}://" for name in sorted(_REGISTRY) if name)
        raise UnsupportedError(
            f"opening {text}: this build has no storage for {scheme}://, it has folder paths and {known}; "
            "install the part that brings it or use one of these"
        )
    module, _, name = target.partition(":")
    try:
        make = cast(Callable[[str], Storage], getattr(importlib.import_module(module), name))
    except ImportError as error:
        raise UnsupportedError(
            f"opening {text}: storage for {scheme}:// needs a package that is missing ({error}); install it"
        ) from error
    return make(text)


def split_url(f: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> tuple[str, str]:
    """The storage root and the key of one object: its parent folder and its last segment. Local paths come back
    absolute, so that a later ``chdir`` changes nothing. Raises ``UsageError`` if ``f`` names no object."""
    text = _text(f)
    if is_local(text):
        root, _, key = local_path(text).rpartition("/")
        root = root or "/"
    else:
        start = text.index("://") + 3
        folder, _, key = text[start:].rpartition("/")
        root = text[:start] + folder
        if not folder:
            key = ""
    if key in ("", ".", ".."):
        raise UsageError(f"{text!r} names a folder or bucket, not an object; add the name of the object")
    check_key(key)
    return root, key


def is_local(f: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bool:
    """Whether ``f`` is a path or a ``file://`` URL, for which ``local_path`` gives the path."""
    return _scheme(_text(f)) in ("", "file")


def local_path(f: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """The absolute path that a path or ``file://`` URL means. Symbolic links and ``..`` are left to the system."""
    text = _text(f)
    match = _FILE_URL.fullmatch(text)
    if match:
        if match["host"] not in (None, "", "localhost"):
            raise UsageError(f"{text!r} names the host {match['host']!r}; expected file:///path on this machine")
        text = os.fsdecode(unquote_to_bytes(os.fsencode(match["path"])))
    elif _scheme(text):
        raise UsageError(f"{text!r} is not a local path; expected a path or file:///path")
    if "\0" in text:
        raise UsageError(f"path {text!r} contains a NUL character; choose another name")
    if not os.path.isabs(text):
        try:
            text = os.path.join(os.getcwd(), text)
        except OSError as error:
            raise StorageError(
                f"finding {text!r}: the current folder is gone ({error}); use an absolute path"
            ) from error
    return text


def _scheme(text: str) -> str:
    match = _URL.match(text)
    return "file" if _FILE_URL.fullmatch(text) else match[1].lower() if match else ""


def _text(f: object) -> str:
    if not isinstance(f, (str, bytes, os.PathLike)):
        raise UsageError(f"expected a path or URL, got {type(f).__name__}")
    text = os.fsdecode(f)
    if not text:
        raise UsageError("the path is empty; name the object to write or read")
    if isinstance(f, os.PathLike) and _COLLAPSED_URL.match(text):
        raise UsageError(f"{text!r} is a URL that lost a slash in a path object; pass URLs as str")
    return text
