"""Aliasing: what shares a region, what is stored, and that ties survive exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from s4async.format import planes
from s4async.state import Source, capture
from s4async.state.dtypes import DTYPES
from tests.state.playback import assert_same, bits, regions_of, round_trip, stored


def _sources(state: object) -> tuple[Source, ...]:
    return capture(state).sources


def _same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_a_dense_tensor_is_one_live_run_of_bytes() -> None:
    for tensor in (torch.randn(3, 4), torch.randn(3, 4).t(), torch.randn(8)[2:5], torch.tensor(1.0)):
        (source,) = _sources({"w": tensor})
        assert source.tensor.dtype == torch.uint8 and source.tensor.dim() == 1
        assert source.tensor.data_ptr() == tensor.data_ptr()
        assert (source.region.name, source.region.dtype, source.region.location) == ("w", "float32", "cpu")


def test_regions_follow_the_order_of_the_state() -> None:
    big = torch.arange(10.0)
    state = {"z": big[5:], "a": torch.ones(1), "e": torch.empty(0), "b": [big[:5], big[7:]], "t": "x" * 2000}
    assert [region.name for region in regions_of(capture(state))] == ["z", "a", "e", "b/0", "t"]
    assert [region.nbytes for region in regions_of(capture(state))] == [20, 4, 0, 20, 2000]


def test_tied_tensors_share_one_region() -> None:
    w = torch.nn.Parameter(torch.randn(100, 100))
    state = {"embed": w, "head": w, "row": w.data[2], "block": w.data[3:5, :], "column": w.data[:, 7], "t": w.t()}
    (source,) = _sources(state)
    assert source.region.nbytes == w.numel() * 4
    built = round_trip(state)
    built["embed"].data[2].fill_(9.0)
    built["column"].fill_(5.0)
    assert built["row"][7] == 5 and built["row"][8] == 9 and built["t"][7, 2] == 5
    assert torch.equal(w.data[2], state["row"])  # the caller's tensors were not touched


def test_views_of_other_dtypes_tie() -> None:
    x = torch.randn(4, 6)
    state = {"bytes": x.view(torch.uint8), "x": x, "row": x.view(torch.int16)[1]}
    (source,) = _sources(state)
    assert source.region.dtype in ("uint8", "float32")
    built = round_trip(state)
    assert_same(state, built)
    built["bytes"].zero_()
    assert not built["x"].any() and not built["row"].any()


def test_the_largest_leaf_names_the_dtype() -> None:
    x = torch.randn(4, 6)
    assert _sources({"a": x.view(torch.uint8)[0, :4], "b": x})[0].region.dtype == "float32"


def test_real_and_imaginary_parts_tie() -> None:
    z = torch.randn(5, dtype=torch.complex64)
    state = {"z": z, "re": z.real, "im": z.imag, "conj": z.conj()}
    assert len(_sources(state)) == 1
    built = round_trip(state)
    built["im"].fill_(3)
    assert (built["z"].imag == 3).all() and (built["conj"].imag == -3).all()


def test_disjoint_views_of_one_buffer_are_apart() -> None:
    flat = torch.randn(1000)
    state = {str(i): flat[i * 10 : i * 10 + 10] for i in range(100)}
    assert [source.region.nbytes for source in _sources(state)] == [40] * 100
    assert_same(state, round_trip(state))


def test_column_slices_that_cover_a_matrix_are_one_run() -> None:
    matrix = torch.randn(50, 9)
    state = {"q": matrix[:, :4], "k": matrix[:, 4:7], "v": matrix[:, 7:]}
    (source,) = _sources(state)
    assert source.tensor.data_ptr() == matrix.data_ptr() and source.region.nbytes == 50 * 9 * 4
    built = round_trip(state)
    assert built["q"].stride() == (9, 1) and _same_place(built["q"], built["v"])


def test_column_slices_with_a_gap_are_compact() -> None:
    matrix = torch.randn(50, 9)
    state = {"q": matrix[:, :4], "v": matrix[:, 7:]}
    assert [source.region.nbytes for source in _sources(state)] == [50 * 4 * 4, 50 * 2 * 4]
    assert_same(state, round_trip(state))


def test_identical_views_with_holes_share_a_compact_region() -> None:
    x = torch.arange(40.0)
    state = {"a": x[::2], "b": x[::2], "flat": x.view(-1)[::2]}
    (source,) = _sources(state)
    assert source.region.nbytes == 80
    built = round_trip(state)
    built["a"][3] = -1
    assert built["b"][3] == built["flat"][3] == -1


def test_overlapping_views_with_few_holes_keep_their_tie_and_leak_nothing() -> None:
    x = torch.arange(1.0, 61.0).reshape(6, 10)
    state = {"left": x[:, :7], "right": x[:, 5:8]}
    (source,) = _sources(state)
    assert source.region.nbytes == 58 * 4  # from the first to the last element
    raw = torch.empty(0).set_(stored(source))
    assert raw[8:11].tolist() == [0, 0, 11]
    built = round_trip(state)
    assert_same(state, built)
    built["left"][0, 6] = -5
    assert built["right"][0, 1] == -5
    assert x[0, 8] == 9  # the live tensor keeps what the region does not show


def test_sparse_views_never_cost_their_holes() -> None:
    big = torch.randn(1_000_000)
    state = {"head": big[:10], "step": big[::100_000], "other": big[::50_000]}
    assert sum(source.region.nbytes for source in _sources(state)) < 1000
    assert_same(state, round_trip(state))


def test_a_sparse_view_ties_to_what_fills_its_holes() -> None:
    big = torch.randn(1000)
    state = {"step": big[::100], "big": big}
    assert len(_sources(state)) == 1
    built = round_trip(state)
    built["big"].zero_()
    assert not built["step"].any()


def test_a_view_in_the_middle_of_an_element() -> None:
    raw = torch.arange(1, 65, dtype=torch.uint8)
    state = {"bytes": raw[1:20], "floats": raw[8:40].view(torch.float64), "half": raw[18:22].view(torch.int16)}
    (source,) = _sources(state)
    assert stored(source).tolist()[:3] == [0, 2, 3]  # the byte before the first view is hidden
    built = round_trip(state)
    assert_same(state, built)
    built["bytes"][7] ^= 255
    assert bits(built["floats"]) != bits(state["floats"])


def test_one_buffer_through_two_storages() -> None:
    array = np.arange(100.0)
    state = {"all": torch.from_numpy(array), "head": torch.from_numpy(array[:10]), "array": array}
    (source,) = _sources(state)
    assert source.region.nbytes == 800 and source.region.dtype == "float64"
    assert_same({**state, "array": array.copy()}, round_trip(state))
    later = {"all": torch.from_numpy(array), "tail": torch.from_numpy(array[50:])}  # another address: stored apart
    assert len(_sources(later)) == 2
    assert_same(later, round_trip(later))


def test_region_dtypes_are_those_with_planes() -> None:
    laid_out = planes.DTYPES
    assert {row.region for row in DTYPES.values()} <= set(laid_out)
    plain = [name for name in laid_out if not name.startswith("q")]
    assert all(DTYPES[name].region == name and DTYPES[name].itemsize == laid_out[name].itemsize for name in plain)


@st.composite
def _views(draw: st.DrawFn) -> list[torch.Tensor]:
    """Views of one buffer: any offsets, strides (0 included), dtypes."""
    made = []
    for _ in range(draw(st.integers(1, 5))):
        dtype = draw(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.complex64, torch.complex128]))
        base = _BUFFER.view(dtype)
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        strides = [draw(st.integers(0, 7)) for _ in shape]
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n > 1) if 0 not in shape else 0
        start = draw(st.integers(0, max(0, base.numel() - reach - 1)))
        if start + reach < base.numel():
            made.append(base.as_strided(shape, strides, start))
    return made


_BUFFER = torch.arange(1, 241, dtype=torch.uint8).repeat(4)[: 16 * 40].clone()


@settings(max_examples=300)
@given(_views())
def test_any_views_of_one_buffer(views: list[torch.Tensor]) -> None:
    """Values are exact, nothing uncovered is stored, dense views keep strides, and covered ties are ties."""
    before = _BUFFER.clone()
    state: dict[str, Any] = {str(i): view for i, view in enumerate(views)}
    sources = _sources(state)
    built = round_trip(state)
    assert torch.equal(before, _BUFFER)
    seen = set()
    for i, view in enumerate(views):
        other = built[str(i)]
        assert bits(view) == bits(other) and view.dtype == other.dtype and view.shape == other.shape
        seen |= set(bits(view))
    for source in sources:
        assert set(stored(source).tolist()) <= seen | {0}
    covered = sum(len(set(_bytes_of(view))) for view in views)
    assert sum(source.region.nbytes for source in sources) <= 4 * covered + 16


def _bytes_of(view: torch.Tensor) -> list[int]:
    size = view.itemsize
    index = torch.arange(_BUFFER.numel()).as_strided(
        (*view.shape, size), (*(s * size for s in view.stride()), 1), int(view.storage_offset()) * size
    )
    return index.reshape(-1).tolist()
