"""Strides of every kind, every dtype in every small shape, and sparse layouts."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import s4async
from s4async.errors import UnsupportedStateError
from tests.cases.harness import assert_same, bits, round_trip

State = dict[str, Any]

# fmt: off
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
]
# fmt: on


# ---- strides (safetensors/safetensors#308, Comfy-Org/ComfyUI#3923, tracel-ai/burn#5383)


def _strided() -> State:
    return {
        "channels_last": torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "channels_last_3d": torch.arange(240.0).reshape(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d),
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "permuted": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        "stepped": torch.arange(20)[3::4],
        "stepped2d": torch.arange(60.0).reshape(6, 10)[1::2, ::3],
        "flipped": torch.arange(6).flip(0),
        "expanded": torch.tensor([7.0]).expand(300, 400),
        "expanded0d": torch.tensor(5, dtype=torch.int16).expand(3, 2),
        "expanded_row": torch.arange(4.0).expand(3, 4),
        "window": torch.arange(6.0).as_strided((4, 3), (1, 1)),  # overlapping rows
        "unfolded": torch.arange(10.0).unfold(0, 4, 2),
        "holes": torch.arange(50.0).as_strided((3, 4), (13, 2), 5),
        "one": torch.arange(8.0)[3:4].as_strided((1, 1, 1), (99, 7, 3), 3),  # strides of size-1 dimensions mean nothing
        "empty": torch.empty(3, 0, 5).permute(2, 1, 0),
        "real": torch.arange(6).to(torch.complex64).real,
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    }


@pytest.mark.parametrize("name", _strided())
def test_strides_of_every_kind_keep_their_values(name: str) -> None:
    """Elsewhere such tensors are refused, read linearly (values permuted) or have zeros where rows were broadcast."""
    tensor = _strided()[name]
    loaded = round_trip({"x": tensor})["x"]
    assert_same(tensor, loaded)


@pytest.mark.parametrize("name", ["channels_last", "channels_last_3d", "transposed", "permuted"])
def test_dense_permutations_keep_their_strides(name: str) -> None:
    """A convolution weight that comes back in another memory format is right but slow, and breaks stride checks."""
    tensor = _strided()[name]
    assert round_trip(tensor).stride() == tensor.stride()


@pytest.mark.parametrize("name", ["expanded", "expanded0d", "expanded_row", "window", "unfolded"])
def test_a_dense_copy_of_overlapping_rows_has_rows_of_its_own(name: str) -> None:
    """A write to one element shows up where the strides say, and nowhere else."""
    loaded = round_trip(_strided()[name])
    memory = torch.zeros(loaded.untyped_storage().nbytes() // loaded.itemsize, dtype=loaded.dtype)
    loaded.untyped_storage().copy_(memory.untyped_storage())
    loaded[0, 0] = memory[loaded.storage_offset()] = 9
    assert torch.equal(loaded, memory.as_strided(loaded.shape, loaded.stride(), loaded.storage_offset()))
    assert loaded.eq(9).sum() == 1 or 0 in loaded.stride() or name in ("window", "unfolded")


# ---- every dtype in every small shape (huggingface/huggingface_hub#4901, safetensors/safetensors#839)


def _of_every_dtype(device: str = "cpu") -> State:
    state = {}
    generator = torch.Generator().manual_seed(6)
    for dtype in DTYPES:
        for shape in [(), (0,), (1,), (3, 0, 2), (5,), (2, 3)]:
            high = 2 if dtype == torch.bool else 256
            raw = torch.randint(0, high, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8, generator=generator)
            state[f"{dtype}{shape}"] = raw.to(device).view(dtype).reshape(shape)
    return state


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_dtype_in_every_small_shape(device: str) -> None:
    """Dtype tables that fall behind raise ``KeyError``; ways through NumPy raise ``TypeError``; packed fp4 shapes get
    doubled or halved because one side counts elements and the other bytes. Right: dtype, shape and every byte."""
    state = _of_every_dtype(device)
    assert_same(state, round_trip(state))


def test_every_dtype_is_restored_in_place(tmp_path: Path) -> None:
    """The same into tensors that exist: their memory is filled, byte by byte."""
    state, place = _of_every_dtype(), tmp_path / "ck.s4"
    s4async.save(state, place)
    target = {
        name: torch.zeros_like(tensor.view(torch.uint8)).view(tensor.dtype) if tensor.dim() else tensor.clone()
        for name, tensor in state.items()
    }
    kept = {name: tensor.data_ptr() for name, tensor in target.items()}
    s4async.load(place, into=target)
    assert_same(state, target)
    assert kept == {name: tensor.data_ptr() for name, tensor in target.items()}


def test_every_dtype_through_views(tmp_path: Path) -> None:
    """Every dtype again as stepped and transposed views of one buffer per dtype."""
    state: State = {}
    for dtype in DTYPES:
        raw = torch.arange(24 * dtype.itemsize, dtype=torch.int16).to(torch.uint8)
        whole = (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(4, 6)
        state[str(dtype)] = {"t": whole.t(), "stepped": whole[1:, ::2], "row": whole[2]}
    assert_same(state, round_trip(state))


@pytest.mark.parametrize(
    "name", [n for n in (f"{kind}{width}" for kind in ("int", "uint") for width in range(1, 8)) if hasattr(torch, n)]
)
def test_placeholder_dtypes_are_exact_or_refused_by_name(name: str) -> None:
    """Torch's sub-byte placeholders cannot even be pickled; a bare ``KeyError`` out of a table would not say which
    tensor is to blame."""
    packed = torch.arange(4, dtype=torch.uint8).view(getattr(torch, name))
    loaded, refusal = packed, ""
    try:
        loaded = round_trip({"layer": {"q.w": packed}})["layer"]["q.w"]
    except UnsupportedStateError as error:
        refusal = str(error)
    assert "layer/q.w" in refusal or not refusal
    assert loaded.dtype == packed.dtype and bits(loaded.view(torch.uint8)) == bits(packed.view(torch.uint8))


# ---- sparse layouts (pytorch/pytorch#101186, #16667; safetensors/safetensors#17, #45)


def _sparse() -> State:
    duplicate = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 1], [2, 2, 0]]), torch.tensor([1.0, 2.0, 3.0]), (2, 3), check_invariants=True
    )
    dense = torch.eye(4)
    index = torch.tensor([0, 1, 2], dtype=torch.int32)
    return {
        "coo": duplicate,
        "coalesced": duplicate.coalesce(),
        "hybrid": torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 5), (3, 5), check_invariants=True),
        "empty": torch.zeros(3, 4).to_sparse(),
        "csr": dense.to_sparse_csr(),
        "csc": dense.to_sparse_csc(),
        "bsr": dense.to_sparse_bsr((2, 2)),
        "bsc": dense.to_sparse_bsc((2, 2)),
        "int32": torch.sparse_csr_tensor(index, index[:2], torch.ones(2), (2, 3), check_invariants=True),
        "batched": torch.stack([dense, dense]).to_sparse_csr(),
        "half": dense.bfloat16().to_sparse(),
    }


@pytest.fixture
def sparse() -> State:
    """Every layout. Torch warns that compressed layouts are in beta; that is no news about this package."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse .* tensor support is in beta state", UserWarning)
        return _sparse()


