"""Skeleton: the description of a state, read back. Names, selection, and building from restored storages.

Made by ``decode`` from untrusted bytes; after that every region index, offset, shape and stride is known to be inside
its region. Holds no tensor data. Immutable: ``select`` returns another skeleton.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import Any, cast

import torch

from s4async.errors import StateMismatchError, UnsafeLoadError, UsageError
from s4async.frame import Region
from s4async.state import tags
from s4async.state.builder import Builder
from s4async.state.classes import lookup
from s4async.state.document import Node, Record, decode, join
from s4async.state.tree import BUILDERS
from s4async.state.writer import type_name

__all__ = ["Leaf", "Skeleton", "dtype_and_shape", "parts", "records", "walk"]

_SEQUENCES = frozenset((tags.LIST, tags.TUPLE, tags.DEQUE, tags.NAMEDTUPLE, tags.DATACLASS, tags.NAMESPACE))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf, for inspection. ``dtype`` and ``shape`` are those of tensors and arrays; ``regions`` hold its bytes."""

    path: str
    kind: str
    dtype: str | None
    shape: tuple[int, ...] | None
    regions: tuple[int, ...]

    @property
    def region(self) -> int | None:
        """The first of its regions."""
        return self.regions[0] if self.regions else None


class Skeleton:
    """The tree of a state, whole or selected."""

    def __init__(self, root: Node, regions: Sequence[Region], keys: tuple[str, ...] | None = None) -> None:
        self.root = root
        self.regions = regions
        self._keys = keys
        patterns = "|".join(translate(key) for key in keys or ()) or r"(?!)"  # which matches nothing
        self._match = None if keys is None else re.compile(patterns).match

    @classmethod
    def decode(cls, data: bytes, regions: Sequence[Region]) -> Skeleton:
        """Check and read. Raises ``FormatError`` naming the broken rule, ``UnsupportedError`` for what this build is
        too old for. Memory is bounded by a multiple of ``len(data)``; nothing is executed."""
        return cls(decode(data, regions), regions)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The path of every leaf, in order; an empty container is a leaf."""
        return tuple(path for path, _ in walk(self.root))

    @property
    def leaves(self) -> Iterator[Leaf]:
        """A description of every leaf, in order."""
        for path, node in walk(self.root):
            yield _describe(path, node)

    @cached_property
    def region_indexes(self) -> frozenset[int]:
        """The regions that the leaves need."""
        return frozenset(record.region for record in records(self.root))

    @cached_property
    def host_regions(self) -> frozenset[int]:
        """The regions that hold no tensor (arrays, byte strings, texts, pickles): a map_location need not move them."""
        tensors = frozenset(record.region for record in records(self.root, tensors_only=True))
        return self.region_indexes - tensors

    def selects(self, path: str) -> bool:
        """Whether the path, or an ancestor of it, was selected; true for every path if nothing was."""
        if self._match is None:
            return True
        ends = [i for i, letter in enumerate(path) if letter == "/"]
        return any(self._match(path[:end]) or path[:end] in (self._keys or ()) for end in (len(path), *ends))

    def select(self, keys: str | Iterable[str] | None) -> Skeleton:
        """Only the leaves whose path, or an ancestor's path, equals or ``fnmatch``-es one of the keys.

        Dicts keep the selected entries. Sequences and objects keep their length and have ``None`` in the other
        positions, so that paths stay true. Raises ``StateMismatchError`` for an exact key that selects nothing.
        """
        if keys is None:
            return self
        wanted = _texts(keys)
        chosen = Skeleton(self.root, self.regions, wanted)
        found: set[str] = set()
        root = _prune(self.root, "", wanted, chosen, found)
        missing = [key for key in wanted if key not in found and not re.search(r"[*?\[]", key)]
        if missing:
            raise StateMismatchError(f"not in the checkpoint: {', '.join(missing)}", missing=missing)
        return Skeleton(root or Node(self.root.tag, self.root.args), self.regions, wanted)

    def check_safe(self, weights_only: bool) -> None:
        """Raise ``UnsafeLoadError`` naming every pickled leaf, if ``weights_only``, and every class that is not loaded.
        ``build`` calls it; call it before anything is overwritten."""
        pickled = [path for path, node in walk(self.root) if weights_only and node.tag == tags.PICKLE]
        if pickled:
            raise UnsafeLoadError(
                f"pickled objects at {', '.join(map(repr, pickled))}: load with weights_only=False if you trust the "
                "checkpoint, since that may run any code; or leave them out with keys="
            )

        unknown = sorted({f"{module}.{name}" for module, name in _classes(self.root) if lookup(module, name) is None})
        if unknown:
            raise UnsafeLoadError(
                f"classes that are not loaded: {', '.join(unknown)}; import their modules first (loading a checkpoint "
                "imports nothing), or leave their leaves out with keys="
            )

    def check_storages(self, storages: Mapping[int, torch.UntypedStorage]) -> None:
        """Raise ``UsageError`` for a storage that cannot be its region: a map_location function can return anything."""
        for index, storage in storages.items():
            region, given = self.regions[index], cast(object, storage)
            nbytes = given.nbytes() if isinstance(given, torch.UntypedStorage) else -1
            if nbytes != region.nbytes:
                raise UsageError(
                    f"region {region.name!r}: expected an untyped storage of {region.nbytes} bytes, got a "
                    f"{type_name(given)}{f' of {nbytes}' if nbytes >= 0 else ''}; a map_location function returns the "
                    "storage it was given, moved"
                )

    def build(self, storages: Mapping[int, torch.UntypedStorage], *, weights_only: bool = True) -> Any:
        """The state. ``storages``: one per index in ``region_indexes``, filled, on their final devices; tensors are
        views of them, arrays and byte strings are copies. Raises ``UnsafeLoadError``, ``FormatError``."""
        self.check_safe(weights_only)
        self.check_storages(storages)
        with torch.inference_mode(False):  # a state outlives the caller's mode
            return Builder(BUILDERS, storages, weights_only).build(self.root)


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every leaf under a node with its path; an empty container is a leaf."""
    if node.tag not in tags.CONTAINERS or not node.children:
        if node.tag != tags.ABSENT:
            yield path, node
        return
    for name, child in zip(node.names(), node.children, strict=True):
        yield from walk(child, join(path, name))


