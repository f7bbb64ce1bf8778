"""Which planes to code: a pure decision from the histograms of a sample. Touches no data.

Responsible for never trying what cannot pay, and never missing what can: a plane is *constant* (to be verified on the
whole of it), *coded*, or *raw*. Must not know frames or devices. Invariant: equal histograms give equal choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from s4async.codecs.base import ZSTD
from s4async.format.planes import Layout

__all__ = ["Coded", "Constant", "PlaneChoice", "Raw", "all_raw", "choose", "entropy_bits"]

CODED_SHARE = 0.975
"""Code a plane if its entropy is at most this share of 8 bits. Measured with zstd: at 7.8 bits Huffman codes still save
2 % of the plane, from 7.85 on zstd gives up after having spent the time; a plane of 8 bits would cost a tenth of it."""

MIN_SAVING_BYTES = 64  # what a frame header, a Huffman table and a record of sizes take


@dataclass(frozen=True, slots=True)
class Raw:
    """Store the plane as it is. ``bits``: its estimated entropy per byte."""

    bits: float


@dataclass(frozen=True, slots=True)
class Coded:
    """Code the plane with this codec."""

    codec: str
    bits: float


@dataclass(frozen=True, slots=True)
class Constant:
    """All bytes of the sample are ``value``. If the plane turns out to have others, take ``otherwise``."""

    value: int
    otherwise: Coded | Raw


PlaneChoice = Constant | Coded | Raw


def choose(
    histograms: npt.NDArray[np.int64], layout: Layout, count: int, *, coder: str = ZSTD
) -> tuple[PlaneChoice, ...]:
    """One choice per plane of ``layout``. ``histograms``: ``(itemsize, 256)`` counts of a sample of planes that are
    ``count`` bytes long. ``coder``: the id of the codec for planes that pay. All ``Raw``: do not split."""
    return tuple(_choice(histograms[i], count, coder) for i in range(len(layout.planes)))


def all_raw(choices: Sequence[PlaneChoice]) -> bool:
    """Whether splitting would be in vain."""
    return all(isinstance(choice, Raw) for choice in choices)


def _choice(histogram: npt.NDArray[np.int64], count: int, coder: str) -> PlaneChoice:
    bits = entropy_bits(histogram)
    pays = bits <= 8 * CODED_SHARE and count * (8 - bits) / 8 >= MIN_SAVING_BYTES
    other = Coded(coder, bits) if pays else Raw(bits)
    if np.count_nonzero(histogram) == 1:
        return Constant(int(histogram.argmax()), other)
    return other


def entropy_bits(histogram: npt.NDArray[np.int64], *, corrected: bool = True) -> float:
    """Entropy per symbol of what the sample was taken from: the sample's own, plus the bias of small samples (Miller
    and Madow: half a nat for every symbol but one, divided by the sample's size). 0 for an empty sample.
    ``corrected=False``: the sample's own, where it is the whole."""
    counts = histogram[histogram > 0]
    total = int(counts.sum())
    if total == 0:
        return 0.0
    own = math.log2(total) - float(counts @ np.log2(counts)) / total
    return own + corrected * (counts.size - 1) / (2 * math.log(2) * total)
