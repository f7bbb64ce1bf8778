"""Device: where bytes live and what can be done to them there. The protocol of the seam.

A device owns memory and kernels. ``cpu`` works on NumPy ``uint8`` arrays and is the oracle for every other device.
All functions are synchronous; a device with streams enqueues and never waits. ``raw`` is a one-dimensional ``uint8``
array of ``count * layout.itemsize`` bytes; a *plane* is ``count`` bytes (``format.planes`` has the bit layouts).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from s4async.format.planes import Layout

__all__ = ["Bytes", "Device"]

Bytes = npt.NDArray[np.uint8]


class Device(Protocol):
    """Memory and kernels of one kind of device."""

    kind: str

    def sample(self, raw: Bytes, layout: Layout) -> npt.NDArray[np.int64]:
        """Histograms of a fixed sample of the planes of ``raw``: shape ``(itemsize, 256)``, the whole of it if small.
        Deterministic: equal input gives equal counts."""
        ...

    def split(self, raw: Bytes, layout: Layout, planes: Bytes) -> None:
        """Fill ``planes`` (shape ``(itemsize, count)``) from ``raw``."""
        ...

    def join(self, planes: list[Bytes | int], layout: Layout, raw: Bytes) -> None:
        """Undo ``split`` into ``raw``. A plane given as an ``int`` is constant."""
        ...

    def constant(self, plane: Bytes) -> int | None:
        """The value of every byte of ``plane``, or ``None`` if they differ. ``None`` for an empty plane."""
        ...

    def checksum(self, data: Bytes, crc: int = 0) -> int:
        """CRC32C (Castagnoli) of ``data``, continued from ``crc``."""
        ...

    def is_rounding(self, low: Bytes, high: Bytes, dtype: str) -> bool:
        """Whether the elements of ``low`` (``dtype``: ``bfloat16`` or ``float16``) are bit for bit the roundings (to
        nearest, ties to even) of the float32 elements of ``high``. ``False`` where ``high`` holds a NaN."""
        ...

    def round_into(self, high: Bytes, dtype: str, low: Bytes) -> None:
        """Fill ``low`` with those roundings; defined wherever ``is_rounding`` was true."""
        ...
