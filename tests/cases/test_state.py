"""Everything around the tensors: keys, optimizers and schedulers, random numbers, NumPy values."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import s4async
from s4async.errors import UnsupportedStateError
from tests.cases.harness import assert_same, full, round_trip

State = dict[Any, Any]


# ---- keys (microsoft/agent-framework#8256, RyanCodrai/turbovec#350, pytorch/pytorch#153842, NVIDIA/Megatron-LM#7080)


def test_keys_keep_their_types_and_never_collide() -> None:
    """A format that knows only text keys turns 1 into "1", merges the two, and a resumed scheduler has both."""
    state: State = {
        "d": {1: "int", "1": "str", 1.5: "float", (0, "a"): "tuple", (torch.bfloat16, torch.float32): "dtypes"},
        "rare": {None: "none", b"1": "bytes", torch.device("cpu"): "device", frozenset({1}): "set", 2j: "complex"},
        "b": {True: "flag", "True": "text", "true": "json", False: 0, "": "empty"},
        "neg": {-1: "minus", "-1": "text", 0: "zero", "0": "text", -0.5: "half"},
        "big": {2**64: 1, -(2**70): 2, "18446744073709551616": 3},
        "nested": {(1, ("1", (True, None))): 1, (1, ("1", (1.5, None))): 2},
        5: {"outer": 1},
    }
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert [type(key) for key in loaded["b"]] == [bool, str, str, bool, str]


def test_keys_that_would_collide_as_paths_stay_apart() -> None:
    """Flattening by joining names maps different trees to one name ("duplicated flatten key"), or splits one name."""
    state = {"a.b": full(1, 1), "a": {"b": full(1, 2), "b/c": full(1, 3)}, "a/b": full(1, 4), "a/b/c": full(1, 5)}
    state["a"]["b/c/"] = full(1, 6)  # type: ignore[index]
    state |= {"x": [full(1, 7)], "x/0": full(1, 8), "x\\": full(1, 9), "é\n\0": full(1, 10), "%2F": full(1, 11)}
    assert_same(state, round_trip(state))


def test_tensors_under_odd_keys_are_told_apart_by_keys_and_into(tmp_path: Path) -> None:
    """In-place restoring looks leaves up by their place in the tree: 0 and "0" are different places."""
    place = tmp_path / "ck.s4"
    s4async.save({0: full(2, 1), "0": full(2, 2), True: full(2, 3), (0,): full(2, 4)}, place)
    target = {0: full(2, 0), "0": full(2, 0), True: full(2, 0), (0,): full(2, 0)}
    s4async.load(place, into=target)
    assert [tensor[0].item() for tensor in target.values()] == [1, 2, 3, 4]


def test_key_order_is_kept() -> None:
    """Order is part of a dict; parameter groups and iteration depend on it."""
    names = [f"k{i}" for i in (9, 1, 10, 2, 0)]
    state = {name: full(3, i) for i, name in enumerate(names)}
    loaded = round_trip({"d": state, "o": collections.OrderedDict(reversed(state.items()))})
    assert list(loaded["d"]) == names and list(loaded["o"]) == names[::-1]


# ---- resuming (pytorch/pytorch#153842, #124546; NVIDIA-NeMo/RL#4183; NVIDIA-NeMo/Automodel#3562)

Optimizer = torch.optim.Optimizer
Make = Callable[[Iterator[torch.nn.Parameter]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, betas=(0.9, 0.999)),
    "adam_tensor_lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2)),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=1e-1, max_iter=2, history_size=3),
}


class Training:
    """A model, its optimizer and a scheduler, small enough to run to the last bit twice."""

    def __init__(self, make: Make) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = make(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 6])

    def run(self, start: int, end: int) -> None:
        for i in range(start, end):

            def closure(value: float = float(i)) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss = self.model(torch.full((2, 4), value)).square().mean()
                loss.backward()
                return loss  # type: ignore[no-any-return]

            self.optimizer.step(closure)  # type: ignore[arg-type]
            self.scheduler.step()

    def state(self) -> State:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_training_equals_uninterrupted_training(tmp_path: Path, name: str) -> None:
    """Text keys, 0-dim steps of another shape or dtype, or moments one step stale give a loss that looks plausible for
    a long time. Right: equal to the last bit after ten steps."""
    straight = Training(OPTIMIZERS[name])
    straight.run(0, 5)
    handle = s4async.save_async(straight.state(), tmp_path / "ck.s4")
    straight.run(5, 10)  # while the save is still running
    handle.result(60)

    resumed, state = Training(OPTIMIZERS[name]), s4async.load(tmp_path / "ck.s4")
    resumed.model.load_state_dict(state["model"])
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.scheduler.load_state_dict(state["scheduler"])
    resumed.run(5, 10)
    assert_same(straight.state(), resumed.state())


def test_the_optimizers_own_records_keep_their_types() -> None:
    """The details that resuming depends on: int keys, tuples, a Counter, 0-dim steps."""
    training = Training(OPTIMIZERS["adamw"])
    training.run(0, 5)
    state = round_trip(training.state())
    assert list(state["optimizer"]["state"]) == [0, 1] and state["optimizer"]["state"][0]["step"].shape == ()
    assert state["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert_same(state["scheduler"]["milestones"], collections.Counter({3: 1, 6: 1}))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_live_objects_are_saved_and_restored_in_place(tmp_path: Path, name: str) -> None:
    """The same with the objects themselves in the state, as a short script writes it."""
    straight = Training(OPTIMIZERS[name])
    straight.run(0, 5)
    live = {"model": straight.model, "optimizer": straight.optimizer, "scheduler": straight.scheduler}
    handle = s4async.save_async(live, tmp_path / "ck.s4")
    straight.run(5, 10)
    handle.result(60)

    resumed = Training(OPTIMIZERS[name])
    fresh = {"model": resumed.model, "optimizer": resumed.optimizer, "scheduler": resumed.scheduler}
    s4async.load(tmp_path / "ck.s4", into=fresh)
    resumed.run(5, 10)
    assert_same(straight.state(), resumed.state())


def test_random_number_generators_go_on_where_they_were() -> None:
    """Restored weights with other random numbers train differently from the first batch on."""
    import random

    torch.manual_seed(3)
    generator, python = np.random.default_rng(5), random.Random(7)
    state = {
        "torch": torch.get_rng_state(),
        "numpy": generator.bit_generator.state,
        "legacy": np.random.RandomState(3).get_state(),
        "python": python.getstate(),
    }
    loaded = round_trip(state)
    drawn = (torch.rand(3), generator.random(3), python.random())
    torch.set_rng_state(loaded["torch"])
    generator.bit_generator.state = loaded["numpy"]
    python.setstate(loaded["python"])
    assert_same((torch.rand(3), generator.random(3), python.random()), drawn)
    assert_same(state["legacy"], loaded["legacy"])


# ---- NumPy (deepmodeling/deepmd-kit#4147, DLR-RM/stable-baselines3#1899)


def _numpy() -> State:
    return {
        "f": np.float64(1e-3),
        "f32": np.float32(0.1),
        "i": np.int64(5),
        "b": np.bool_(True),
        "c": np.complex64(1 - 2j),
        "str": np.str_("text"),
        "bytes": np.bytes_(b"\0x"),
        "when": np.datetime64("2024-01-02T03:04:05"),
        "long": np.timedelta64(7, "D"),
        "nat": np.datetime64("NaT", "s"),
        "z": np.array(3.5),
        "e": np.empty((0, 2)),
        "F": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "u": np.array(["ab", "c"]),
        "s": np.array([b"ab", b"c\0d"]),
        "rec": np.array([(1, 2.5)], dtype=[("a", "<i2"), ("b", "<f8")]),
        "sub": np.zeros(2, dtype=[("pos", "f4", (2, 3)), ("tag", "S3")]),
        "dt": np.array(["2024-01-02"], dtype="datetime64[D]"),
        "neg": np.arange(10)[::-2],
        "t": np.arange(6).reshape(2, 3).T,
        "wide": np.broadcast_to(np.arange(3.0), (4, 3)),
        "h": np.array([np.nan, -0.0], dtype=np.float16),
        "c128": np.array([1 + 2j, -0.0]),
        "dtype": np.dtype([("a", "<i2"), ("b", "<f8")]),
    }


@pytest.mark.parametrize("name", _numpy())
def test_numpy_values_come_back_exactly(name: str) -> None:
    """A safe load that rejects a NumPy learning rate, and a broad ``except`` around it, skip the whole restore."""
    value = _numpy()[name]
    assert_same(value, round_trip({"x": value})["x"])


def test_big_endian_arrays_keep_their_values() -> None:
    """Values right; the byte order may become the machine's, as with pickle."""
    value = np.arange(3, dtype=">i4")
    loaded = round_trip(value)
    assert np.array_equal(loaded, value) and loaded.dtype.newbyteorder("=") == np.int32


@pytest.mark.parametrize("name", ["F", "neg", "t", "rec", "u", "wide"])
def test_loaded_arrays_are_writable_and_their_own(name: str) -> None:
    """An array over a read-only buffer fails at the first in-place update after a resume."""
    value = _numpy()[name]
    before = value.copy()
    loaded = round_trip(value)
    loaded[...] = loaded.dtype.type() if loaded.dtype.names is None else np.zeros((), loaded.dtype)
    assert np.array_equal(value, before)


def test_object_arrays_are_exact_or_refused_by_name(tmp_path: Path) -> None:
    """Object arrays hide a pickle inside an array. Exact without running anything on load, or refused by name."""
    state, place = {"aux": {"tags": np.array([1, "x", None], dtype=object)}}, tmp_path / "ck.s4"
    refusal = ""
    try:
        s4async.save(state, place)
    except UnsupportedStateError as error:
        refusal = str(error)
    if refusal:
        assert "aux/tags" in refusal and not list(tmp_path.iterdir())
    else:
        assert_same(state, s4async.load(place))
