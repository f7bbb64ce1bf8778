"""The wire: limits, hostile documents, versions. Whatever the bytes, only errors of our tree, in bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from s4async.errors import FormatError, S4AsyncError, UnsupportedError
from s4async.frame import Region
from s4async.state import Skeleton, capture, tags
from s4async.state.document import MAX_NODE_DEPTH, VERSION
from tests.state.classes_of_tests import RAN, Color, Config, Marked, Point
from tests.state.playback import regions_of

REGIONS = [Region("w", "float32", 64), Region("b", "uint8", 5000)]
W = [0, 0, "float32", [4, 4], [4, 1], 0]
B = [1, 0, "uint8", [5000], [1], 0]


def pack(tokens: list[Any], blobs: list[bytes] | None = None, records: list[Any] | None = None) -> bytes:
    return msgspec.msgpack.encode([VERSION, tokens, blobs or [], records or []])


def test_the_smallest_documents() -> None:
    assert Skeleton.decode(pack([None]), []).build({}) is None
    skeleton = Skeleton.decode(pack([tags.DICT, 1, "w", tags.TENSOR], records=[W]), REGIONS)
    assert skeleton.names == ("w",) and skeleton.region_indexes == {0}


def test_another_version_is_told_before_anything_else() -> None:
    for version in (0, VERSION + 1, -1, 1 << 40):
        data = msgspec.msgpack.encode([version, {"anything": 1}])
        with pytest.raises(UnsupportedError, match=f"version {version}, this build reads {VERSION}"):
            Skeleton.decode(data, [])


def test_unknown_names_are_of_a_newer_build() -> None:
    for data in (
        pack([4000]),
        pack([tags.TENSOR], records=[[0, 0, "float5", [1], [1], 0]]),
        pack([tags.TENSOR], records=[[0, 0, "float32", [1], [1], 1 << 20]]),
    ):
        with pytest.raises(UnsupportedError, match="unknown to this build"):
            Skeleton.decode(data, REGIONS)


_RECORDS = {
    "no such region": [2, 0, "float32", [1], [1], 0],
    "negative region": [-1, 0, "float32", [1], [1], 0],
    "negative offset": [0, -4, "float32", [1], [1], 0],
    "broken element": [0, 2, "float32", [1], [1], 0],
    "offset beyond": [0, 64, "float32", [1], [1], 0],
    "empty beyond": [0, 68, "float32", [0], [1], 0],
    "one too many": [0, 0, "float32", [17], [1], 0],
    "stride leaves": [0, 0, "float32", [2, 2], [15, 2], 0],
    "negative stride": [0, 32, "float32", [2], [-1], 0],
    "negative size": [0, 0, "float32", [-1], [1], 0],
    "huge size": [0, 0, "float32", [1 << 62], [0], 0],
    "huge product": [0, 0, "float32", [1 << 31, 1 << 31], [0, 0], 0],
    "huge stride": [0, 0, "float32", [1, 0], [1 << 62, 1], 0],
    "fewer strides": [0, 0, "float32", [2, 2], [1], 0],
    "many dimensions": [0, 0, "float32", [1] * 65, [1] * 65, 0],
    "beyond 64 bits": [0, 1 << 63, "float32", [1], [1], 0],
}


@pytest.mark.parametrize("name", _RECORDS)
def test_records_that_leave_their_region(name: str) -> None:
    with pytest.raises(FormatError, match="tensor record 0"):
        Skeleton.decode(pack([tags.TENSOR], records=[_RECORDS[name]]), REGIONS)


_DOCUMENTS: dict[str, bytes] = {
    "empty": b"",
    "not an array": msgspec.msgpack.encode({"a": 1}),
    "no columns": msgspec.msgpack.encode([]),
    "too few columns": msgspec.msgpack.encode([VERSION, []]),
    "too many columns": msgspec.msgpack.encode([VERSION, [None], [], [], []]),
    "no tokens": pack([]),
    "two trees": pack([None, None]),
    "blobs left": pack([None], [b""]),
    "records left": pack([None], [], [W]),
    "a blob missing": pack([tags.BLOB]),
    "a record missing": pack([tags.TENSOR]),
    "nested token": pack([[None]]),
    "huge count": pack([tags.LIST, 1 << 60]),
    "negative count": pack([tags.LIST, -1]),
    "bool count": pack([tags.LIST, True]),
    "count beyond": pack([tags.LIST, 3, None]),
    "sizes beyond": pack([tags.SIZE, 1 << 30]),
    "tag for a str": pack([tags.TORCH, 5]),
    "key without a name": pack([tags.DICT, 1, tags.TUPLE, 0, None]),
    "dict as key": pack([tags.DICT, 1, tags.KEY, "x", tags.DICT, 0, None]),
    "tensor as key": pack([tags.DICT, 1, tags.KEY, "x", tags.TENSOR, None], [], [W]),
    "dataclass in a set": pack([tags.SET, 1, tags.DATACLASS, "a", "b", 0]),
    "deep": pack([tags.LIST, 1] * 5000 + [None]),
    "deep keys": pack([tags.DICT, 1, tags.KEY, "x"] + [tags.TUPLE, 1] * 5000 + [None, None]),
    "deep counts": pack([tags.LIST, 10_000] * MAX_NODE_DEPTH + [None] * 20_000),
    "array claims": b"\x94\x01\xdd\xff\xff\xff\xff\x00\x90\x90",
    "array in array": b"\xdd\xff\xff\xff\xff" * 300,
    "invalid text": b"\x94\x01\x91\xa2\xff\xff\x90\x90",
}


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_hostile_documents(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            Skeleton.decode(_DOCUMENTS[name], REGIONS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 400 * len(_DOCUMENTS[name]) + 500_000


def test_names_do_not_multiply_a_long_key() -> None:
    """A long key above many entries: paths made one by one, not kept."""
    data = pack([tags.DICT, 1, "k" * 100_000, tags.LIST, 20_000] + [None] * 20_000)
    tracemalloc.start()
    skeleton = Skeleton.decode(data, [])
    assert sum(1 for _ in skeleton.leaves) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * len(data)


def _m(*tokens: Any, blobs: list[bytes] | None = None, records: list[Any] | None = None) -> bytes:
    return pack(list(tokens), blobs, records)


_VALUES: dict[str, bytes] = {  # well-formed documents whose values cannot be what they say
    "date": _m(tags.DATE, 3, 1, 2, 99),
    "date of many": _m(tags.DATE, 0),
    "device": _m(tags.DEVICE, "no such device"),
    "duplicate keys": _m(tags.DICT, 2, "a", "a", 1.0, 2.0),
    "duplicate elements": _m(tags.SET, 2, "a", "a"),
    "fraction": _m(tags.FRACTION, tags.INT, 1, tags.INT, 0),
    "big fraction": _m(tags.FRACTION, tags.BIGINT, tags.BIGINT, blobs=[b"\1" * 50_000] * 2),
    "range of text": _m(tags.RANGE, "a", "b", "c"),
    "zone": _m(tags.TIME, 5, *[0] * 5, "utc"),
    "uuid": _m(tags.UUID, blobs=[b"123"]),
    "decimal": _m(tags.DECIMAL, "one"),
    "path": _m(tags.PATH, "Path", "x"),
    "text of no payload": _m(tags.TEXT, None),
    "bad text": _m(tags.TEXT, tags.BLOB, blobs=[b"\xff"]),
    "run of floats": _m(tags.RUN, records=[W]),
    "deque": _m(tags.DEQUE, -1, 0),
    "object dtype": _m(tags.DTYPE, "|O"),
    "comma dtype": _m(tags.DTYPE, "f8,f8"),
    "wide dtype": _m(tags.SUBARRAY, tags.DTYPE, "<f8", 2, 1 << 31, 1 << 31),
    "odd record": _m(tags.RECORD, 1, "a", 0, 0, 0, 0, False, False),
    "overlapping record": _m(tags.RECORD, 1, "a", 1, tags.DTYPE, "<f8", 1, -8, 1, None, 4, False, False),
    "array of another size": _m(tags.ARRAY, tags.DTYPE, "<f8", "C", 1, 2, tags.BLOB, blobs=[b"12345678"]),
    "negative array": _m(tags.ARRAY, tags.DTYPE, "<f8", "C", 2, -1, -1, tags.BLOB, blobs=[b"12345678"]),
    "array order": _m(tags.ARRAY, tags.DTYPE, "|u1", "K", 1, 1, tags.BLOB, blobs=[b"1"]),
    "scalar size": _m(tags.SCALAR, tags.DTYPE, "<f8", blobs=[b"1"]),
    "pool": _m(tags.GENERATOR, "PCG64", tags.DICT, 1, "pool_size", tags.INT, 1 << 40, None),
    "generator state": _m(tags.GENERATOR, "PCG64", tags.DICT, 0, tags.DICT, 1, "state", "x"),
    "bit generator": _m(tags.GENERATOR, "system", tags.DICT, 0, tags.DICT, 0),
    "random state": _m(tags.RANDOM, tags.TUPLE, 3, tags.INT, 3, tags.TUPLE, 1, "x", None),
    "grad of ints": _m(tags.TENSOR, records=[[0, 0, "int32", [1], [1], tags.REQUIRES_GRAD]]),
    "parameter of ints": _m(tags.TENSOR, records=[[0, 0, "int32", [1], [1], tags.REQUIRES_GRAD | tags.PARAMETER]]),
    "coo out of range": _m(
        tags.COO, 0, False, 1, 3,
        records=[[0, 0, "int64", [1, 1], [1, 1], 0], [0, 8, "float32", [1], [1], 0]],
    ),
    "csr": _m(
        tags.COMPRESSED, 0, "torch.sparse_csr", 2, 2, 2,
        records=[[0, 0, "int64", [3], [1], 0], [0, 0, "int64", [2], [1], 0], [0, 0, "float32", [2], [1], 0]],
    ),
    "csr layout": _m(tags.COMPRESSED, 0, "torch.float32", 0, records=[W] * 3),
    "nested": _m(
        tags.NESTED, 0,
        records=[W, *[[0, 0, "int64", [1, 2], [2, 1], 0]] * 2, [0, 0, "int64", [1], [1], 0]],
    ),
    "jagged": _m(
        tags.FLATTENED, 0, "torch.nested._internal.nested_tensor", "NestedTensor", 2, "_values", "_offsets",
        2, tags.TENSOR, tags.TENSOR, tags.DICT, 2, "ragged_idx", "requires_grad", tags.INT, 1, False, None,
        records=[W, [0, 0, "int64", [3], [1], 0]],
    ),
    "quantized scale": _m(
        tags.QUANTIZED, 0, "torch.qint8", "torch.per_tensor_affine", 2, "s", "z",
        records=[[0, 0, "int8", [1], [1], 0]],
    ),
    "quantized axis": _m(
        *(tags.QUANTIZED, 0, "torch.qint8", "torch.per_channel_affine", 3),
        *(tags.TENSOR, tags.TENSOR, tags.INT, 7),
        records=[[0, 0, "float64", [1], [1], 0], [0, 0, "int64", [1], [1], 0], [0, 0, "int8", [1], [1], 0]],
    ),
    "quantized of floats": _m(
        tags.QUANTIZED, 0, "torch.qint8", "torch.per_tensor_affine", 2, 1.0, tags.INT, 0, records=[W]
    ),
    "subclass of Tensor itself": _m(tags.SUBCLASS, 0, "torch", "Tensor", tags.TENSOR, tags.DICT, 0, records=[W]),
    "fake tensor": _m(
        tags.SUBCLASS, 0, "torch._subclasses.fake_tensor", "FakeTensor", tags.TENSOR, tags.DICT, 0, records=[W]
    ),
}  # fmt: skip


def _filled() -> dict[int, torch.UntypedStorage]:
    return {i: torch.full((r.nbytes,), 77, dtype=torch.uint8).untyped_storage() for i, r in enumerate(REGIONS)}


@pytest.mark.parametrize("name", _VALUES)
def test_values_that_cannot_be(name: str) -> None:
    skeleton = Skeleton.decode(_VALUES[name], REGIONS)
    with pytest.raises(FormatError):
        skeleton.build(_filled())


def _samples() -> list[bytes]:
    x = torch.arange(12.0).reshape(3, 4)
    states: list[Any] = [
        {"a": x, "b": [x.t(), x[:, :2]], "c": {1: "x", (2, "y"): 2.5}, "s": {1, 2}, "e": Color.RED},
        {"n": np.arange(3000.0), "d": np.dtype([("a", "i4")]), "sc": np.float32(1), "r": np.random.default_rng(1)},
        [Config(1.0), Point(1), x.as_subclass(Marked), x.to_sparse(), b"x" * 3000, 2**100, None, "\ud800"],
    ]
    return [capture(state).skeleton for state in states]


SAMPLES = _samples()
SAMPLE_REGIONS = [Region(f"r{i}", "float32", 24_000) for i in range(8)]
BIG = {i: torch.zeros(r.nbytes, dtype=torch.uint8).untyped_storage() for i, r in enumerate(SAMPLE_REGIONS)}


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """A real document with some bytes changed, removed or inserted."""
    data = bytearray(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 9))] = draw(st.binary(max_size=9))
    return bytes(data)


_WORDS = (
    *("a", "torch.float32", "torch.sparse_csr", "torch.qint8", "<f8", "|u1", "cpu", "C", "PCG64", "int", "PosixPath"),
    *("tests.state.classes_of_tests", "Config", "Color", "RED", "Access", "Point", "Marked", "Wrapper", "x", "y", "lr"),
)
_TEXTS = st.sampled_from(_WORDS)
_NUMBERS = st.one_of(st.integers(-1, 4), st.sampled_from([1 << 31, 1 << 62, (1 << 64) - 1]))
_SIMPLE_VALUES = st.one_of(st.none(), st.booleans(), _TEXTS, st.floats())
_SOME_RECORDS = [
    [0, 0, "float32", [2, 2], [2, 1], 1],
    [1, 0, "uint8", [3000], [1], 0],
    [2, 8, "int64", [3], [1], 0],
    [3, 0, "int64", [2, 3], [3, 1], 0],
    [4, 0, "int8", [2, 3], [1, 2], 0],
    [5, 0, "complex64", [2], [1], tags.CONJ],
]


class _Grammar:
    """Documents that follow the table of tags, with values that need not make sense."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.tokens: list[Any] = []
        self.blobs: list[bytes] = []
        self.records: list[Any] = []

    def node(self, depth: int) -> None:
        tag = self.draw(st.sampled_from([0, *tags.SPECS]))
        if tag == 0 or depth == 0:
            self.tokens.append(self.draw(_SIMPLE_VALUES))
            return
        spec = tags.SPECS[tag]
        self.tokens.append(tag)
        for letter in spec.args:
            self.argument(letter, depth - 1)
        if spec.body:
            count = self.draw(st.integers(0, 2))
            self.tokens.append(count)
            if spec.body in ("pairs", "fields"):
                self.tokens += [self.draw(_TEXTS) for _ in range(count)]
            for _ in range(count):
                self.node(depth - 1)

    def argument(self, letter: str, depth: int) -> None:
        if letter in "NK":
            self.node(depth)
        elif letter == "b":
            self.blobs.append(self.draw(st.binary(max_size=9)))
        elif letter == "t":
            self.records.append(self.draw(st.sampled_from(_SOME_RECORDS)))
        elif letter in "ISL":
            count = self.draw(st.integers(0, 3))
            self.tokens.append(count)
            for _ in range(count):
                self.argument({"I": "i", "S": "s", "L": "N"}[letter], depth)
        else:
            kinds = {"i": _NUMBERS, "n": st.none() | _NUMBERS, "s": _TEXTS, "f": st.floats(), "y": st.booleans()}
            self.tokens.append(self.draw(kinds[letter]))


