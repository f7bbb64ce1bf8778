"""Codec: bytes of one plane chunk -> fewer bytes, and back. The protocol and the registry.

A codec never sees a layout, a frame or a file. Two classes may share an ``id`` if and only if each decodes what the
other encodes. Codecs are looked up by ``(id, device kind)``; the registry holds import strings, so that nothing is
loaded before it is needed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from s4async.device.base import Bytes

__all__ = ["Codec"]


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
