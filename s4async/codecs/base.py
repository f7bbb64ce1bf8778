"""Codec: bytes of one plane chunk -> fewer bytes, and back. The protocol and the registry.

A codec never sees a layout, a frame or a file. Two classes may share an ``id`` if and only if each decodes what the
other encodes. Codecs are looked up by ``(id, device kind)``; the registry holds import strings, so that nothing is
loaded before it is needed. Planes that are constant or stored as they are have no codec: ``constant`` and ``raw``
(``format.manifest``) are ids of blobs, and reserved here.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Protocol

import numpy as np
import numpy.typing as npt

from s4async.device.base import Bytes
from s4async.errors import UnsupportedError, UsageError
from s4async.format.manifest import CONSTANT, RAW

__all__ = ["ZSTD", "Codec", "find", "readable", "register"]

ZSTD = "zstd"


class Codec(Protocol):
    """Stateless from the caller's view, safe to use from several threads."""

    id: str

    def params(self, histogram: npt.NDArray[np.int64]) -> bytes:
        """What all chunks of one plane share and the frame's record keeps, e.g. a frequency table. ``histogram``:
        256 counts of a sample of the plane. Most codecs need nothing: ``b""``."""
        ...

    def encode(self, chunk: Bytes, params: bytes) -> bytes | memoryview:
        """The chunk, encoded; whatever its size (the caller stores the chunk raw if this is not smaller).
        Deterministic: equal input gives equal bytes."""
        ...

    def decode(self, data: Bytes, params: bytes, chunk: Bytes) -> None:
        """Fill ``chunk`` exactly. Raises ``CorruptionError`` if ``data`` does not decode to ``chunk.size`` bytes;
        never allocates more than that, whatever ``data`` claims."""
        ...


_classes: dict[tuple[str, str], str] = {(ZSTD, "cpu"): "s4async.codecs.zstd:ZstdCodec"}
_codecs: dict[tuple[str, str], Codec] = {}  # one of each, made on first use
_lock = threading.Lock()


def register(id: str, kind: str, target: str) -> None:
    """Make ``target`` (``"module:Class"``, no arguments) the codec ``id`` on devices of this ``kind``. Raises
    ``UsageError`` if the name is reserved or taken by another class: stored data would change its meaning."""
    with _lock:
        if id in (RAW, CONSTANT) or _classes.get((id, kind), target) != target:
            taken = _classes.get((id, kind), "blobs without a codec")
            raise UsageError(f"codec {id!r} for {kind!r} as {target}: the id is taken by {taken}; choose another id")
        _classes[id, kind] = target


def find(id: str, kind: str) -> Codec:
    """The codec ``id`` for devices of this ``kind``. Raises ``UnsupportedError`` if this build has none, or not the
    library that it needs."""
    codec = _codecs.get((id, kind))
    if codec is not None:
        return codec
    with _lock:
        if (id, kind) not in _classes:
            known = ", ".join(sorted(f"{name} ({on})" for name, on in _classes))
            raise UnsupportedError(f"codec {id!r} is unknown to this build on {kind!r} devices; it has {known}")
        if (id, kind) not in _codecs:
            module, _, name = _classes[id, kind].partition(":")
            try:
                _codecs[id, kind] = getattr(import_module(module), name)()
            except ImportError as error:
                raise UnsupportedError(f"codec {id!r} on {kind!r} devices needs a missing library: {error}") from error
        return _codecs[id, kind]


def readable(id: str, kind: str) -> bool:
    """Whether this build names a codec ``id`` for devices of this ``kind``; loads nothing."""
    with _lock:
        return (id, kind) in _classes
