"""Every kind of state: through a capture and back, exact in values, types, strides and ties."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
import sys
import uuid
import warnings
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from s4async.errors import UnsupportedStateError
from s4async.state import Skeleton, capture, regions
from s4async.state.dtypes import DTYPES
from tests.state.classes_of_tests import (
    Access,
    Bits,
    Color,
    Config,
    Counting,
    Frozen,
    Level,
    Marked,
    Mode,
    Outer,
    Pair,
    Point,
    SlottedChild,
    Wrapper,
)
from tests.state.playback import assert_same, regions_of, round_trip, storages_of

NAN = struct.unpack("d", struct.pack("Q", 0xFFF4DEADBEEF0001))[0]  # a signalling NaN with a payload


def _values() -> dict[str, Any]:
    """What is no tensor: name -> value."""
    return {
        "none": None,
        "bools": [True, False],
        "ints": [0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 7**200, -(7**200)],
        "floats": [0.0, -0.0, 1.5, math.inf, -math.inf, NAN, 5e-324],
        "complex": [complex(1, -0.0), complex(NAN, math.inf)],
        "strs": ["", "a", "é\n\0", "\ud800 lone", "𝄞", "x" * 5000, "é" * 3000, "\udcff" * 2000],
        "bytes": [b"", b"\0\xff", b"x" * 5000],
        "bytearray": [bytearray(b"ab"), bytearray(3000)],
        "tuples": ((), (1,), (1, (2, [3]))),
        "lists": [[], [[], [[]]]],
        "sets": [set(), {1, "1", 2.5, None, (1, (2,)), b"x", frozenset({3})}, frozenset({"a"})],
        "dicts": {"empty": {}, 1: "int", "1": "str"},
        "keys": {
            1.5: "f",
            (0, "a"): "t",
            (torch.bfloat16, torch.float32): "d",
            None: "n",
            b"1": "b",
            Color.RED: "e",
            torch.device("cuda:3"): "dev",
            math.inf: "inf",
            NAN: "nan",
            "\ud800": "lone",
            2**80: "big",
            -1: "neg",
            "-1": "negs",
            "é": "é",
            Path("a/b"): "path",
            ((1, 2), (3,)): "nested",
            np.int64(5): "np",
            "a/b": 1,
            "": 2,
            frozenset((1, 2)): 3,
            1j: 4,
        },
        "flags": {True: "flag", "True": "text", "true": "json"},
        "ordered": OrderedDict([("b", 1), ("a", OrderedDict())]),
        "defaultdict": [
            defaultdict(list, {"a": [1]}),
            defaultdict(None, {1: 2}),
            defaultdict(float),
            defaultdict(Counter),
        ],
        "counter": Counter({3: 1, 6: 1, "x": -2}),
        "deque": [deque([1, 2], maxlen=5), deque(), deque([[]], maxlen=None), deque([1], maxlen=1)],
        "proxy": MappingProxyType({"a": 1}),
        "namespaces": [SimpleNamespace(a=1, b=[2]), Namespace(lr=0.1, nested=Namespace(x=None))],
        "slices": [slice(None), slice(1, 10, 2), ..., range(0, 10, 3), range(2**70)],
        "torch": [torch.float32, torch.bfloat16, torch.strided, torch.sparse_coo, torch.channels_last, torch.qint8],
        "scheme": torch.per_tensor_affine,
        "devices": [torch.device("cpu"), torch.device("cuda"), torch.device("cuda:1"), torch.device("meta")],
        "sizes": [torch.Size([]), torch.Size([2, 0, 3])],
        "paths": [Path("/tmp/x"), PurePosixPath("a"), PureWindowsPath("c:\\x"), Path("\udcff")],
        "times": [
            dt.date(2024, 2, 29),
            dt.time(1, 2, 3, 4, fold=1),
            dt.datetime(2024, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001  # naive on purpose
            dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
            dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-3), "X"), fold=1),
            dt.timedelta(-1, 5, 7),
            dt.UTC,
            dt.timezone(dt.timedelta(hours=2)),
        ],
        "numbers": [uuid.UUID(int=5), Decimal("1.10"), Decimal("-0E+9"), Fraction(-3, 7)],
        "enums": [Color.RED, Color.ALSO_RED, Color.GREEN, Level.HIGH, Mode.TRAIN, Outer.Inner.X],
        "enum flags": [
            Access.READ,
            Access.BOTH,
            Access.READ | Access.RUN,
            Access(0),
            Bits.A | Bits.B,
            Bits(9),
            Bits(0),
        ],
        "dataclasses": [
            Config(0.5, [1, 2], {"k": Color.RED}),
            Frozen("n", (1,)),
            SlottedChild(0.25),
            Outer.Config(),
        ],
        "namedtuples": [Point(1, [2]), Pair("l", None), Point(Point(1), ())],
        "random": random.getstate(),
        "random.Random": [random.Random(5).getstate()],
    }


@pytest.mark.parametrize("name", _values())
def test_values(name: str) -> None:
    value = _values()[name]
    assert_same({"x": value}, round_trip({"x": value}))
    assert_same(value, round_trip(value))


def _arrays() -> dict[str, Any]:
    structured = np.dtype([("a", "<i2"), ("b", "<f8", (2,)), ("c", [("d", "S3")])])
    aligned = np.dtype({"names": ["x", "y"], "formats": ["i1", "f8"], "titles": ["tx", None]}, align=True)
    padded = np.dtype({"names": ["x"], "formats": ["<u2"], "offsets": [4], "itemsize": 16})
    big = np.arange(3000, dtype=np.float64)
    return {
        **{f"zeros {code}": np.arange(6).reshape(2, 3).astype(code) for code in "?bhilqBHILQefdgFDG"},
        "scalar": np.array(3.5),
        "empty": np.empty((0, 2)),
        "none wide": np.zeros(3, "S0"),
        "F": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "big F": np.asfortranarray(np.arange(3000).reshape(30, 100)),
        "big": big,
        "big stepped": big[::-2],
        "big transposed": big.reshape(10, 20, 15).transpose(1, 2, 0),
        "big endian": np.arange(3, dtype=">i4"),
        "bigger endian": np.arange(999, dtype=">f8"),
        "text": np.array(["ab", "c", "\0x"]),
        "bytes": np.array([b"ab", b"c"]),
        "void": np.array([b"abcd"], "V4"),
        "structured": np.array([(1, (2.5, -0.0), (b"xy",))] * 100, dtype=structured),
        "aligned": np.zeros(3, aligned),
        "padded": np.zeros(100, padded),
        "record": np.zeros(2, np.dtype((np.record, [("a", "<i4")]))),
        "dates": np.array(["2024-01-02", "NaT"], dtype="datetime64[D]"),
        "units": np.array([5], dtype="timedelta64[25us]"),
        "half": np.array([np.nan, -0.0, 6e-8], dtype=np.float16),
        "nan payload": np.array([NAN, -NAN]),
    }


@pytest.mark.parametrize("name", _arrays())
def test_arrays(name: str) -> None:
    array = _arrays()[name]
    built = round_trip({"x": array})["x"]
    assert_same(array if array.flags.owndata and array.flags.forc else np.array(array, order="K"), built)
    if array.flags.f_contiguous != array.flags.c_contiguous:
        assert built.flags.f_contiguous == array.flags.f_contiguous
    assert_same(array.dtype, round_trip(array.dtype))


def test_read_only_arrays_come_back_writable() -> None:
    array = np.arange(999.0)
    array.flags.writeable = False
    assert_same(np.arange(999.0), round_trip(array))


@pytest.mark.parametrize(
    "scalar",
    [
        *(np.dtype(code).type(1) for code in "?bhilqBHILQefdgFDG"),
        np.float64(NAN),
        np.float32(0.1),
        np.str_("a\0"),
        np.bytes_(b"a\0"),
        np.datetime64("2024-01-02T03", "h"),
        np.datetime64("NaT", "s"),
        np.timedelta64(5, "s"),
        np.void(b"abc"),
        np.zeros(1, [("a", "i4"), ("b", "f8")])[0],
    ],
    ids=lambda scalar: f"{type(scalar).__name__}",
)
def test_numpy_scalars(scalar: np.generic) -> None:
    assert_same({"x": scalar}, round_trip({"x": scalar}))


@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_numpy_generators_go_on(bits: str) -> None:
    generator = np.random.Generator(getattr(np.random, bits)(np.random.SeedSequence(5, spawn_key=(1,))))
    generator.spawn(1)
    generator.integers(0, 10, dtype=np.uint32)
    built = round_trip([generator])[0]
    assert generator.standard_normal(5).tolist() == built.standard_normal(5).tolist()
    assert generator.spawn(1)[0].random() == built.spawn(1)[0].random()


def test_other_generators_go_on() -> None:
    state, source = np.random.RandomState(3), random.Random(4)  # the older kind
    state.standard_normal(3)
    source.gauss(0, 1)
    built_state, built_source, built_tuple, built_numpy = round_trip(
        [state, source, source.getstate(), np.random.get_state()]  # noqa: NPY002
    )
    assert state.standard_normal(5).tolist() == built_state.standard_normal(5).tolist()
    assert built_tuple == source.getstate()
    assert (source.gauss(0, 1), source.random()) == (built_source.gauss(0, 1), built_source.random())
    assert built_numpy[0] == "MT19937" and built_numpy[1].dtype == np.uint32


# ---- tensors


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (5,), (2, 3)])
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name: str, shape: tuple[int, ...]) -> None:
    dtype = DTYPES[name].dtype
    generator = torch.Generator().manual_seed(1)
    nbytes = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 2 if name == "bool" else 256, (nbytes,), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype).reshape(shape)
    assert_same(tensor, round_trip({"q.w": tensor})["q.w"])


def test_odd_numbers_survive() -> None:
    words = torch.tensor([0x7FC00001, 0x7F800001, -0x80000000, 1, -1], dtype=torch.int32)
    assert_same(words.view(torch.float32), round_trip(words.view(torch.float32)))
    halves = torch.arange(-32768, 32767, dtype=torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        assert_same(halves.view(dtype), round_trip(halves.view(dtype)))


def _tensors() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch's notes that sparse, nested and quantized tensors are beta or deprecated
        return _made_tensors()


def _made_tensors() -> dict[str, Any]:
    z = torch.tensor([1 + 2j, 3 - 4j, 0 + 1j])
    leaf = torch.ones(3, requires_grad=True)
    marked = torch.arange(6.0).reshape(2, 3).as_subclass(Marked)
    marked.tag = {"scale": 0.5, "t": torch.ones(2)}  # type: ignore[attr-defined]
    marked_parameter = torch.nn.Parameter(torch.ones(2).as_subclass(Marked))
    wrapper = Wrapper(torch.ones(2, 3), torch.arange(4), {"block": (1, 2), "dtype": torch.int8})
    nested = [torch.randn(2, 3), torch.randn(4, 3)]
    return {
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "channels last": torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "stepped": torch.arange(20)[3::4],
        "column": torch.arange(20).reshape(4, 5)[:, 2],
        "stepped twice": torch.arange(120).reshape(4, 5, 6)[::2, :, ::3].permute(2, 0, 1),
        "stepped complex128": torch.randn(6, 6, dtype=torch.complex128)[::2, 1::2],
        "diagonal": torch.arange(25.0).reshape(5, 5).diagonal(),
        "flipped": torch.arange(6).flip(0),
        "expanded": torch.tensor([7.0]).expand(300, 400),
        "expanded part": torch.arange(6.0).reshape(3, 1, 2)[::2].expand(2, 5, 2),
        "windows": torch.arange(6.0).as_strided((4, 3), (1, 1)),
        "spread windows": torch.arange(20.0).as_strided((4, 3), (2, 2)),
        "odd stride of one": torch.ones(1, 5).as_strided((1, 5), (77, 1)),
        "empty strided": torch.empty(0, 5).t(),
        "requires grad": torch.ones(2, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.randn(3, 2)),
        "frozen parameter": torch.nn.Parameter(torch.randn(3), requires_grad=False),
        "int parameter": torch.nn.Parameter(torch.arange(3), requires_grad=False),
        "transposed parameter": torch.nn.Parameter(torch.randn(3, 2).t()),
        "buffer": torch.nn.Buffer(torch.ones(2)),
        "hidden buffer": torch.nn.Buffer(torch.ones(2), persistent=False),
        "not a leaf": leaf * 2,
        "view of a leaf": leaf[1:],
        "conj": z.conj(),
        "conj parameter": torch.nn.Parameter(z.conj()),
        "neg": z.conj().imag,
        "conj stepped": torch.stack([z, z]).conj()[:, ::2],
        "qint8": torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 3, torch.qint8),
        "quint8 transposed": torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 3, torch.quint8).t(),
        "qint32 scalar": torch.quantize_per_tensor(torch.tensor(1.0), 0.5, 0, torch.qint32),
        "per channel": torch.quantize_per_channel(
            torch.randn(2, 3, 2), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 2, 3]), 1, torch.quint8
        ),
        "coo": torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [2, 2, 0]]), torch.tensor([1.0, 2.0, 3.0]), (2, 3)),
        "coo coalesced": torch.eye(3).to_sparse(),
        "coo empty": torch.zeros(3, 4).to_sparse(),
        "coo hybrid": torch.sparse_coo_tensor(torch.tensor([[1, 0]]), torch.randn(2, 3), (2, 3)),
        "coo requires grad": torch.eye(3).to_sparse().requires_grad_(),
        "coo parameter": torch.nn.Parameter(torch.eye(3).to_sparse()),
        "coo complex": torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1j]), (1,)).conj(),
        "csr": torch.eye(3).to_sparse_csr(),
        "csc": torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]]).to_sparse_csc(),
        "bsr": torch.eye(4).to_sparse_bsr((2, 2)),
        "bsc": torch.eye(4).to_sparse_bsc((2, 2)),
        "csr empty": torch.zeros(2, 3).to_sparse_csr(),
        "nested": torch.nested.nested_tensor(nested),
        "nested transposed": torch.nested.nested_tensor(nested).transpose(1, 2),
        "jagged": torch.nested.nested_tensor(nested, layout=torch.jagged),
        "jagged narrow": torch.nested.narrow(
            torch.randn(2, 5, 3), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), layout=torch.jagged
        ),
        "subclass": marked,
        "subclass parameter": marked_parameter,
        "wrapper": wrapper,
        "wrapper parameter": torch.nn.Parameter(wrapper),
        "rng": torch.get_rng_state(),
        "inference": _inference(),
        "mapped": torch.from_numpy(np.arange(5.0)),
    }


HOLEY = {  # values and the order of dimensions are kept; the steps are not
    *("stepped", "column", "stepped twice", "stepped complex128", "diagonal", "expanded part", "spread windows"),
    *("neg", "conj stepped"),
}


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(3.0)


@pytest.mark.filterwarnings("ignore")  # torch's notes on sparse, nested and quantized tensors
@pytest.mark.parametrize("name", _tensors())
def test_tensors(name: str) -> None:
    tensor = _tensors()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # there are none on the way
        built = round_trip({"x": [tensor]})["x"][0]
    expected = tensor.detach().requires_grad_() if tensor.grad_fn is not None else tensor
    assert_same(expected, built)
    if tensor.layout is torch.strided and not tensor.is_nested and name not in HOLEY:
        assert built.stride() == tensor.stride()
    assert isinstance(built, torch.nn.Parameter) == isinstance(tensor, torch.nn.Parameter)
    assert isinstance(built, torch.nn.Buffer) == isinstance(tensor, torch.nn.Buffer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, lambda: torch.device("meta")])
def test_modes_of_the_caller_change_nothing(mode: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured and built inside inference mode or under another default device, used outside."""
    monkeypatch.setattr(regions, "_EMPTY", {})
    for name, tensor in _tensors().items():
        with mode():
            captured = capture({"x": tensor})
        storages = storages_of(captured)
        with mode():
            built = Skeleton.decode(captured.skeleton, regions_of(captured)).build(storages)["x"]
        assert_same(tensor.detach().requires_grad_() if tensor.grad_fn is not None else tensor, built, name)
        assert not built.is_inference()
        round_trip(tensor)


