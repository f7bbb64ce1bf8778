"""The state package with tensors on a GPU: locations, private copies, ties, and filling across devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from s4async.state import Skeleton, capture, match
from s4async.state.dtypes import DTYPES
from tests.state.playback import assert_same, bits, regions_of
from tests.state.test_into import fill

pytestmark = pytest.mark.gpu


def _round_trip(state: Any, device: str) -> Any:
    """Through host memory, and back to where ``device`` says."""
    captured = capture(state)
    storages = {}
    for index, source in enumerate(captured.sources):
        data = source.tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
        where = source.region.location if device == "back" else device
        storages[index] = data.clone().to(where).untyped_storage()
    return Skeleton.decode(captured.skeleton, regions_of(captured)).build(storages)


def test_locations_are_kept() -> None:
    state = {"w": torch.ones(3, device="cuda"), "c": torch.ones(3), "e": torch.empty(0, device="cuda")}
    assert [region.location for region in regions_of(capture(state))] == ["cuda:0", "cpu", "cuda:0"]
    assert_same(state, _round_trip(state, "back"))
    assert _round_trip(state, "cpu")["w"].device.type == "cpu"


def test_equal_addresses_on_two_devices_are_not_tied() -> None:
    state = {"g": torch.ones(3, device="cuda"), "c": torch.zeros(3)}
    assert len(capture(state).sources) == 2


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name: str) -> None:
    dtype = DTYPES[name].dtype
    raw = torch.arange(24 * dtype.itemsize, dtype=torch.int16).to(torch.uint8)
    whole = (raw % 2 if name == "bool" else raw).cuda().view(dtype).reshape(4, 6)
    state = {"w": whole, "t": whole.t(), "stepped": whole.clone()[1:, ::2], "empty": whole[:0]}
    built = _round_trip(state, "back")
    for key, tensor in state.items():
        assert bits(tensor) == bits(built[key]) and built[key].dtype == dtype and built[key].device == tensor.device


def test_kinds_and_ties() -> None:
    x = torch.randn(6, 10, device="cuda")
    z = torch.randn(3, dtype=torch.complex64, device="cuda")
    state = {
        "left": x[:, :7],
        "right": x[:, 3:9],
        "conj": z.conj(),
        "neg": z.conj().imag,
        "coo": torch.eye(3, device="cuda").to_sparse(),
        "csr": torch.eye(3, device="cuda").to_sparse_csr(),
        "parameter": torch.nn.Parameter(torch.ones(2, device="cuda")),
        "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], device="cuda"),
        "jagged": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged, device="cuda"),
        "rng": torch.cuda.get_rng_state(),
    }
    built = _round_trip(state, "back")
    assert_same(state, built)
    built["left"][0, 5] = -1
    assert built["right"][0, 2] == -1
    for name, tensor in _round_trip(state, "cpu").items():
        assert tensor.device.type == "cpu", name
    for name, tensor in _round_trip(state, "cuda:0").items():
        assert tensor.device.type == "cuda", name


def test_filling_tensors_on_the_device_from_the_host() -> None:
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.float4_e2m1fn_x2):
        source = torch.arange(32, dtype=torch.uint8).view(dtype)
        into = {"x": torch.zeros(32, dtype=torch.uint8, device="cuda").view(dtype)}
        kept = into["x"]
        fill({"x": source}, into)
        assert into["x"] is kept and bits(into["x"]) == bits(source)


@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"fused": True}], ids=str)
def test_modules_and_optimizers_on_the_device(options: dict[str, Any]) -> None:
    def make() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
        model = torch.nn.Linear(4, 3).to("cuda", torch.bfloat16)
        return model, torch.optim.AdamW(model.parameters(), **options)

    model, optimizer = make()
    for _ in range(2):
        model(torch.ones(2, 4, device="cuda", dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    for entry in optimizer.state.values():
        entry["exp_avg"] = entry["exp_avg"].float() + 1e-3
    other, other_optimizer = make()
    captured = capture({"m": model, "o": optimizer})
    skeleton = Skeleton.decode(captured.skeleton, regions_of(captured))
    matched = match(skeleton, {"m": other, "o": other_optimizer})
    assert not matched.targets
    storages = {i: s.tensor.cpu().clone().untyped_storage() for i, s in enumerate(captured.sources)}
    matched.fill(storages)
    assert_same(model.state_dict(), other.state_dict())
    assert_same(optimizer.state_dict(), other_optimizer.state_dict())