@st.composite
def _grammatical(draw: st.DrawFn) -> bytes:
    grammar = _Grammar(draw)
    grammar.node(3)
    return pack(grammar.tokens, grammar.blobs, grammar.records)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=1000)
@given(st.one_of(_mutated(), _grammatical(), _grammatical(), st.binary(max_size=60)))
def test_whatever_the_bytes(data: bytes) -> None:
    """Random, mutated and grammatical documents: decode and build, or an error of ours; no code of a class runs."""
    RAN.clear()
    try:
        skeleton = Skeleton.decode(data, SAMPLE_REGIONS)
        assert len(skeleton.names) == len(list(skeleton.leaves))
        skeleton.build({index: BIG[index] for index in skeleton.region_indexes})
    except S4AsyncError:
        pass
    assert RAN == []


def test_every_truncation() -> None:
    for sample in SAMPLES:
        for end in range(len(sample)):
            with pytest.raises(FormatError):
                Skeleton.decode(sample[:end], SAMPLE_REGIONS)


def test_the_document_is_small() -> None:
    """What the description of a tensor costs, so that it cannot grow unseen."""
    captured = capture({f"layers.{i}.attention.weight": torch.zeros(64, 64) for i in range(1000)})
    assert len(captured.skeleton) < 60_000 and len(regions_of(captured)) == 1000
