"""Which low-precision regions are taken for roundings of a float32 one."""

import torch

from s4async.device.cpu import CpuDevice
from s4async.pipeline.derive import find_sources
from s4async.pipeline.snapshot import Live
from s4async.state import capture
from tests.vectors.states import bell


def sources_of(state: dict[str, torch.Tensor]) -> dict[str, str]:
    sources = capture(state).sources
    regions = [s.region for s in sources]
    found = find_sources(regions, Live(sources), CpuDevice())
    return {regions[low].name: regions[high].name for low, high in found.items()}


def test_models_find_their_masters_among_tensors_of_one_size() -> None:
    masters = {f"m{i}": bell(2000, seed=i) for i in range(4)}
    state = {**masters, "b2": masters["m2"].bfloat16(), "h0": masters["m0"].half(), "b1": masters["m1"].bfloat16()}
    assert sources_of(state) == {"b2": "m2", "h0": "m0", "b1": "m1"}


def test_a_close_tensor_another_size_and_constants_have_no_source() -> None:
    master = bell(2000)
    state = {"m": master, "near": (master * 1.01).bfloat16(), "short": master[:1999].bfloat16()}
    assert sources_of(state) == {}
    assert sources_of({"m": torch.zeros(2000), "b": torch.zeros(2000).bfloat16()}) == {}


def test_a_difference_outside_the_sample_is_left_to_the_encoder() -> None:
    master = bell(200_000)
    model = master.bfloat16()
    model[12_345] += 1
    assert sources_of({"m": master, "b": model}) == {"b": "m"}