def test_loaded_storages_hold_the_region_only() -> None:
    big = torch.randn(4_000_000)
    state = {"head": big[:10], "mid": big[100:110], "step": big[::400_000], "cols": big.reshape(2000, 2000)[:, :2]}
    captured = capture(state)
    assert sum(source.region.nbytes for source in captured.sources) < 20_000
    built = round_trip(state)
    for name, tensor in state.items():
        assert torch.equal(built[name], tensor)
        assert built[name].untyped_storage().nbytes() <= max(4096, tensor.numel() * 4)


# ---- objects with a state dict


def test_objects_stand_for_their_state_dict() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Embedding(4, 3))
    optimizer = torch.optim.AdamW(model[0].parameters(), amsgrad=True)
    model[0](torch.ones(2, 3)).sum().backward()
    optimizer.step()
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
        torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6]),
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10),
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
    ]
    scaler = torch.amp.GradScaler("cpu")
    state = {"m": model, "o": optimizer, "s": schedulers, "g": scaler, "nested": {"c": [Counting(4)]}}
    expected = {
        "m": model.state_dict(),
        "o": optimizer.state_dict(),
        "s": [scheduler.state_dict() for scheduler in schedulers],
        "g": scaler.state_dict(),
        "nested": {"c": [Counting(4).state_dict()]},
    }
    built = round_trip(state)
    assert_same(expected, built)
    assert built["m"]._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    assert built["s"][1]["milestones"] == Counter({3: 1, 6: 1})
    assert_same(model.state_dict(), round_trip(model))
    assert_same(Counting(2).state_dict(), round_trip(Counting(2)))


