"""What is coded and what is not: thresholds, bias of samples, kinds of planes that trained states have."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4async.codecs.policy import Coded, Constant, Raw, all_raw, choose, entropy_bits
from s4async.device.cpu import CpuDevice
from s4async.format.planes import LAYOUTS, WHOLE

Histogram = npt.NDArray[np.int64]
MANY = 1 << 20


def only(histogram: Histogram, count: int = MANY) -> Constant | Coded | Raw:
    return choose(histogram.reshape(1, 256), WHOLE, count)[0]


def flat(symbols: int, total: int = 1 << 22) -> Histogram:
    histogram = np.zeros(256, np.int64)
    histogram[:symbols] = total // symbols
    return histogram


@pytest.mark.parametrize(("symbols", "expected"), [(256, Raw), (240, Raw), (128, Coded), (222, Coded), (2, Coded)])
def test_coded_up_to_7_8_bits(symbols: int, expected: type) -> None:
    choice = only(flat(symbols))
    assert isinstance(choice, expected)
    assert not isinstance(choice, Constant)
    assert choice.bits == pytest.approx(math.log2(symbols), abs=0.001)


def test_one_symbol_is_a_constant_to_be_verified() -> None:
    histogram = np.zeros(256, np.int64)
    histogram[9] = 4096
    assert only(histogram) == Constant(9, Coded("zstd", 0.0))


def test_a_nearly_constant_plane_is_coded() -> None:
    histogram = np.zeros(256, np.int64)
    histogram[[0, 1]] = 4095, 1
    choice = only(histogram)
    assert isinstance(choice, Coded)
    assert 0 < choice.bits < 0.01


@pytest.mark.parametrize("count", [0, 1, 64])
def test_what_cannot_repay_its_record_is_raw(count: int) -> None:
    assert isinstance(only(flat(16, 64), count), Raw)
    assert isinstance(only(flat(16, 64), 1000), Coded)


def test_an_empty_sample_is_raw() -> None:
    assert only(np.zeros(256, np.int64), 0) == Raw(0.0)


def test_the_coder_is_the_callers() -> None:
    (choice,) = choose(flat(4).reshape(1, 256), WHOLE, MANY, coder="rans")
    assert isinstance(choice, Coded)
    assert choice.codec == "rans"


def test_all_raw() -> None:
    raw, coded, constant = Raw(8.0), Coded("zstd", 1.0), Constant(0, Raw(0.0))
    assert all_raw(())
    assert all_raw([raw, raw])
    assert not all_raw([raw, coded])
    assert not all_raw([constant, raw])


def test_small_samples_of_noise_do_not_look_compressible() -> None:
    """4,096 bytes of noise show 7.955 bits; the bias is added back."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        histogram = np.bincount(rng.integers(0, 256, 4096), minlength=256).astype(np.int64)
        assert entropy_bits(histogram) == pytest.approx(8, abs=0.02)
        assert entropy_bits(histogram, corrected=False) < 7.97
        assert isinstance(only(histogram), Raw)


@given(counts=st.lists(st.integers(0, 10_000), min_size=256, max_size=256))
def test_entropy_is_that_of_the_definition(counts: list[int]) -> None:
    total = sum(counts)
    expected = -sum(c / total * math.log2(c / total) for c in counts if c) if total else 0.0
    histogram = np.array(counts, np.int64)
    assert entropy_bits(histogram, corrected=False) == pytest.approx(expected, abs=1e-9)
    assert entropy_bits(histogram) >= entropy_bits(histogram, corrected=False)


def kinds(values: npt.NDArray[np.float32], layout: str) -> list[str]:
    raw = np.ascontiguousarray(values).view(np.uint8)
    histograms = CpuDevice().sample(raw, LAYOUTS[layout])
    count = raw.size // LAYOUTS[layout].itemsize
    return [type(choice).__name__ for choice in choose(histograms, LAYOUTS[layout], count)]


def weights() -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).normal(0, 0.02, 1 << 18).astype(np.float32)


def test_planes_of_weights() -> None:
    assert kinds(weights(), "float:4") == ["Coded", "Raw", "Raw", "Raw"]


def test_planes_of_second_moments() -> None:
    """No sign: the plane of sign and fraction has 7 bits at most."""
    assert kinds(weights() ** 2, "float:4") == ["Coded", "Coded", "Raw", "Raw"]


def test_planes_of_widened_weights() -> None:
    """float32 that came from bfloat16: the lower half is zero."""
    words = weights().view("<u4") & np.uint32(0xFFFF0000)
    assert kinds(words.view(np.float32), "float:4") == ["Coded", "Raw", "Constant", "Constant"]


def test_planes_of_coarse_weights() -> None:
    """float32 with a lowest byte of few values, as some published weights have it."""
    words = weights().view("<u4") & np.uint32(0xFFFFFF80)
    assert kinds(words.view(np.float32), "float:4") == ["Coded", "Raw", "Coded", "Raw"]


def test_planes_of_indices() -> None:
    indices = np.random.default_rng(0).integers(0, 30_000, 1 << 16)
    assert kinds(indices.view(np.float32), "bytes:8") == ["Raw", "Coded"] + ["Constant"] * 6
