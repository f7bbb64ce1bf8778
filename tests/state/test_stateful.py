"""Modules, optimizers and other objects in place, as their own ``load_state_dict`` would, and exact besides."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from s4async.errors import StateMismatchError
from s4async.state import LoadReport
from tests.state.classes_of_tests import Counting
from tests.state.playback import assert_same
from tests.state.test_into import _match, fill


def _trained(dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    for i in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(i), dtype=dtype) + torch.eye(2, 4, dtype=dtype)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def _fresh(dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)).to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1.0, amsgrad=True)


def test_a_module_is_filled_in_place() -> None:
    model, _ = _trained()
    other, _ = _fresh()
    parameters, pointers = list(other.parameters()), [p.data_ptr() for p in other.parameters()]
    matched, (captured, _) = _match(model, other)
    assert set(matched.targets) == set(range(len(captured.sources)))  # nothing is restored twice
    assert fill({"m": model.state_dict()}, {"m": other}) == LoadReport()
    assert_same(model.state_dict(), other.state_dict())
    assert all(a is b for a, b in zip(parameters, other.parameters(), strict=True))
    assert pointers == [p.data_ptr() for p in other.parameters()]
    assert all(p.requires_grad and p.is_leaf for p in other.parameters())


def test_a_module_is_strict_about_names_shapes_and_dtypes() -> None:
    model, _ = _trained()
    other = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3).half(), torch.nn.Linear(3, 5, bias=False)
    )
    other.register_buffer("extra", torch.ones(1))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(StateMismatchError) as caught:
        fill({"m": model}, {"m": other})
    assert caught.value.missing == ("m/extra",) and caught.value.unexpected == ("m/2.bias",)
    names = [name.partition(":")[0] for name in caught.value.mismatched]
    assert names == ["m/1.weight", "m/1.bias", "m/1.running_mean", "m/1.running_var", "m/2.weight"]
    assert_same(before, other.state_dict())
    report = fill({"m": model}, {"m": other}, strict=False)
    assert (report.missing, report.unexpected, len(report.mismatched)) == (("m/extra",), ("m/2.bias",), 5)
    loaded = {name for name, value in other.state_dict().items() if not torch.equal(value, before[name])}
    assert loaded == {"0.weight", "0.bias", "1.num_batches_tracked"}


def test_a_meta_module_is_refused() -> None:
    model, _ = _trained()
    with torch.device("meta"):
        other, _ = _fresh()
    with pytest.raises(StateMismatchError, match="it is a meta tensor"):
        fill(model, other)


def test_lazy_modules_get_their_shapes() -> None:
    model = torch.nn.Linear(4, 3)
    lazy = torch.nn.LazyLinear(3)
    fill({"m": model}, {"m": lazy})
    assert torch.equal(lazy.weight, model.weight) and isinstance(lazy.weight, torch.nn.Parameter)


class _Extra(torch.nn.Module):
    """A module with extra state, a hook that looks at what is loaded, and a version."""

    _version = 7

    def __init__(self, note: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.note = note
        self.seen: list[Any] = []

    def get_extra_state(self) -> Any:
        return self.note

    def set_extra_state(self, state: Any) -> None:
        self.note = state

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any) -> None:
        self.seen.append((sorted(state_dict), local_metadata.get("version")))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_extra_state_versions_and_hooks_work() -> None:
    noted, plain = _Extra({"k": [1, torch.ones(2)]}), _Extra({})
    noted.weight.data.fill_(5)
    source = torch.nn.ModuleDict({"a": noted, "b": torch.nn.Linear(1, 1)})
    other = torch.nn.ModuleDict({"a": plain, "b": torch.nn.Linear(1, 1)})
    calls: list[Any] = []
    other.register_load_state_dict_post_hook(lambda module, keys: calls.append(keys))
    assert not _match(source, other)[0].targets  # a hook may change what it is given: restored beside, then loaded
    fill({"m": source}, {"m": other})
    assert_same(source.state_dict(), other.state_dict())
    assert plain.note["k"][1].eq(1).all()
    assert plain.seen[0][1] == 7 and len(calls) == 1 and not calls[0].missing_keys


def test_tied_weights_of_a_module() -> None:
    def make() -> torch.nn.ModuleDict:
        model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 4), "head": torch.nn.Linear(4, 5, bias=False)})
        model["head"].weight = model["embed"].weight
        return model

    source, other = make(), make()
    assert len(_match(source, other)[0].targets) == 1
    fill(source, other)
    assert_same(source.state_dict(), other.state_dict())
    assert other["head"].weight is other["embed"].weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_to_the_same_bits(dtype: torch.dtype) -> None:
    model, optimizer = _trained(dtype)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    optimizer.step()
    schedule.step()
    other, other_optimizer = _fresh(dtype)
    other_schedule = torch.optim.lr_scheduler.MultiStepLR(other_optimizer, [5])
    fill(
        {"m": model, "o": optimizer, "s": schedule},
        {"m": other, "o": other_optimizer, "s": other_schedule},
    )
    for m, o, s in ((model, optimizer, schedule), (other, other_optimizer, other_schedule)):
        for i in range(3):
            o.zero_grad()
            m(torch.full((2, 4), float(i), dtype=dtype) + torch.eye(2, 4, dtype=dtype)).square().sum().backward()
            o.step()
            s.step()
    assert_same(model.state_dict(), other.state_dict())
    assert_same(optimizer.state_dict(), other_optimizer.state_dict())
    assert_same(schedule.state_dict(), other_schedule.state_dict())


def test_optimizer_state_keeps_its_dtype() -> None:
    """``Optimizer.load_state_dict`` rounds float32 moments to the dtype of bfloat16 parameters."""
    _, optimizer = _trained(torch.bfloat16)
    for state in optimizer.state.values():
        state["exp_avg"] = torch.randn_like(state["exp_avg"], dtype=torch.float32)
        state["exp_avg_sq"] = torch.randn_like(state["exp_avg_sq"], dtype=torch.float64)
    _, other = _fresh(torch.bfloat16)
    assert not other.state
    fill({"o": optimizer}, {"o": other})
    assert_same(optimizer.state_dict(), other.state_dict())
    rounded = copy.deepcopy(other)
    rounded.load_state_dict(optimizer.state_dict())
    assert rounded.state_dict()["state"][0]["exp_avg"].dtype == torch.bfloat16  # what is undone here


def test_existing_optimizer_state_keeps_its_identity() -> None:
    _, optimizer = _trained()
    _, other = _trained()
    for state in other.state.values():
        state["exp_avg"].zero_()
        state["step"].zero_()
    before = {param: dict(state) for param, state in other.state.items()}
    fill(optimizer, other)
    assert_same(optimizer.state_dict(), other.state_dict())
    for param, state in other.state.items():
        assert all(state[key] is value for key, value in before[param].items())


def test_optimizers_that_differ_are_refused_before_anything() -> None:
    _, optimizer = _trained()
    fewer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    with pytest.raises(StateMismatchError, match=r"o/param_groups: expected groups of \[1\] parameters, got \[6\]"):
        fill({"o": optimizer}, {"o": fewer})
    _, other = _trained()
    next(iter(other.state.values()))["exp_avg"] = torch.zeros(7)
    with pytest.raises(StateMismatchError, match=r"o/state/0/exp_avg: expected \(7,\), got \(3, 4\)"):
        fill({"o": optimizer}, {"o": other})
    for wrong in list[Any]([{"state": {}}, 5, [1]]):
        with pytest.raises(StateMismatchError, match="expected the state dict of a torch"):
            fill({"o": wrong}, {"o": other})
        with pytest.raises(StateMismatchError, match=r"(expected the state dict of a torch|missing)"):
            fill({"o": wrong}, {"o": torch.nn.Linear(1, 1)})


def test_parts_of_opaque_objects_are_refused() -> None:
    model, optimizer = _trained()
    _, other = _fresh()
    with pytest.raises(StateMismatchError, match=r"o: a torch\.optim\.adamw\.AdamW cannot take a selected part"):
        fill({"o": optimizer, "m": model}, {"o": other}, keys="o/param_groups/0/lr")
    with pytest.raises(StateMismatchError, match="cannot take a selected part"):
        fill({"o": optimizer, "m": model}, {"o": other}, keys="o/state")
    assert fill({"o": optimizer, "m": model}, {"o": other}, keys="o/*") == LoadReport()
    fresh, _ = _fresh()
    assert fill({"m": model}, {"m": fresh}, keys="m/0.*") == LoadReport()
    assert_same(model[0].state_dict(), fresh[0].state_dict())
    assert not torch.equal(fresh.state_dict()["2.weight"], model.state_dict()["2.weight"])


def test_other_objects_are_given_their_state() -> None:
    scaler, other_scaler = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu")
    counting = Counting(0)
    fill(
        {"c": Counting(4), "g": scaler, "l": [Counting(5)]},
        {"c": counting, "g": other_scaler, "l": [counting2 := Counting()]},
    )
    assert counting.n == 4 and counting.weight.eq(4).all() and other_scaler.get_scale() == 8.0 and counting2.n == 5
    with pytest.raises(StateMismatchError, match=r"'c': .*Counting\.load_state_dict\(\) failed: 'n'"):
        fill({"c": {"x": 1}}, {"c": Counting()})


def test_the_module_at_the_top() -> None:
    model, _ = _trained()
    other, _ = _fresh()
    fill(model.state_dict(), other)
    assert_same(model.state_dict(), other.state_dict())
    with pytest.raises(StateMismatchError, match=r"missing: 0\.bias"):
        fill({"0.weight": torch.ones(3, 4)}, torch.nn.Sequential(torch.nn.Linear(4, 3)))