def test_a_skeleton_does_not_change_with_the_object() -> None:
    def make() -> dict[str, Any]:
        return {"meta": {"step": 1, "hist": [1], "nd": {"x": {}}}, "a": np.zeros(3), "b": bytearray(b"x")}

    state = make()
    captured = capture(state)
    before = bytes(captured.skeleton)
    state["meta"]["hist"].append(2)
    state["meta"]["nd"]["x"]["y"] = 1
    state["a"][:] = 7
    state["b"] += b"y"
    state["late"] = 1
    assert captured.skeleton == before == capture(make()).skeleton


def test_a_container_twice_becomes_two() -> None:
    shared = [torch.ones(2)]
    built = round_trip({"a": shared, "b": shared})
    assert built["a"] is not built["b"]
    assert built["a"][0].data_ptr() == built["b"][0].data_ptr()


class _Nested:
    """An object whose state dict is one level deeper."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def state_dict(self) -> Any:
        return self.inner

    def load_state_dict(self, state: Any) -> None:
        self.inner = state


_NESTS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"k": inner},
    "ordered": lambda inner: OrderedDict(k=inner),
    "dataclass": lambda inner: Frozen("n", inner),
    "namedtuple": lambda inner: Point(inner),
    "namespace": lambda inner: Namespace(k=inner),
    "stateful": _Nested,
}


@pytest.mark.parametrize("kind", _NESTS)
def test_nesting_up_to_the_limit(kind: str) -> None:
    """Within Python's own limit, with room for the caller's frames."""
    state: Any = 1
    for _ in range(200):
        state = _NESTS[kind](state)
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(850)
        built = round_trip(state)
    finally:
        sys.setrecursionlimit(limit)
    assert built == 1 if kind == "stateful" else type(built) is type(state)


@pytest.mark.parametrize("kind", _NESTS)
def test_deeper_nesting_is_refused(kind: str) -> None:
    state: Any = 1
    for _ in range(201):
        state = _NESTS[kind](state)
    with pytest.raises(UnsupportedStateError, match="deeper than 200"):
        capture(state)
