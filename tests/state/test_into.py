"""In place: what is compared, what is filled, what keeps its identity, and that a refusal changes nothing."""

from __future__ import annotations

import copy
import warnings
from argparse import Namespace
from collections import Counter, OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from s4async.errors import StateMismatchError, UnsafeLoadError
from s4async.state import LoadReport, Match, Skeleton, capture, match
from tests.state.classes_of_tests import Config, Frozen, Marked, Pair, Point, Wrapper
from tests.state.playback import assert_same, bits, regions_of, stored


def _match(state: object, into: object, strict: bool = True, keys: Any = None, **options: bool) -> tuple[Match, Any]:
    captured = capture(state, **options)
    skeleton = Skeleton.decode(captured.skeleton, regions_of(captured)).select(keys)
    return match(skeleton, into, strict, whole=keys is None), (captured, skeleton)


def fill(state: object, into: object, strict: bool = True, keys: Any = None) -> LoadReport:
    """Play the pipeline: direct regions into their targets, the others into storages."""
    matched, (captured, skeleton) = _match(state, into, strict, keys)
    assert set(matched.targets) <= matched.region_indexes <= skeleton.region_indexes
    storages = {}
    for index in matched.region_indexes:
        data = stored(captured.sources[index])
        if index in matched.targets:
            target = matched.targets[index]
            assert target.dtype == torch.uint8 and target.dim() == 1 and target.nbytes == data.nbytes()
            target.copy_(torch.empty(0, dtype=torch.uint8).set_(data))
        else:
            storages[index] = data
    return matched.fill(storages)


def full(n: int, value: float) -> torch.Tensor:
    return torch.full((n,), float(value))


def test_keys_on_one_side_only() -> None:
    state = {"a": full(2, 1), "b": full(2, 2), "old": full(2, 3)}
    into: dict[str, Any] = {"a": full(2, 0), "b": full(2, 0), "new": full(2, 0)}
    kept = dict(into)
    with pytest.raises(StateMismatchError, match=r"missing: new; unexpected: old.*strict=False") as caught:
        fill(state, into)
    assert (caught.value.missing, caught.value.unexpected, caught.value.mismatched) == (("new",), ("old",), ())
    assert all(tensor.eq(0).all() for tensor in into.values())
    assert fill(state, into, strict=False) == LoadReport(("new",), ("old",), ())
    assert [tensor[0].item() for tensor in into.values()] == [1, 2, 0]
    assert all(into[name] is kept[name] for name in kept)


def test_every_difference_has_its_path() -> None:
    state = {
        "m": {"l": [{"w": full(2, 1)}, {"w": full(2, 2)}, {"w": full(1, 1)}]},
        "o": {0: full(1, 1)},
        "c": Config(1.0),
    }
    into: dict[str, Any] = {
        "m": {"l": [{"w": full(2, 0)}, {"v": full(2, 0)}]},
        "o": {1: full(1, 0)},
        "c": Config(2.0),
        "p": [full(1, 0), Point(1, torch.nn.Linear(1, 1))],
        "e": {},
    }
    into["c"].late = 5
    with pytest.raises(StateMismatchError) as caught:
        fill(state, into)
    assert caught.value.missing == ("m/l/1/v", "o/1", "c/late", "p/0", "p/1/x", "p/1/y/weight", "p/1/y/bias", "e")
    assert caught.value.unexpected == ("m/l/1/w", "m/l/2/w", "o/0")


