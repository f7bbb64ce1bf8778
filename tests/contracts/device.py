"""What every device promises: each kernel against a slow definition that is right by inspection.

Subclass ``DeviceContract``, give it a ``device`` fixture, and, if its arrays are not NumPy's, ``put`` and ``get``. Set
``block`` to the elements that its kernels take at a time, so that the edges are tested.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s4async.device.base import SAMPLE_RUN, SAMPLE_RUNS, Bytes, Device, sample_starts
from s4async.errors import UnsupportedError, UsageError
from s4async.format.planes import LAYOUTS, Layout

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
both_roundings = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])

FLOAT32 = np.array(
    [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF,
     0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], "<u4",
)  # fmt: skip
"""Both zeros, smallest and largest subnormals and normals, both infinities, quiet and signalling NaNs with payloads."""

ROUNDED_FLOATS = {"bfloat16": (127, 7), "float16": (15, 10)}  # exponent bias, fraction bits


def split_oracle(raw: bytes, layout: Layout) -> list[bytes]:
    """One element at a time, in plain integers, as FORMAT.md says it."""
    n, planes = layout.itemsize, [bytearray() for _ in range(layout.itemsize)]
    for at in range(0, len(raw), n):
        element = int.from_bytes(raw[at : at + n], "little")
        values = [(element >> 8 * i) & 0xFF for i in range(n)]
        if layout.fields:
            top = element >> (8 * n - 16)
            sign, exponent, fraction = top >> 15, (top >> 7) & 0xFF, top & 0x7F
            values = [exponent, sign << 7 | fraction, *values[: n - 2]]
        for plane, value in zip(planes, values, strict=True):
            plane.append(value)
    return list(map(bytes, planes))


def split_wide(raw: Bytes, layout: Layout) -> Bytes:
    """The same for many elements: 64-bit words, one expression a plane."""
    n = layout.itemsize
    words = np.zeros((raw.size // n, 8), np.uint8)
    words[:, :n] = raw.reshape(-1, n)
    elements = words.view("<u8").reshape(-1)
    planes = [(elements >> np.uint64(8 * i)) & np.uint64(0xFF) for i in range(n)]
    if layout.fields:
        top = elements >> np.uint64(8 * n - 16)
        exponent = (top >> np.uint64(7)) & np.uint64(0xFF)
        planes = [exponent, (top >> np.uint64(15) << np.uint64(7)) | (top & np.uint64(0x7F)), *planes[: n - 2]]
    return np.stack(planes).astype(np.uint8)


def value_of(pattern: int, dtype: str) -> Fraction:
    """The magnitude that a 16-bit pattern without sign stands for; infinity as the next power of two."""
    bias, bits = ROUNDED_FLOATS[dtype]
    exponent, fraction = pattern >> bits, Fraction(pattern & ((1 << bits) - 1), 1 << bits)
    return (1 + fraction) * Fraction(2) ** (exponent - bias) if exponent else fraction * Fraction(2) ** (1 - bias)


def rounding_oracle(word: int, dtype: str) -> int:
    """The nearest of all patterns by exact arithmetic, found by bisection; of two as near, the even one."""
    bits = ROUNDED_FLOATS[dtype][1]
    infinity = (0x8000 >> bits << bits) - (1 << bits)
    sign, magnitude = word >> 31 << 15, word & 0x7FFFFFFF
    if magnitude == 0x7F800000:
        return sign | infinity
    exponent, fraction = magnitude >> 23, Fraction(magnitude & 0x7FFFFF, 1 << 23)
    value = (fraction + (exponent > 0)) * Fraction(2) ** (max(exponent, 1) - 127)
    low, high = 0, infinity
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value_of(middle, dtype) <= value else (low, middle)
    below, above = value - value_of(low, dtype), value_of(high, dtype) - value
    nearest = low if below < above or (below == above and low % 2 == 0) else high
    return sign | nearest


def some_bytes(nbytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def shifted(data: Bytes, by: int) -> Bytes:
    """A copy that starts ``by`` bytes past an aligned address."""
    memory = np.zeros(data.size + by + 16, np.uint8)
    start = (-memory.ctypes.data) % 16 + by
    view = memory[start : start + data.size]
    view[:] = data
    return view


class DeviceContract:
    """Tests of one device."""

    block = 1 << 18

    @pytest.fixture
    def device(self) -> Device:
        raise NotImplementedError

    def put(self, data: Bytes) -> Bytes:
        """The array on the device, at an address as odd as that of ``data``."""
        return data

    def get(self, data: Bytes) -> Bytes:
        return data

    def split(self, device: Device, raw: Bytes, layout: Layout) -> Bytes:
        planes = self.put(np.full((layout.itemsize, raw.size // layout.itemsize), 0xA5, np.uint8))
        device.split(self.put(raw), layout, planes)
        return self.get(planes)

    def join(self, device: Device, planes: list[Bytes | int], layout: Layout, raw: Bytes) -> Bytes:
        """Join over ``raw``, which gives size and address and is full of other bytes."""
        raw[:] = 0xA5
        target = self.put(raw)
        device.join([p if isinstance(p, int) else self.put(p) for p in planes], layout, target)
        return self.get(target)

    # split and join

    @every_layout
    @pytest.mark.parametrize("count", [0, 1, 2, 3, 16, 257, 1000])
    def test_split_is_the_bit_layout(self, device: Device, layout: Layout, count: int) -> None:
        raw = some_bytes(count * layout.itemsize, count)
        expected = split_oracle(raw.tobytes(), layout)
        assert [plane.tobytes() for plane in self.split(device, raw, layout)] == expected
        assert [plane.tobytes() for plane in split_wide(raw, layout)] == expected

    @every_layout
    def test_all_patterns_of_the_top_16_bits(self, device: Device, layout: Layout) -> None:
        elements = some_bytes(65536 * layout.itemsize).reshape(65536, layout.itemsize)
        top = np.arange(65536, dtype="<u2").view(np.uint8).reshape(-1, 2)
        elements[:, -2:] = top[:, -layout.itemsize :]
        raw = elements.reshape(-1)
        planes = self.split(device, raw, layout)
        assert np.array_equal(planes, split_wide(raw, layout))
        assert np.array_equal(self.join(device, list(planes), layout, np.empty_like(raw)), raw)

    @pytest.mark.parametrize("layout_id", ["float:4", "float:8", "bytes:4", "bytes:8"])
    def test_special_values_keep_every_bit(self, device: Device, layout_id: str) -> None:
        layout = LAYOUTS[layout_id]
        words = FLOAT32 if layout.itemsize == 4 else FLOAT32.astype("<u8") << np.uint64(32) | np.uint64(0x1234567)
        raw = words.view(np.uint8)
        planes = self.split(device, raw, layout)
        assert np.array_equal(planes, split_wide(raw, layout))
        assert np.array_equal(self.join(device, list(planes), layout, np.empty_like(raw)), raw)

    @every_layout
    @pytest.mark.parametrize("blocks", [1, 3])
    @pytest.mark.parametrize("extra", [-1, 0, 1])
    def test_edges_of_blocks(self, device: Device, layout: Layout, blocks: int, extra: int) -> None:
        raw = some_bytes((blocks * self.block + extra) * layout.itemsize)
        planes = self.split(device, raw, layout)
        assert np.array_equal(planes, split_wide(raw, layout))
        assert np.array_equal(self.join(device, list(planes), layout, np.empty_like(raw)), raw)

    @every_layout
    @pytest.mark.parametrize("by", [1, 2, 3, 4, 7])
    def test_any_address(self, device: Device, layout: Layout, by: int) -> None:
        raw = some_bytes((self.block + 5) * layout.itemsize)
        planes = self.split(device, shifted(raw, by), layout)
        assert np.array_equal(planes, split_wide(raw, layout))
        apart: list[Bytes | int] = [shifted(plane, by + i) for i, plane in enumerate(planes)]
        assert np.array_equal(self.join(device, apart, layout, shifted(raw, by)), raw)

    @every_layout
    def test_constant_planes(self, device: Device, layout: Layout) -> None:
        planes = split_wide(some_bytes(99 * layout.itemsize), layout)
        for chosen in itertools.product([False, True], repeat=layout.itemsize):
            for value in (0, 1, 0x7F, 0x80, 0xFF):
                mixed: list[Bytes | int] = [value if c else p for c, p in zip(chosen, planes, strict=True)]
                full: list[Bytes | int] = [np.full(99, p, np.uint8) if isinstance(p, int) else p for p in mixed]
                raw = np.empty(99 * layout.itemsize, np.uint8)
                expected = self.join(device, full, layout, raw.copy())
                assert np.array_equal(self.join(device, mixed, layout, raw), expected)

    @every_layout
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])  # a device keeps nothing
    @given(data=st.data())
    def test_round_trip(self, device: Device, layout: Layout, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, 300))
        raw = np.frombuffer(data.draw(st.binary(min_size=count * layout.itemsize, max_size=count * layout.itemsize)),
                            np.uint8)  # fmt: skip
        planes = self.split(device, raw, layout)
        assert np.array_equal(planes, split_wide(raw, layout))
        assert np.array_equal(self.join(device, list(planes), layout, np.empty_like(raw)), raw)

    @every_layout
    def test_inputs_are_only_read(self, device: Device, layout: Layout) -> None:
        raw = some_bytes(4096 * layout.itemsize)
        kept = raw.copy()
        raw.flags.writeable = False
        planes = self.split(device, raw, layout)
        saved = planes.copy()
        planes.flags.writeable = False
        self.join(device, list(planes), layout, np.empty_like(raw))
        assert np.array_equal(raw, kept)
        assert np.array_equal(planes, saved)

    def test_sizes_that_do_not_fit_are_refused(self, device: Device) -> None:
        layout = LAYOUTS["float:4"]
        raw, planes = self.put(np.zeros(16, np.uint8)), self.put(np.zeros((4, 4), np.uint8))
        plane = self.put(np.zeros(4, np.uint8))
        with pytest.raises(UsageError):
            device.split(raw[:15], layout, planes)
        with pytest.raises(UsageError):
            device.split(raw, layout, planes[:3])
        with pytest.raises(UsageError):
            device.split(raw, layout, planes[:, :3])
        wrong: list[list[Bytes | int]] = [
            [plane] * 3,
            [plane] * 5,
            [plane, plane, plane, plane[:3]],
            [plane, plane, plane, 256],
            [-1] * 4,
        ]
        for planes_given in wrong:
            with pytest.raises(UsageError):
                device.join(planes_given, layout, raw)
        assert not self.get(raw).any()

    def test_threads_do_not_meet(self, device: Device) -> None:
        """Scratch memory belongs to one thread."""

        def work(seed: int) -> bool:
            layout = LAYOUTS["float:4" if seed % 2 else "float:2"]
            raw = some_bytes(self.block + 4 * seed, seed)
            right = True
            for _ in range(5):
                planes = self.split(device, raw, layout)
                right &= np.array_equal(planes, split_wide(raw, layout))
                right &= np.array_equal(self.join(device, list(planes), layout, np.empty_like(raw)), raw)
            return right

        with ThreadPoolExecutor(4) as crew:
            assert all(crew.map(work, range(8)))

    # sample, constant, checksum

    @every_layout
    @pytest.mark.parametrize("count", [0, 1, 100, SAMPLE_RUNS * SAMPLE_RUN])
    def test_a_small_sample_is_the_whole(self, device: Device, layout: Layout, count: int) -> None:
        raw: Bytes = some_bytes(count * layout.itemsize) // np.uint8(4)
        expected = [np.bincount(plane, minlength=256) for plane in split_wide(raw, layout)]
        assert np.array_equal(device.sample(self.put(raw), layout), expected)

    @every_layout
    @pytest.mark.parametrize("count", [SAMPLE_RUNS * SAMPLE_RUN + 1, 100_000])
    def test_a_large_sample_is_the_runs(self, device: Device, layout: Layout, count: int) -> None:
        raw = some_bytes(count * layout.itemsize)
        elements = raw.reshape(count, layout.itemsize)
        runs = np.concatenate([elements[start : start + SAMPLE_RUN] for start in sample_starts(count)])
        expected = [np.bincount(plane, minlength=256) for plane in split_wide(runs.reshape(-1), layout)]
        counts = device.sample(self.put(shifted(raw, 1)), layout)
        assert counts.dtype == np.int64
        assert np.array_equal(counts, expected)

    def test_constant(self, device: Device) -> None:
        assert device.constant(self.put(np.zeros(0, np.uint8))) is None
        for size in (1, 2, 1000, self.block, 2 * self.block + 1):
            for value in (0, 7, 255):
                plane = np.full(size, value, np.uint8)
                found = device.constant(self.put(plane))
                assert found == value
                assert type(found) is int
            for at in {0, size // 2, size - 1} if size > 1 else ():
                plane = np.full(size, 9, np.uint8)
                plane[at] = 8
                assert device.constant(self.put(plane)) is None

    def test_checksum_is_crc32c(self, device: Device) -> None:
        assert device.checksum(self.put(np.frombuffer(b"123456789", np.uint8))) == 0xE3069283  # RFC 3720's check value
        assert device.checksum(self.put(np.zeros(32, np.uint8))) == 0x8A9136AA  # and its first test vector
        assert device.checksum(self.put(np.zeros(0, np.uint8))) == 0

    def test_checksum_continues(self, device: Device) -> None:
        data = self.put(some_bytes(100_003))
        for at in (0, 1, 5000, 100_003):
            assert device.checksum(data[at:], device.checksum(data[:at])) == device.checksum(data)

    # roundings

    def round_into(self, device: Device, high: npt.NDArray[np.uint32], dtype: str, by: int = 0) -> Bytes:
        low = self.put(shifted(np.full(high.size * 2, 0xA5, np.uint8), by))
        device.round_into(self.put(shifted(high.view(np.uint8), by)), dtype, low)
        return self.get(low)

    @both_roundings
    def test_rounding_by_exact_arithmetic(self, device: Device, dtype: str) -> None:
        """Halfway between neighbours, just beside it, on the values; the edges of the range; both signs."""
        bits = 13 if dtype == "float16" else 16
        exact = torch.arange(0, 0x7C00 if dtype == "float16" else 0x7F80, 97, dtype=torch.int16)
        words = exact.view(getattr(torch, dtype)).float().numpy().view("<u4").astype(np.int64)
        edges = [0x477FDFFF, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x477FFFFF, 0x47800000, 0x38800000, 0x387FFFFF,
                 0x387FE000, 0x387FF000, 0x33000000, 0x33000001, 0x32FFFFFF, 0x33800000, 0x7F7F7FFF, 0x7F7F8000,
                 0x7F7FFFFF, 0x7F800000, 0x00000001, 0x00007FFF, 0x00008000, 0x00008001, 0x00018000]  # fmt: skip
        offsets = np.array([-1, 0, 1, (1 << bits - 1) - 1, 1 << bits - 1, (1 << bits - 1) + 1])
        all_words = np.unique(np.concatenate([(words[:, None] + offsets).reshape(-1), edges]))
        all_words = all_words[(all_words >= 0) & (all_words <= 0x7F800000)]
        high = np.concatenate([all_words, all_words | 0x80000000]).astype("<u4")
        expected = np.array([rounding_oracle(int(word), dtype) for word in high], "<u2")
        assert np.array_equal(self.round_into(device, high, dtype).view("<u2"), expected)

    @both_roundings
    def test_rounding_as_torch_does(self, device: Device, dtype: str) -> None:
        """All 65,536 patterns widened, their neighbourhood, and a million random words; at odd addresses too."""
        patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype)).float()
        near = patterns.numpy().view("<u4")[:, None] + np.array([0, 1, -1, 0xFFF, 0x1000, 0x7FFF, 0x8000]).astype("<u4")
        high = np.concatenate([near.reshape(-1), some_bytes(4_000_000).view("<u4")])
        high = high[~np.isnan(high.view(np.float32))]
        expected = torch.from_numpy(high.view(np.float32)).to(getattr(torch, dtype)).view(torch.uint8).numpy()
        for by in (0, 3):
            assert np.array_equal(self.round_into(device, high, dtype, by), expected)
        assert device.is_rounding(self.put(expected), self.put(high.view(np.uint8)), dtype)
        assert device.is_rounding(self.put(shifted(expected, 1)), self.put(shifted(high.view(np.uint8), 3)), dtype)

    @both_roundings
    def test_one_other_bit_is_no_rounding(self, device: Device, dtype: str) -> None:
        high = np.random.default_rng(1).standard_normal(self.block * 2 + 3, np.float32).view("<u4")
        low = self.round_into(device, high, dtype)
        for at in (0, low.size // 2, low.size - 2, low.size - 1):
            other = low.copy()
            other[at] ^= 1
            assert not device.is_rounding(self.put(other), self.put(high.view(np.uint8)), dtype)

    @both_roundings
    def test_no_rounding_of_nans(self, device: Device, dtype: str) -> None:
        """Their payloads do not survive; infinities and zeros of both signs do."""
        for word in (0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF):
            high = np.zeros(1000, "<u4")
            high[600] = word
            low = torch.from_numpy(high.view(np.float32)).to(getattr(torch, dtype)).view(torch.uint8).numpy()
            assert not device.is_rounding(self.put(low), self.put(high.view(np.uint8)), dtype)
        high = np.array([0x7F800000, 0xFF800000, 0, 0x80000000], "<u4")
        assert device.is_rounding(self.round_into(device, high, dtype), self.put(high.view(np.uint8)), dtype)

    def test_nothing_is_the_rounding_of_nothing(self, device: Device) -> None:
        empty = self.put(np.zeros(0, np.uint8))
        assert device.is_rounding(empty, empty, "bfloat16")
        device.round_into(empty, "float16", empty)

    def test_roundings_that_do_not_fit_are_refused(self, device: Device) -> None:
        high, low = self.put(np.zeros(16, np.uint8)), self.put(np.zeros(8, np.uint8))
        for wrong in (low[:6], low[:7], high):
            with pytest.raises(UsageError):
                device.is_rounding(wrong, high, "bfloat16")
            with pytest.raises(UsageError):
                device.round_into(high, "bfloat16", wrong)
        with pytest.raises(UnsupportedError, match="float8_e5m2.*bfloat16, float16"):
            device.is_rounding(low, high, "float8_e5m2")
