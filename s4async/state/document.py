"""The skeleton document: the flat msgpack record of a state's tree, to bytes and back. FORMAT.md, "Skeleton".

The tree is one list of tokens in preorder: a ``None``, bool, float or str token is that value, an int token is a tag,
and ``SPECS`` says what follows a tag. Byte strings lie in a second list and tensor records in a third, each taken in
order. Nothing nests on the wire, so a hostile document cannot make the parser hold more than a small multiple of its
own size. Knows tags, counts and bounds; does not know what a tag means to Python, and never builds an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from s4async.errors import FormatError, UnsupportedError
from s4async.frame import Region
from s4async.state.dtypes import DTYPES, MAX_DIMS, MAX_SIZE
from s4async.state.tags import FLAGS, FROZENSET, INT, KEY, KEYS, SPECS, TUPLE, VALUE

__all__ = ["MAX_DEPTH", "VERSION", "Node", "Record", "decode", "encode", "join"]

VERSION = 1
MAX_DEPTH = 200  # nesting of containers; below Python's recursion limit with room for the caller's own frames
MAX_NODE_DEPTH = MAX_DEPTH + 20  # with the parts of a leaf (a key, a dtype) below the deepest container
_COLUMNS = 4  # version, tokens, byte strings, tensor records

_T = TypeVar("_T")


class Record(NamedTuple):
    """Where one strided tensor lies: ``offset`` in bytes from the start of the region, strides in elements."""

    region: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    flags: int


class Node(NamedTuple):
    """One node of the tree. ``keys`` are key nodes (pairs) or names (fields), empty for items. ``whole`` is false for a
    container that a selection took something from.

    Nodes do not hold their paths: a document with one long key and many entries would make them larger than itself.
    """

    tag: int
    args: tuple[Any, ...] = ()
    keys: tuple[Node | str, ...] = ()
    children: tuple[Node, ...] = ()
    whole: bool = True

    def names(self) -> Iterator[str]:
        """The last component of each child's path: keys as they read, indices as decimals."""
        if self.keys:
            return map(_key_name, self.keys)
        return map(str, range(len(self.children)))


_Token = None | bool | int | float | str
_WireRecord = tuple[int, int, str, list[int], list[int], int]


def join(path: str, name: str) -> str:
    """The path of the entry ``name`` of the container at ``path``."""
    return f"{path}/{name}" if path else name


def encode(tokens: Sequence[object], blobs: Sequence[bytes], records: Sequence[tuple[object, ...]]) -> bytes:
    """The document's bytes."""
    return msgspec.msgpack.encode([VERSION, tokens, blobs, records])


def decode(data: bytes, regions: Sequence[Region]) -> Node:
    """The checked tree. Raises ``FormatError`` naming the rule, ``UnsupportedError`` for what this build is too old
    for: another version, an unknown tag, dtype or flag."""
    try:
        columns = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
        if not columns:
            raise FormatError("skeleton: rule 'the version comes first': the document is empty")
        version = msgspec.msgpack.decode(columns[0], type=int)
        if version != VERSION:
            raise UnsupportedError(
                f"the skeleton has version {version}, this build reads {VERSION}; upgrade s4async to read it"
            )
        if len(columns) != _COLUMNS:
            raise FormatError(f"skeleton: rule '{_COLUMNS} columns': there are {len(columns)}")
        tokens = msgspec.msgpack.decode(columns[1], type=list[_Token])
        blobs = msgspec.msgpack.decode(columns[2], type=list[bytes])
        wire = msgspec.msgpack.decode(columns[3], type=list[_WireRecord])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise FormatError(f"the skeleton breaks its schema: {error}") from error
    records = [_record(record, index, regions) for index, record in enumerate(wire)]
    return _Parser(tokens, blobs, records).parse()


def _record(wire: _WireRecord, index: int, regions: Sequence[Region]) -> Record:
    region, offset, dtype, shape, strides, flags = wire
    where = f"skeleton: tensor record {index}"
    if dtype not in DTYPES:
        raise UnsupportedError(f"{where}: dtype {dtype!r:.40} is unknown to this build; a newer s4async may read it")
    itemsize = DTYPES[dtype].itemsize
    if not 0 <= region < len(regions):
        raise FormatError(f"{where}: region {region}, there are {len(regions)}")
    if len(shape) != len(strides) or len(shape) > MAX_DIMS:
        raise FormatError(f"{where}: {len(shape)} sizes and {len(strides)} strides, the limit is {MAX_DIMS}")
    numel, reach = 1, 0
    for size, stride in zip(shape, strides, strict=True):
        if not (0 <= size <= MAX_SIZE and 0 <= stride <= MAX_SIZE):
            raise FormatError(f"{where}: size {size} and stride {stride} must lie in [0, {MAX_SIZE}]")
        numel *= size
        reach += (size - 1) * stride
    if numel > MAX_SIZE:
        raise FormatError(f"{where}: shape {shape} has more than {MAX_SIZE} elements")
    end = offset + ((reach + 1) * itemsize if numel else 0)
    if offset < 0 or offset % itemsize or end > regions[region].nbytes:
        raise FormatError(
            f"{where}: bytes [{offset}, {end}) of {dtype} leave region {regions[region].name!r} of "
            f"{regions[region].nbytes} bytes or are not whole elements"
        )
    if flags & ~FLAGS:
        raise UnsupportedError(f"{where}: flags {flags:#x} are unknown to this build; a newer s4async may read it")
    return Record(region, offset, dtype, tuple(shape), tuple(strides), flags)