@pytest.mark.parametrize(
    ("stored_value", "existing", "reason"),
    [
        (full(4, 1), full(8, 0), r"x: expected float32 \(8,\), got float32 \(4,\)"),
        (full(4, 1), full(4, 0).half(), r"x: expected float16 \(4,\), got float32 \(4,\)"),
        (torch.tensor(1.0), full(1, 0), r"got float32 \(\)"),
        (full(4, 1), torch.empty(4, device="meta"), "x: it is a meta tensor"),
        (full(4, 1), torch.zeros(1).expand(4), "x: several of its elements share memory"),
        (full(4, 1).reshape(2, 2), torch.zeros(3).as_strided((2, 2), (1, 1)), "x: several of its elements"),
        (full(4, 1), torch.nn.UninitializedParameter(), "x: it is not initialized"),
        (torch.eye(2).to_sparse(), torch.zeros(2, 2), "x: expected a Tensor of layout torch.strided"),
        (torch.zeros(2, 2), torch.eye(2).to_sparse(), "layout torch.sparse_coo"),
        (1, full(1, 0), r"x: expected a tensor torch.float32 \(1,\), got a int"),
        (None, full(1, 0), "got a NoneType"),
        ({"w": full(1, 0)}, full(1, 0), "got a dict"),
        (full(1, 0), 1, "x: expected a int, got a tensor"),
        (full(1, 0), {}, "x: expected a dict, got a tensor"),
        ([full(1, 0)], {"w": full(1, 0)}, "x: expected a dict, got a list"),
        (np.zeros(3), np.zeros(4), r"x: expected float64 \(4,\), got float64 \(3,\)"),
        (np.zeros(3), np.zeros(3, ">f8"), "x: expected >f8"),
        (np.zeros(3), full(3, 0), "x: expected a tensor"),
        (full(3, 0), np.zeros(3), "x: expected a numpy.ndarray, got a tensor"),
        (5, np.zeros(3), "x: expected a numpy.ndarray, got a int"),
        (torch.ones(2).as_subclass(Marked), full(3, 0), "expected float32"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_does_not_fit_is_listed_and_left_alone(stored_value: Any, existing: Any, reason: str) -> None:
    state, into = {"x": stored_value, "y": full(1, 5)}, {"x": existing, "y": full(1, 0)}
    before = copy.copy(existing)
    with pytest.raises(StateMismatchError, match=reason) as caught:
        fill(state, into)
    assert len(caught.value.mismatched) == 1 and into["y"] == 0
    report = fill(state, into, strict=False)
    assert len(report.mismatched) == 1 and into["y"] == 5 and into["x"] is existing
    if type(existing) is torch.Tensor and existing.layout is torch.strided and not existing.is_meta:
        assert bits(existing) == bits(before)


def test_inference_tensors_are_refused_outside_of_it() -> None:
    with torch.inference_mode():
        into: dict[str, Any] = {"x": torch.zeros(3)}
    with pytest.raises(StateMismatchError, match="inference mode"):
        fill({"x": full(3, 1)}, into)
    with torch.inference_mode():
        fill({"x": full(3, 1)}, into)
    assert into["x"].eq(1).all()


@pytest.mark.parametrize(
    "into",
    [
        torch.zeros(3, 4),
        torch.zeros(3, 4, requires_grad=True),
        torch.nn.Parameter(torch.zeros(3, 4)),
        torch.zeros(4, 3).t(),
        torch.zeros(3, 8)[:, ::2],
        torch.zeros(30)[5:17].view(3, 4),
        torch.zeros(3, 4).as_subclass(Marked),
        torch.zeros(3, 4, dtype=torch.complex64).conj().imag,
        torch.zeros(3, 4, dtype=torch.complex64).imag,
    ],
    ids=str,
)
@pytest.mark.parametrize("how", ["plain", "transposed", "stepped", "neg"])
def test_strided_tensors_are_filled_in_place(into: torch.Tensor, how: str) -> None:
    values = torch.randn(3, 4)
    source = {
        "plain": values,
        "transposed": values.t().contiguous().t(),
        "stepped": torch.stack([values, values], -1)[..., 0],
        "neg": torch.complex(values, -values).conj().imag,
    }[how]
    state = {"x": into}
    version = into._version
    fill({"x": source}, state)
    assert state["x"] is into and bits(into) == bits(source)
    assert into._version > version and into.grad_fn is None


def test_other_kinds_are_filled_or_replaced() -> None:
    jagged = [torch.randn(2, 3), torch.randn(4, 3)]

    def make(scale: float) -> dict[str, Any]:
        return {
            "coo": torch.sparse_coo_tensor(torch.tensor([[0, 0, 1]]), torch.ones(3) * scale, (3,)),
            "csr": (torch.eye(3) * scale).to_sparse_csr(),
            "q": torch.quantize_per_tensor(torch.ones(3) * scale, 0.1 * scale, 1, torch.qint8),
            "channel": torch.quantize_per_channel(
                torch.ones(2, 3), torch.tensor([0.1, 0.2]) * scale, torch.tensor([0, 1]), 0, torch.qint8
            ),
            "nested": torch.nested.nested_tensor([t * scale for t in jagged]),
            "wrapper": Wrapper(torch.ones(2) * scale, torch.zeros(1) + scale, {"k": 1}),
            "marked": torch.ones(2).mul(scale).as_subclass(Marked),
        }

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's notes that some kinds are beta or deprecated
        state, into = make(1.0), make(2.0)
        kept = dict(into)
        fill(state, into)
        assert_same(state, into)
    assert [name for name in into if into[name] is not kept[name]] == ["channel", "nested"]


def test_another_kind_of_sparse_is_replaced() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's notes that some kinds are beta or deprecated
        state, into = {"x": torch.eye(3).to_sparse_csr()}, {"x": torch.zeros(3, 3).to_sparse_csr()}
        fill(state, into)
        assert_same(state, into)


def test_attributes_of_subclasses_follow() -> None:
    source = torch.ones(2).as_subclass(Marked)
    source.note = 5  # type: ignore[attr-defined]
    into: dict[str, Any] = {"x": torch.zeros(2).as_subclass(Marked)}
    fill({"x": source}, into)
    assert into["x"].note == 5 and into["x"].eq(1).all()


# ---- direct targets


def test_whole_dense_host_tensors_are_direct() -> None:
    state = {
        "a": full(5, 1),
        "t": torch.randn(3, 4).t(),
        "cl": torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "p": torch.nn.Parameter(full(3, 2)),
        "e": torch.empty(0),
        "s": torch.tensor(5),
    }
    into: dict[str, Any] = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    matched, _ = _match(state, into)
    assert set(matched.targets) == {0, 1, 2, 3, 5}
    assert matched.targets[1].data_ptr() == into["t"].data_ptr() and matched.targets[1].numel() == 48
    fill(state, into)
    assert all(bits(into[name]) == bits(state[name]) for name in state)


@pytest.mark.parametrize(
    ("state", "into"),
    [
        (full(4, 1), torch.zeros(8)[::2]),
        (torch.arange(6.0).reshape(2, 3), torch.zeros(3, 2).t()),
        (torch.tensor([1j]).conj(), torch.zeros(1, dtype=torch.complex64)),
        (torch.tensor([1j]), torch.zeros(1, dtype=torch.complex64).conj()),
        (torch.zeros(2, 3)[:, :2], torch.zeros(2, 2)),
        (torch.zeros(1).expand(4), torch.zeros(4)),
        (torch.zeros(2).as_subclass(Marked), torch.zeros(2)),
        (torch.zeros(2), torch.zeros(2).as_subclass(Marked)),
    ],
    ids=["steps", "transposed", "conj stored", "conj here", "cut", "expanded", "class stored", "class here"],
)
def test_others_are_not(state: torch.Tensor, into: torch.Tensor) -> None:
    matched, (captured, _) = _match({"x": state}, {"x": into})
    if matched.targets:  # a compact region of a view with holes fits a dense tensor
        assert captured.sources[0].region.nbytes == into.nbytes and into.is_contiguous()
    fill({"x": state}, {"x": into})
    assert bits(into) == bits(state)


def test_ties_are_direct_only_where_both_sides_tie_alike() -> None:
    w, z = full(6, 1), torch.zeros(6)
    assert set(_match({"a": w, "b": w}, {"a": z, "b": z})[0].targets) == {0}
    assert set(_match({"a": w, "b": w}, {"a": z, "b": torch.zeros(6)})[0].targets) == set()
    assert set(_match({"a": w, "b": w[:2]}, {"a": z, "b": z[:2]})[0].targets) == set()
    assert set(_match({"a": w, "b": w.clone()}, {"a": z, "b": z})[0].targets) == set()
    assert set(_match({"a": w[:4], "b": full(4, 2)}, {"a": z[:4], "b": z[2:]})[0].targets) == set()
    assert set(_match({"a": w, "b": w}, {"a": z}, strict=False)[0].targets) == set()
    for into in ({"a": z, "b": z}, {"a": z, "b": torch.zeros(6)}):
        z.zero_()
        fill({"a": w, "b": w}, into)
        assert all(tensor.eq(1).all() for tensor in into.values())


def test_only_the_regions_of_what_fits_are_needed() -> None:
    state = {"m": torch.nn.Linear(2, 2), "o": [full(3, 1), full(4, 1)], "t": "x" * 3000, "bad": full(2, 1)}
    matched, (captured, _) = _match(state, {"m": torch.nn.Linear(2, 2), "bad": full(3, 0)}, strict=False)
    names = [captured.sources[index].region.name for index in sorted(matched.region_indexes)]
    assert names == ["m/weight", "m/bias"]


# ---- values and containers


def test_values_are_replaced_and_containers_kept() -> None:
    state: dict[str, Any] = {
        "epoch": 20,
        "lr": 0.5,
        "none": None,
        "was none": {"w": full(1, 3)},
        "hist": [1, {"k": "v"}, 3],
        "tuple": (1, (2, 3)),
        "set": {1, 2},
        "queue": deque([1], maxlen=3),
        "limit": deque([1], maxlen=9),
        "counter": Counter(a=1),
        "od": OrderedDict(x=1),
        "text": "x" * 3000,
        "array": np.arange(3.0),
        "frozen array": np.arange(3),
        "bytes": bytearray(b"abc"),
        "betas": (0.9, 0.999),
    }
    into: dict[str, Any] = {
        "epoch": 0,
        "lr": 0.0,
        "none": 5,
        "was none": None,
        "hist": [],
        "tuple": (0, ()),
        "set": set(),
        "queue": deque(maxlen=3),
        "limit": deque(maxlen=3),
        "counter": Counter(),
        "od": OrderedDict(x=0),
        "text": "",
        "array": np.zeros(3),
        "frozen array": np.zeros(3, np.int64),
        "bytes": bytearray(),
        "betas": [0, 0],
    }
    into["frozen array"].flags.writeable = False
    kept = dict(into)
    assert fill(state, into) == LoadReport()
    assert_same(state, into)
    same = {name for name in into if into[name] is kept[name] and name not in ("none", "was none")}
    assert same == {"hist", "set", "queue", "od", "array", "bytes"}


def test_sequences_with_tensors_go_by_index() -> None:
    state = {"l": [full(2, 1), 5, (full(1, 2), "s")], "p": Point(full(1, 3), 7), "old": Pair(1, [full(1, 4)])}
    into: dict[str, Any] = {
        "l": [full(2, 0), 0, (full(1, 0), "")],
        "p": Point(full(1, 0), 0),
        "old": Pair(0, [full(1, 0)]),
    }
    tensors = [into["l"][0], into["l"][2][0], into["p"].x, into["old"].right[0]]
    outer = into["l"]
    fill(state, into)
    assert_same(state, into)
    after = [into["l"][0], into["l"][2][0], into["p"].x, into["old"].right[0]]
    assert into["l"] is outer and all(a is b for a, b in zip(tensors, after, strict=True))


def test_objects_by_their_attributes() -> None:
    state = {
        "c": Config(0.5, [1, 2], full(2, 1)),
        "f": Frozen("new", full(1, 2)),
        "n": SimpleNamespace(a=full(1, 3), b=4),
    }
    into: dict[str, Any] = {
        "c": Config(0.1, [], full(2, 0)),
        "f": Frozen("old", full(1, 0)),
        "n": Namespace(a=full(1, 0), b=0),
    }
    kept = [into["c"], into["f"], into["f"].weight, into["n"]]
    fill(state, into)
    assert into["c"].layers == [1, 2] and into["c"].extra.eq(1).all()
    assert into["f"].name == "new" and into["f"].weight == 2 and into["n"].b == 4 and into["n"].a == 3
    assert all(a is b for a, b in zip(kept, [into["c"], into["f"], into["f"].weight, into["n"]], strict=True))


def test_the_top_may_be_a_tensor_or_a_tuple_of_tensors() -> None:
    into = full(3, 0)
    fill(full(3, 1), into)
    assert into.eq(1).all()
    pair = (full(1, 0), [full(1, 0)])
    fill((full(1, 1), [full(1, 2)]), pair)
    assert pair[0] == 1 and pair[1][0] == 2
    with pytest.raises(StateMismatchError, match="nothing mutable holds"):
        fill((full(1, 1), 5), (full(1, 0), 0))
    with pytest.raises(StateMismatchError, match="nothing mutable holds"):
        fill(5, 0)


def test_only_what_was_selected_is_expected_and_touched() -> None:
    state: dict[str, Any] = {
        "m": {"a": full(2, 1), "b": full(2, 2)},
        "l": [full(1, 1), full(1, 2)],
        "o": full(2, 3),
        "n": 5,
    }
    into: dict[str, Any] = {
        "m": {"a": full(2, 0), "b": full(2, 0)},
        "l": [full(1, 0), full(1, 0)],
        "o": full(2, 0),
        "n": 0,
        "new": full(1, 0),
    }
    assert fill(state, into, keys=["m/a", "l/1"]) == LoadReport()
    assert [into["m"]["a"][0], into["m"]["b"][0], *into["l"], into["o"][0], into["n"]] == [1, 0, 0, 2, 0, 0]
    with pytest.raises(StateMismatchError) as caught:
        fill({"m": {"a": full(2, 1)}}, {"m": {"a": full(2, 0), "b": full(2, 0)}}, keys="m")
    assert caught.value.missing == ("m/b",)


def test_equal_keys_of_other_types_are_told_apart() -> None:
    state = {0: full(2, 1), "0": full(2, 2), (0,): full(2, 4), None: full(2, 5)}
    into: dict[Any, Any] = {0: full(2, 0), "0": full(2, 0), (0,): full(2, 0), None: full(2, 0)}
    fill(state, into)
    assert [tensor[0].item() for tensor in into.values()] == [1, 2, 4, 5]


def test_pickled_values_need_consent_before_anything_changes() -> None:
    into: dict[str, Any] = {"fn": None, "w": torch.zeros(8)[::2]}
    matched, (captured, _) = _match({"fn": print, "w": full(4, 1)}, into, pickle_objects=True)
    storages = {index: stored(source) for index, source in enumerate(captured.sources)}
    with pytest.raises(UnsafeLoadError, match="'fn'"):
        matched.fill(storages)
    assert not into["w"].any()
    matched.fill(storages, weights_only=False)
    assert into["fn"] is print and into["w"].eq(1).all()