def parts(node: Node) -> Iterator[Node]:
    """The nodes right below a node: children, and the nodes among its arguments."""
    yield from node.children
    for arg in node.args:
        if isinstance(arg, Node):
            yield arg
        elif type(arg) is tuple and arg and isinstance(arg[0], Node):
            yield from arg


def _texts(keys: object) -> tuple[str, ...]:
    """The keys, whatever a caller gave. Raises ``UsageError`` for what is no text."""
    given = (keys,) if isinstance(keys, str) or not isinstance(keys, Iterable) else tuple(keys)
    for key in given:
        if not isinstance(key, str):
            raise UsageError(f"keys={keys!r}: expected names or globs as text, got {type_name(key)}")
    return given


def _classes(root: Node) -> Iterator[tuple[str, str]]:
    """Module and qualified name of every class that building needs."""
    pending = [root]
    while pending:
        node = pending.pop()
        at = tags.CLASS_AT.get(node.tag)
        if at is not None:
            yield node.args[at], node.args[at + 1]
        pending.extend(parts(node))
        pending.extend(key for key in node.keys if isinstance(key, Node))


def records(root: Node, tensors_only: bool = False) -> Iterator[Record]:
    """The tensor records at and below a node."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.tag != tags.RUN or not tensors_only:
            yield from (arg for arg in node.args if isinstance(arg, Record))
        pending.extend(parts(node))


def _prune(node: Node, path: str, keys: tuple[str, ...], chosen: Skeleton, found: set[str]) -> Node | None:
    """The node without what was not selected; adds the exact keys met to ``found``."""
    if path in keys:
        found.add(path)
    matched = chosen._match is not None and chosen._match(path) is not None
    if (matched or path in keys) and path:
        _collect(node, path, keys, found)
        return node
    if node.tag not in tags.CONTAINERS or not node.children:
        return node if matched or path in keys else None
    kept = [
        _prune(child, join(path, name), keys, chosen, found)
        for name, child in zip(node.names(), node.children, strict=True)
    ]
    if all(child is None for child in kept):
        return None
    whole = all(child is not None for child in kept)
    if node.tag in _SEQUENCES:
        return node._replace(children=tuple([child or Node(tags.ABSENT) for child in kept]), whole=whole)
    pairs = [(key, child) for key, child in zip(node.keys, kept, strict=True) if child is not None]
    keys_kept, children = tuple([key for key, _ in pairs]), tuple([child for _, child in pairs])
    return node._replace(keys=keys_kept, children=children, whole=whole)


def _collect(node: Node, path: str, keys: tuple[str, ...], found: set[str]) -> None:
    """Note exact keys that lie below a selected node."""
    if any(key.startswith(path + "/") and key not in found for key in keys):
        for name, child in zip(node.names(), node.children, strict=True):
            below = join(path, name)
            if below in keys:
                found.add(below)
            _collect(child, below, keys, found)


def _describe(path: str, node: Node) -> Leaf:
    dtype, shape = dtype_and_shape(node)
    kind = tags.SPECS[node.tag].name if node.tag != tags.VALUE else type(node.args[0]).__name__
    if node.tag == tags.TENSOR and node.args[0].flags & tags.PARAMETER:
        kind = "parameter"
    regions = dict.fromkeys(record.region for record in records(node))
    return Leaf(path, kind, dtype, shape, tuple(regions))


def dtype_and_shape(node: Node) -> tuple[str | None, tuple[int, ...] | None]:
    """Of a tensor or array leaf; ``None`` for others and where only the class knows."""
    if node.tag == tags.TENSOR:
        return node.args[0].dtype, node.args[0].shape
    if node.tag == tags.QUANTIZED:
        return node.args[1].removeprefix("torch."), node.args[4].shape
    if node.tag in (tags.COO, tags.COMPRESSED):
        return node.args[-1].dtype, node.args[2]  # of the values
    if node.tag == tags.NESTED:
        return node.args[1].dtype, None
    if node.tag == tags.SUBCLASS:
        return dtype_and_shape(node.args[3])
    if node.tag == tags.FLATTENED:
        return dtype_and_shape(node.args[4][0])[0] if node.args[4] else None, None
    if node.tag == tags.ARRAY:
        dtype = node.args[0]
        return dtype.args[0] if dtype.tag == tags.DTYPE else "structured", node.args[2]
    return None, None
