"""Tensors that share memory: slices of a large buffer, and weights that are tied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import s4async
from tests.cases.harness import assert_same, full, noise, round_trip, stored_bytes

State = dict[str, Any]


# ---- slices of a large buffer (pytorch/pytorch#1995, #71262, #40157, #95278)


def _slices(big: torch.Tensor) -> State:
    square = big.reshape(2000, 2000)
    return {
        "head": big[:10],
        "middle": big[100:110],
        "stepped": big[::400_000],  # shares its first element with the head
        "last": big[-1:],
        "column": square[:, 3],
        "corner": square[-5:, -5:-2],
        "diagonal": square.diagonal()[500:507],
        "scalar": big[123_456],
        "none": big[5:5],
    }


def _held_bytes(state: State) -> dict[str, int]:
    """How much memory each tensor keeps alive."""
    return {name: tensor.untyped_storage().nbytes() for name, tensor in state.items()}


@pytest.mark.parametrize("names", ["head middle stepped", "stepped column", "last corner diagonal scalar none", "all"])
def test_a_slice_costs_its_elements_not_its_buffer(tmp_path: Path, names: str) -> None:
    """Elsewhere ten elements of a big buffer take the room of the whole buffer, on disk and again after loading."""
    place, state = tmp_path / "ck.s4", _slices(noise(4_000_000))
    if names != "all":
        state = {name: state[name] for name in names.split()}
    s4async.save(state, place)
    assert stored_bytes(place) < 200_000
    loaded = s4async.load(place)
    assert_same(state, loaded)
    assert max(_held_bytes(loaded).values()) <= 16_384


@pytest.mark.parametrize("name", _slices(torch.zeros(4_000_000)))
def test_a_single_slice_holds_exactly_its_elements(name: str) -> None:
    """Alone, every kind of slice is as small as it looks."""
    tensor = _slices(noise(4_000_000))[name]
    assert _held_bytes(round_trip({"x": tensor}))["x"] == tensor.numel() * 4


def test_an_async_save_of_slices_stores_the_same_few_bytes(tmp_path: Path) -> None:
    """A staging copy of the whole buffer is the same waste in memory; what is stored must not depend on the way."""
    place, state = tmp_path / "ck.s4", _slices(noise(4_000_000))
    s4async.save_async(state, place).result(60)
    assert stored_bytes(place) < 200_000
    assert_same(state, s4async.load(place))


def test_numpy_slices_cost_their_elements(tmp_path: Path) -> None:
    """The same with NumPy views, which hold on to their base just as well."""
    base = noise(1_000_000).numpy()
    place, state = tmp_path / "ck.s4", {"head": base[:10], "column": base.reshape(1000, 1000)[:, 7]}
    s4async.save(state, place)
    assert stored_bytes(place) < 20_000
    assert_same(state, s4async.load(place))


def test_all_chunks_of_a_buffer_are_stored_once(tmp_path: Path) -> None:
    """A fused weight saved as its chunks, or beside them, must not be written once per view."""
    whole = noise(300_000)
    chunks: State = {str(i): chunk for i, chunk in enumerate(whole.chunk(7))}
    for state in (chunks, {"whole": whole, **chunks}):
        place = tmp_path / "ck.s4"
        s4async.save(state, place)
        assert stored_bytes(place) < 1.05 * 4 * whole.numel()
        assert_same(state, s4async.load(place))


def test_overlapping_windows_are_stored_once_and_stay_overlapping(tmp_path: Path) -> None:
    """Half-overlapping windows stored apart would lose the sharing that the training code relies on."""
    whole, place = noise(300_000), tmp_path / "ck.s4"
    s4async.save({"a": whole[:200_000], "b": whole[100_000:]}, place)
    assert stored_bytes(place) < 1.05 * 4 * whole.numel()
    loaded = s4async.load(place)
    loaded["a"][100_000:].fill_(3)
    assert loaded["b"][:100_000].eq(3).all() and torch.equal(loaded["b"][100_000:], whole[200_000:])


# ---- ties (safetensors/safetensors#98, #304; pytorch/pytorch#128011; deepspeedai/DeepSpeed#8376)


def test_tied_weights_stay_tied_and_are_stored_once(tmp_path: Path) -> None:
    """Elsewhere a model whose output layer is its embedding is refused, stored twice, or comes back as two tensors of
    which later training updates only one."""
    weight = torch.nn.Parameter(noise(1_000_000).reshape(1000, 1000))
    tied = {"embed.weight": weight, "head.weight": weight, "head.row2": weight.data[2]}
    before = weight.detach().clone()
    s4async.save(tied, tmp_path / "tied.s4")
    s4async.save({"embed.weight": weight}, tmp_path / "single.s4")
    assert stored_bytes(tmp_path / "tied.s4") < 1.02 * stored_bytes(tmp_path / "single.s4")
    loaded = s4async.load(tmp_path / "tied.s4")
    assert_same(tied, loaded)
    assert loaded["embed.weight"].data_ptr() == loaded["head.weight"].data_ptr()
    loaded["embed.weight"].data[2].fill_(9.0)
    assert loaded["head.weight"].data[2].eq(9).all() and loaded["head.row2"].eq(9).all()
    assert torch.equal(weight, before) and tied["head.row2"].data_ptr() == weight.data[2].data_ptr()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ties_across_containers_and_views_survive(tmp_path: Path, asynchronous: bool) -> None:
    """Ties reach across modules, lists and optimizers, and through transposes and reinterpreting views."""
    weight = torch.arange(12.0).reshape(3, 4)
    state = {"model": {"w": weight}, "list": [weight.t(), (weight[1:],)], "as_int": weight.view(torch.int32), "n": 1}
    place = tmp_path / "ck.s4"
    if asynchronous:
        s4async.save_async(state, place).result(60)
    else:
        s4async.save(state, place)
    loaded = s4async.load(place)
    assert_same(state, loaded)
    loaded["model"]["w"][1, 2] = 77.0
    assert loaded["list"][0][2, 1] == 77 and loaded["list"][1][0][0, 2] == 77
    assert loaded["as_int"].view(torch.float32)[1, 2] == 77


def test_a_tied_module_loads_in_place_and_stays_tied(tmp_path: Path) -> None:
    """Filling a tied model from a tied checkpoint must neither fail nor untie it."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    source, target, place = Model(), Model(), tmp_path / "ck.s4"
    s4async.save(source.state_dict(), place)
    s4async.load(place, into=target)
    assert torch.equal(target.embed.weight, source.embed.weight) and target.head.weight is target.embed.weight


def test_equal_but_separate_tensors_stay_separate() -> None:
    """The other side: tensors that only hold the same values must not be merged by a clever deduplication."""
    one = noise(1000)
    loaded = round_trip({"a": one, "b": one.clone(), "zeros": [full(1000, 0), full(1000, 0)]})
    loaded["a"].fill_(1)
    loaded["zeros"][0].fill_(1)
    assert torch.equal(loaded["b"], one) and loaded["zeros"][1].eq(0).all()


def test_separate_slices_of_one_buffer_do_not_swap_places() -> None:
    """Neighbours in one buffer, saved in another order than they lie in memory, each come back as themselves."""
    whole = torch.arange(100.0)
    order = [5, 0, 9, 3, 7, 1, 8, 2, 6, 4]
    state = {f"part{i}": whole[10 * i : 10 * i + 10] for i in order}
    assert_same(state, round_trip(state))
