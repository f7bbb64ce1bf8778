"""Device: where bytes live and what can be done to them there. The protocol of the seam.

A device owns memory and kernels. ``cpu`` works on NumPy ``uint8`` arrays and is the oracle for every other device.
All functions are synchronous; a device with streams enqueues and never waits. ``raw`` is a one-dimensional ``uint8``
array of ``count * layout.itemsize`` bytes; a *plane* is ``count`` bytes (``format.planes`` has the bit layouts).
Data is little endian, wherever it lives. A size that does not fit is a ``UsageError`` before anything is written.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from s4async.format.planes import Layout

__all__ = ["SAMPLE_RUN", "SAMPLE_RUNS", "Bytes", "Device", "sample_starts"]

Bytes = npt.NDArray[np.uint8]

SAMPLE_RUNS, SAMPLE_RUN = 16, 256
"""A sample is 16 runs of 256 elements: 4 Ki bytes tell 7.8 bits from 7.9 and cost 5 us a plane."""


def sample_starts(count: int) -> range:
    """First elements of the runs of ``SAMPLE_RUN`` elements that stand for ``count`` elements: evenly spread, first
    and last element included. Every device samples these, so that all of them decide alike. For a ``count`` of at
    most ``SAMPLE_RUNS * SAMPLE_RUN`` there are no runs: the sample is the whole."""
    if count <= SAMPLE_RUNS * SAMPLE_RUN:
        return range(0)
    step = (count - SAMPLE_RUN) // (SAMPLE_RUNS - 1)
    last = count - SAMPLE_RUN
    return range(last - (SAMPLE_RUNS - 1) * step, last + 1, step)


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
