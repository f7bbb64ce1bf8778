"""What is refused, and how: by path, type and reason, on the caller's thread, before anything else happens."""

from __future__ import annotations

import collections
import datetime as dt
import functools
import gc
import io
import sys
import threading
import types
import weakref
import zoneinfo
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from s4async.errors import StateMismatchError, UnsafeLoadError, UnsupportedStateError
from s4async.state import Skeleton, capture
from tests.state.classes_of_tests import (
    RAN,
    Color,
    Config,
    DictLike,
    Dying,
    Frozen,
    Guarded,
    Marked,
    Opaque,
    Point,
    Slotted,
)
from tests.state.playback import assert_same, regions_of, round_trip, storages_of


def _generator() -> Any:
    yield 1


class _MyDict(dict[str, int]):
    pass


class _MyInt(int):
    pass


class _MyStr(str):
    __slots__ = ()


class _MyArray(np.ndarray[Any, Any]):
    pass


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(3)


def _local_dataclass() -> Any:
    @dataclass
    class Local:
        x: int = 1

    return Local()


def _local_enum() -> Any:
    return Enum("E", "A")


def _attributes_on_counter() -> Any:
    counter: Any = collections.Counter()
    counter.note = 1
    return counter


_REFUSED: dict[str, Any] = {
    "lambda": lambda: lambda x: x,
    "function": lambda: _generator,
    "generator": _generator,
    "lock": threading.Lock,
    "file": lambda: io.BytesIO(b"x"),
    "partial": lambda: functools.partial(print),
    "module": lambda: sys,
    "class": lambda: Color,
    "module class": lambda: torch.nn.Linear,
    "weak reference": lambda: weakref.ref(Color),
    "object": object,
    "memoryview": lambda: memoryview(b"x"),
    "dict subclass": lambda: _MyDict(a=1),
    "int subclass": lambda: _MyInt(1),
    "str subclass": lambda: _MyStr("a"),
    "chain map": collections.ChainMap,
    "struct sequence": lambda: sys.version_info,
    "torch return type": lambda: torch.max(torch.ones(2, 2), dim=0),
    "factory": lambda: defaultdict(lambda: 1),
    "counter with attributes": _attributes_on_counter,
    "zone": lambda: dt.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")),
    "big fraction": lambda: Fraction(1, 1 << 40_000),
    "object array": lambda: np.array([1, "x", None], dtype=object),
    "structured objects": lambda: np.zeros(1, [("a", object)]),
    "string dtype": lambda: np.array(["a"], dtype=np.dtypes.StringDType()),
    "dtype metadata": lambda: np.dtype("i4", metadata={"a": 1}),
    "masked array": lambda: np.ma.masked_array([1, 2], [False, True]),
    "matrix": lambda: np.zeros((2, 2)).view(np.matrix),
    "array subclass": lambda: np.zeros(3).view(_MyArray),
    "torch generator": torch.Generator,
    "storage": lambda: torch.ones(2).untyped_storage(),
    "local class": _local_dataclass,
    "local enum": lambda: next(iter(_local_enum())),
    "dying": Dying,
    "guarded": lambda: Guarded(1),
    "dict dataclass": DictLike,
    "meta": lambda: torch.empty(2, device="meta"),
    "fake": _fake,
    "opaque wrapper": Opaque,
    "slotted tensor": lambda: torch.ones(2).as_subclass(Slotted),
    "uninitialized": torch.nn.UninitializedParameter,
    "mkldnn": lambda: torch.ones(2).to_mkldnn(),
    "functional": lambda: torch._to_functional_tensor(torch.ones(2)),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_refused_by_path_type_and_reason(name: str) -> None:
    value = _REFUSED[name]()
    state = {"w": torch.zeros(2), "sched": {"groups": [{"fn": value}]}}
    with pytest.raises(UnsupportedStateError, match=r"^'sched/groups/0/fn.*': cannot carry a ") as caught:
        capture(state)
    assert type(value).__qualname__ in str(caught.value)
    assert "state_dict()" in str(caught.value) and "pickle_objects=True" in str(caught.value)
    RAN.clear()


def test_wrappers_inside_transforms_are_refused() -> None:
    def inside(tensor: torch.Tensor) -> torch.Tensor:
        with pytest.raises(UnsupportedStateError, match="'w': cannot carry"):
            capture({"w": tensor})
        return tensor

    torch.vmap(inside)(torch.ones(2, 3))


def test_distributed_tensors_are_sent_to_where_they_belong() -> None:
    kind: Any = types.new_class(
        "DTensor", (torch.Tensor,), {}, lambda ns: ns.update(__module__="torch.distributed.tensor")
    )
    with pytest.raises(UnsupportedStateError, match=r"'m/w'.*torch\.distributed\.checkpoint"):
        capture({"m": {"w": torch.ones(2).as_subclass(kind)}})


def test_cycles_are_refused_and_repetition_is_not() -> None:
    loop: list[Any] = []
    loop.append({"x": loop})
    with pytest.raises(UnsupportedStateError, match="'a/0/x': the list contains itself"):
        capture({"a": loop})
    twice = [1]
    assert round_trip([twice, twice, (), ()]) == [[1], [1], (), ()]


@pytest.mark.parametrize(
    "state",
    [
        {"s": {1, Point(1)}},
        {"s": {Color}},
        {"s": {torch.ones(1)}},
        {"s": frozenset({(1, (len,))})},
        {Point(1): 1},
        {torch.ones(1): 1},
        {(1, len): 1},
        {b"x" * 2000: 1},
    ],
    ids=str,
)
def test_keys_and_elements_are_plain_values(state: dict[Any, Any]) -> None:
    with pytest.raises(UnsupportedStateError, match=r"cannot carry the (element|key) "):
        capture(state)


def test_pickling_is_per_leaf() -> None:
    state = {
        "fn": print,
        "set": {print},
        "p": functools.partial(int, "7"),
        "w": torch.ones(2),
        "big": Plain(b"x" * 5000),
    }
    captured = capture(state, pickle_objects=True)
    kinds = {leaf.path: leaf.kind for leaf in Skeleton.decode(captured.skeleton, regions_of(captured)).leaves}
    assert kinds == {"fn": "pickle", "set": "pickle", "p": "pickle", "w": "tensor", "big": "pickle"}
    built = round_trip(state, pickle_objects=True)
    assert built["fn"] is print and built["set"] == {print} and built["p"]() == 7 and built["big"] == state["big"]
    with pytest.raises(UnsupportedStateError, match="key"):
        capture({print: 1}, pickle_objects=True)


class Plain:
    """A class that only pickle can carry."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and self.data == other.data

    __hash__ = None  # type: ignore[assignment]


def test_a_failing_state_dict_is_named() -> None:
    class Broken:
        def state_dict(self) -> None:
            raise KeyError("weights")

        def load_state_dict(self, state: object) -> None: ...

    with pytest.raises(UnsupportedStateError, match=r"'a/b': .*Broken\.state_dict\(\) failed: KeyError\('weights'\)"):
        capture({"a": {"b": Broken()}})


def test_an_object_that_answers_everything_is_no_stateful() -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            return lambda *args: self

    with pytest.raises(UnsupportedStateError, match="'x': cannot carry"):
        capture({"x": Anything()})


def test_attributes_of_ordered_dicts_are_kept() -> None:
    state: OrderedDict[str, Any] = OrderedDict(w=torch.ones(2))
    state._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    state.note = {"t": torch.zeros(1)}  # type: ignore[attr-defined]
    built = round_trip({"m": state})["m"]
    assert_same(vars(state), vars(built))
    state.bad = print  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedStateError, match="'m/bad'"):
        capture({"m": state})


def test_decimals_by_their_text() -> None:
    for text in ("NaN", "sNaN12", "-Infinity", "1E+999999999", "0.10"):
        assert str(round_trip(Decimal(text))) == text


def test_collection_goes_on_afterwards() -> None:
    assert gc.isenabled()
    with pytest.raises(UnsupportedStateError):
        capture([len, lambda: 1])
    assert gc.isenabled()
    gc.disable()
    try:
        capture([1])
        assert not gc.isenabled()
    finally:
        gc.enable()


# ---- classes by name


def _renamed(state: object, old: str, new: str) -> Any:
    """Build a state whose document says ``new`` where it said ``old``."""
    captured = capture(state)
    version, tokens, blobs, records = msgspec.msgpack.decode(captured.skeleton)
    assert old in tokens
    data = msgspec.msgpack.encode([version, [new if token == old else token for token in tokens], blobs, records])
    return Skeleton.decode(data, regions_of(captured)).build(storages_of(captured))


def test_no_code_of_a_class_runs() -> None:
    RAN.clear()
    value = Config(0.5)
    assert RAN == ["__post_init__"]
    RAN.clear()
    assert_same(value, round_trip(value))
    assert RAN == []


HERE = "tests.state.classes_of_tests"


def test_a_class_that_is_not_loaded_is_not_imported() -> None:
    with pytest.raises(UnsafeLoadError, match=r"not loaded: xml\.dom\.pulldom\.Config; import their modules first"):
        _renamed({"x": Config(1.0)}, HERE, "xml.dom.pulldom")
    assert "xml.dom.pulldom" not in sys.modules


def test_a_module_is_not_asked_for_its_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("lazy_module_of_the_tests")
    module.__getattr__ = RAN.append
    monkeypatch.setitem(sys.modules, module.__name__, module)
    RAN.clear()
    with pytest.raises(UnsafeLoadError, match="not loaded"):
        _renamed(Color.RED, HERE, module.__name__)
    assert RAN == []


@pytest.mark.parametrize(
    ("state", "old", "new", "error"),
    [
        (Config(1.0), "Config", "Marked", "is no dataclass"),
        (Config(1.0), "Config", "Opaque", "is no dataclass"),
        (Config(1.0), "Config", "DictLike", "is no dataclass"),
        (Config(1.0), "Config", "Guarded", "is no dataclass"),
        (Config(1.0), "Config", "Config.twice", "is no object class"),
        (Config(1.0), "Config", "RAN", "is no object class"),
        (Config(1.0), "Config", "Outer.Missing", "not loaded"),
        (Config(1.0), "Config", "Dying", "__del__"),
        (Color.RED, "Color", "Point", "is no Enum class"),
        (Point(1), "Point", "Color", "is no tuple class"),
        (torch.ones(1).as_subclass(Marked), "Marked", "Color", "is no Tensor class"),
        (torch.ones(1).as_subclass(Marked), "Marked", "Opaque", "is a wrapper"),
    ],
    ids=str,
)
def test_a_class_of_another_kind_is_refused(state: object, old: str, new: str, error: str) -> None:
    RAN.clear()
    with pytest.raises(UnsafeLoadError, match=error):
        _renamed(state, old, new)
    assert RAN == []


def test_a_class_that_changed_is_told() -> None:
    with pytest.raises(StateMismatchError, match="no member 'REX' any more"):
        _renamed(Color.RED, "RED", "REX")
    with pytest.raises(StateMismatchError, match=r"Point has changed: expected a named tuple of x, z"):
        _renamed(Point(1), "y", "z")
    with pytest.raises(StateMismatchError, match="no slot 'nam' any more"):
        _renamed(Frozen("n"), "name", "nam")
    assert _renamed(Config(1.0), "lr", "rate").rate == 1.0