class _Parser:
    """Tokens -> nodes, front to back. Every count is held against the tokens that are left."""

    def __init__(self, tokens: Sequence[_Token], blobs: Sequence[bytes], records: Sequence[Record]) -> None:
        self._tokens, self._blobs, self._records = tokens, iter(blobs), iter(records)
        self._at = self._depth = 0
        self._trail: list[str] = []  # names from the root, for messages
        self._readers: dict[str, Callable[[], object]] = {
            "i": lambda: self._typed(int),
            "n": lambda: self._typed(int, type(None)),
            "s": lambda: self._typed(str),
            "f": lambda: self._typed(float),
            "y": lambda: self._typed(bool),
            "b": lambda: self._taken(self._blobs),
            "t": lambda: self._taken(self._records),
            "I": lambda: tuple([self._typed(int) for _ in range(self._count())]),
            "S": lambda: tuple([self._typed(str) for _ in range(self._count())]),
            "N": self._node,
            "L": lambda: tuple([self._node() for _ in range(self._count())]),
            "K": self._key,
        }

    def parse(self) -> Node:
        root = self._node()
        left = (len(self._tokens) - self._at, len(list(self._blobs)), len(list(self._records)))
        if any(left):
            raise self._broken(f"rule 'nothing follows the tree': {left} tokens, byte strings, tensor records left")
        return root

    def _node(self) -> Node:
        token = self._next()
        if type(token) is not int:
            return Node(VALUE, (token,))
        spec = SPECS.get(token)
        if spec is None:
            where = "/".join(self._trail)
            raise UnsupportedError(f"{where!r}: node tag {token} is unknown to this build; a newer s4async may read it")
        if spec.args == "t":  # the commonest node by far
            return Node(token, (self._taken(self._records),))
        if self._depth >= MAX_NODE_DEPTH:
            raise self._broken(f"nested deeper than {MAX_NODE_DEPTH}")
        self._depth += 1
        args = tuple([self._readers[letter]() for letter in spec.args])
        keys: tuple[Any, ...] = ()
        names: Iterable[str] = ()
        if spec.body == "items":
            names = map(str, range(self._count()))
        elif spec.body == "pairs":
            keys = tuple([self._key() for _ in range(self._count())])
            names = map(_key_name, keys)
        elif spec.body == "fields":
            names = keys = tuple([self._typed(str) for _ in range(self._count())])
        children = [self._key() for _ in range(self._count())] if spec.body == "keys" else []
        for name in names:
            self._trail.append(name)
            children.append(self._node())
            self._trail.pop()
        self._depth -= 1
        return Node(token, args, keys, tuple(children))

    def _key(self) -> Node:
        key = self._node()
        _check_key(key)
        return key

    def _next(self) -> _Token:
        if self._at >= len(self._tokens):
            raise self._broken("the tokens end too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _typed(self, *kinds: type) -> Any:
        token = self._next()
        if type(token) not in kinds:
            raise self._broken(f"expected {kinds[0].__name__}, found {token!r:.40}")
        return token

    def _count(self) -> int:
        count: int = self._typed(int)
        left = len(self._tokens) - self._at
        if not 0 <= count <= left:
            raise self._broken(f"a count of {count}, there are {left} tokens left")
        return count

    def _taken(self, column: Iterator[_T]) -> _T:
        for item in column:
            return item
        raise self._broken("byte strings or tensor records end too early")

    def _broken(self, rule: str) -> FormatError:
        return FormatError(f"skeleton: {'/'.join(self._trail)!r}: {rule}")


def _check_key(node: Node) -> None:
    if node.tag not in KEYS:
        raise FormatError(f"skeleton: rule 'keys and set elements are plain values': found a {SPECS[node.tag].name}")
    if node.tag in (TUPLE, FROZENSET):
        for child in node.children:
            _check_key(child)


def _key_name(key: Node | str) -> str:
    """How a key reads in a path: strings as they are, ints as decimals, everything else as its KEY node says."""
    if isinstance(key, str):
        return key
    if key.tag in (INT, KEY) or (key.tag == VALUE and type(key.args[0]) is str):
        return str(key.args[0])
    raise FormatError(f"skeleton: rule 'a dict key is a str, an int or a named key': found tag {key.tag}")
