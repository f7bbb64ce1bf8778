"""The node tags of a skeleton, and what follows each. The table of FORMAT.md, "Skeleton", as data.

A tag once released keeps its number and its meaning; new ones are added at the end. Knows nothing of Python's objects.
"""

from __future__ import annotations

from typing import Final, NamedTuple

REQUIRES_GRAD, PARAMETER, CONJ, NEG, BUFFER, PERSISTENT = (1 << bit for bit in range(6))
FLAGS = (1 << 6) - 1

ABSENT: Final = -2  # a position of a sequence that was not selected; never on the wire
VALUE: Final = -1  # a token that is its own value; never on the wire as a tag

# fmt: off
(INT, BIGINT, COMPLEX, TEXT, BLOB, RUN, BYTEARRAY, ELLIPSIS, SLICE, RANGE, KEY,
 TORCH, DEVICE, SIZE, PATH, DATE, TIME, DATETIME, TIMEDELTA, TIMEZONE, UUID, DECIMAL, FRACTION, ENUM, FLAG, PICKLE,
 SET, FROZENSET, LIST, TUPLE, DEQUE, DICT, ORDERED, DEFAULT, COUNTER, PROXY, NAMEDTUPLE, DATACLASS, NAMESPACE,
 TENSOR, QUANTIZED, COO, COMPRESSED, NESTED, SUBCLASS, FLATTENED,
 ARRAY, SCALAR, DTYPE, RECORD, SUBARRAY, GENERATOR, RANDOMSTATE, RANDOM) = range(1, 55)
# fmt: on


class Spec(NamedTuple):
    """What follows a tag. ``args``, one letter each: i int, n int or None, s str, f float, y bool, b the next byte
    string, t the next tensor record, I count and ints, S count and strs, N node, L count and nodes, K key node.
    ``body``: "" or a count and that many items (nodes) or keys (key nodes); for pairs and fields the key nodes or names
    come first, then as many nodes."""

    name: str
    args: str = ""
    body: str = ""


SPECS: dict[int, Spec] = {
    INT: Spec("int", "i"),
    BIGINT: Spec("int", "b"),
    COMPLEX: Spec("complex", "ff"),
    TEXT: Spec("str", "N"),
    BLOB: Spec("bytes", "b"),
    RUN: Spec("bytes", "t"),
    BYTEARRAY: Spec("bytearray", "N"),
    ELLIPSIS: Spec("ellipsis"),
    SLICE: Spec("slice", "NNN"),
    RANGE: Spec("range", "NNN"),
    KEY: Spec("key", "sK"),
    TORCH: Spec("torch constant", "s"),
    DEVICE: Spec("torch.device", "s"),
    SIZE: Spec("torch.Size", "I"),
    PATH: Spec("path", "sN"),
    DATE: Spec("date", "I"),
    TIME: Spec("time", "IN"),
    DATETIME: Spec("datetime", "IN"),
    TIMEDELTA: Spec("timedelta", "I"),
    TIMEZONE: Spec("timezone", "NN"),
    UUID: Spec("uuid", "b"),
    DECIMAL: Spec("Decimal", "s"),
    FRACTION: Spec("Fraction", "NN"),
    ENUM: Spec("enum", "sss"),
    FLAG: Spec("flag", "ssN"),
    PICKLE: Spec("pickle", "N"),
    SET: Spec("set", "", "keys"),
    FROZENSET: Spec("frozenset", "", "keys"),
    LIST: Spec("list", "", "items"),
    TUPLE: Spec("tuple", "", "items"),
    DEQUE: Spec("deque", "n", "items"),
    DICT: Spec("dict", "", "pairs"),
    ORDERED: Spec("OrderedDict", "N", "pairs"),
    DEFAULT: Spec("defaultdict", "s", "pairs"),
    COUNTER: Spec("Counter", "", "pairs"),
    PROXY: Spec("mappingproxy", "", "pairs"),
    NAMEDTUPLE: Spec("namedtuple", "ss", "fields"),
    DATACLASS: Spec("dataclass", "ss", "fields"),
    NAMESPACE: Spec("namespace", "s", "fields"),
    TENSOR: Spec("tensor", "t"),
    QUANTIZED: Spec("quantized tensor", "issLt"),
    COO: Spec("sparse tensor", "iyItt"),
    COMPRESSED: Spec("sparse tensor", "isIttt"),
    NESTED: Spec("nested tensor", "itttt"),
    SUBCLASS: Spec("tensor subclass", "issNN"),
    FLATTENED: Spec("tensor subclass", "issSLNN"),
    ARRAY: Spec("ndarray", "NsIN"),
    SCALAR: Spec("numpy scalar", "Nb"),
    DTYPE: Spec("numpy dtype", "s"),
    RECORD: Spec("numpy dtype", "SLILiyy"),
    SUBARRAY: Spec("numpy dtype", "NI"),
    GENERATOR: Spec("numpy generator", "sNN"),
    RANDOMSTATE: Spec("numpy generator", "sNN"),
    RANDOM: Spec("random.Random", "N"),
}
CONTAINERS = frozenset(tag for tag, spec in SPECS.items() if spec.body in ("items", "pairs", "fields"))
TENSORS = frozenset((TENSOR, QUANTIZED, COO, COMPRESSED, NESTED, SUBCLASS, FLATTENED))
# What may be a dict key or a set element: hashing these runs no code of a class that the document names.
KEYS = frozenset(
    {VALUE, INT, BIGINT, COMPLEX, TEXT, BLOB, ELLIPSIS, RANGE, KEY, TORCH, DEVICE, SIZE, PATH, DATE, TIME, DATETIME}
    | {TIMEDELTA, TIMEZONE, UUID, DECIMAL, FRACTION, ENUM, FLAG, FROZENSET, TUPLE, SCALAR, DTYPE, RECORD, SUBARRAY}
)

CLASS_AT = {ENUM: 0, FLAG: 0, NAMEDTUPLE: 0, DATACLASS: 0, SUBCLASS: 1, FLATTENED: 1}
"""Nodes that name a class of the caller's: where their arguments have its module, the qualified name following."""
