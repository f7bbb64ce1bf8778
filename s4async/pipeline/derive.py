"""Which low-precision regions look like roundings of a float32 region: a model beside its master weights.

Only a sample is compared here; ``encode`` checks every element of every frame and codes the frame where one differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from s4async.device.base import Bytes, Device
from s4async.frame import Extent, Region
from s4async.pipeline.plan import rounding_candidates
from s4async.pipeline.snapshot import Raw

__all__ = ["find_sources"]

_SAMPLE = 64  # elements, evenly spread


def find_sources(regions: Sequence[Region], raw: Raw, device: Device) -> dict[int, int]:
    """low region -> float32 region whose sampled elements round to it. Constant samples are left to the codecs."""
    found: dict[int, int] = {}
    rounded: dict[tuple[int, str], bytes] = {}
    for low, highs in rounding_candidates(regions).items():
        sample = _sample(raw, low, regions[low].nbytes, np.uint16).tobytes()
        if sample == sample[:2] * (len(sample) // 2):
            continue
        for high in highs:
            key = (high, regions[low].dtype)
            if key not in rounded:
                rounded[key] = _rounded(_sample(raw, high, regions[high].nbytes, np.uint32), regions[low].dtype, device)
            if rounded[key] == sample:
                found[low] = high
                break
    return found


def _sample(raw: Raw, region: int, nbytes: int, kind: type[np.uint16] | type[np.uint32]) -> np.ndarray:
    elements = raw.extent(Extent(region, 0, nbytes)).view(kind)
    return elements[np.linspace(0, elements.size - 1, min(_SAMPLE, elements.size)).astype(np.int64)]


def _rounded(sample: np.ndarray, dtype: str, device: Device) -> bytes:
    low: Bytes = np.empty(2 * sample.size, np.uint8)
    device.round_into(sample.view(np.uint8), dtype, low)
    return low.tobytes()