def test_sparse_layouts_come_back_as_they_were(sparse: State) -> None:
    """Elsewhere: "no storage" errors, layouts turned dense without a word, and a lost coalesced flag on which
    ``.indices()`` fails later. Right: same layout, entries, index dtype and flag."""
    loaded = round_trip(sparse)
    assert_same(sparse, loaded)
    for name, tensor in sparse.items():
        assert loaded[name]._nnz() == tensor._nnz(), name
        if tensor.layout == torch.sparse_coo:
            assert loaded[name].is_coalesced() == tensor.is_coalesced(), name
            assert torch.equal(loaded[name]._indices(), tensor._indices()), name
    assert loaded["int32"].crow_indices().dtype == loaded["int32"].col_indices().dtype == torch.int32
    assert loaded["coalesced"].indices().tolist() == [[0, 1], [2, 0]]


def test_a_sparse_gradient_is_captured_at_the_call(sparse: State) -> None:
    """The values of a sparse tensor are a tensor inside a tensor; a snapshot must copy them too."""
    buffer = io.BytesIO()
    tensor = sparse["coalesced"]
    handle = s4async.save_async({"grad": tensor}, buffer)
    tensor.values().fill_(-1)
    handle.result(60)
    buffer.seek(0)
    assert s4async.load(buffer)["grad"].values().tolist() == [3.0, 3.0]


def test_numpy_and_torch_on_one_memory_keep_their_values() -> None:
    """A tensor made from an array shares its memory; whether that tie is kept or not, both have the right values."""
    array = np.arange(12, dtype=np.float32)
    state = {"array": array, "tensor": torch.from_numpy(array), "half": array[::2]}
    assert_same(state, round_trip(state))
