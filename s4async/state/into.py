"""Loading in place: match a skeleton with an existing state, then fill it.

``match`` compares and changes nothing; ``Match.fill`` changes only what was found fit. Dicts and objects are compared
by name, sequences that hold tensors by index; everything without tensors is a value and is replaced. Modules,
optimizers and other objects with ``load_state_dict`` are loaded the way they want it (``stateful``).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from s4async.errors import StateMismatchError
from s4async.state import tags
from s4async.state.builder import Builder
from s4async.state.classes import is_namedtuple
from s4async.state.document import MAX_DEPTH, Node, join
from s4async.state.fill import Assign
from s4async.state.matching import CopyTensor, LoadReport, Matching, SetValue
from s4async.state.skeleton import Skeleton, records
from s4async.state.stateful import match_stateful
from s4async.state.tree import BUILDERS, is_stateful
from s4async.state.writer import key_name, type_name

__all__ = ["Match", "match"]

_SEQUENCES = (tags.LIST, tags.TUPLE, tags.DEQUE)
_MAPS = (tags.DICT, tags.ORDERED, tags.DEFAULT, tags.PROXY)
_FIELDS = (tags.NAMEDTUPLE, tags.DATACLASS, tags.NAMESPACE)


class Match:
    """A comparison, and the plan that comes from it. ``targets``: by region index, one-dimensional ``uint8`` memory of
    ``into`` that is the region's final place: restore these regions there and give ``fill`` the others of
    ``region_indexes``, which are the regions of what fits."""

    def __init__(self, matching: Matching, skeleton: Skeleton) -> None:
        self._actions = matching.actions
        self._skeleton = skeleton
        self.report = matching.report()
        self.targets: Mapping[int, torch.Tensor] = matching.targets()
        needed = (record for action in matching.actions for node in action.nodes for record in records(node))
        self.region_indexes = frozenset(record.region for record in needed)

    def fill(self, storages: Mapping[int, torch.UntypedStorage], *, weights_only: bool = True) -> LoadReport:
        """Fill ``into`` from restored storages. Tensors keep their identity, memory and device."""
        self._skeleton.check_safe(weights_only)
        self._skeleton.check_storages(storages)
        builder = Builder(BUILDERS, storages, weights_only)
        with torch.no_grad():
            for action in self._actions:
                action(builder, self.targets)
        return self.report


def match(skeleton: Skeleton, into: object, strict: bool = True, whole: bool = True) -> Match:
    """Compare. Raises ``StateMismatchError`` with all differences if ``strict`` and there are any.

    ``whole``: everything in ``into`` is expected; otherwise only what the skeleton was selected by.
    """
    matching = Matching(skeleton, whole)
    _walk(matching, skeleton.root, into, "", None)
    report = matching.report()
    if strict and (report.missing or report.unexpected or report.mismatched):
        raise StateMismatchError(
            f"the checkpoint does not fit `into` ({report}); strict=False loads what fits",
            missing=report.missing,
            unexpected=report.unexpected,
            mismatched=report.mismatched,
        )
    return Match(matching, skeleton)


def _walk(m: Matching, node: Node, dest: Any, path: str, assign: Assign) -> None:
    if node.tag == tags.ABSENT:
        return
    if isinstance(dest, torch.Tensor):
        _tensor(m, node, dest, path, assign)
    elif is_stateful(type(dest)):
        match_stateful(m, node, dest, path)
    elif isinstance(dest, (Mapping, MappingProxyType)) and node.tag in _MAPS and not isinstance(dest, Counter):
        _map(m, node, dest, path)
    elif _field_names(dest) is not None and node.tag in _FIELDS:
        _fields(m, node, dest, path, assign)
    elif isinstance(dest, (list, tuple, deque)) and node.tag in _SEQUENCES:
        _sequence(m, node, dest, path, assign)
    else:
        _value(m, node, dest, path, assign)


def _tensor(m: Matching, node: Node, dest: torch.Tensor, path: str, assign: Assign) -> None:
    if m.fits(node, dest, path):
        m.add(CopyTensor(node, dest, path, assign))


def _map(m: Matching, node: Node, dest: Any, path: str) -> None:
    keys = [m.plain(key) for key in node.keys]
    stored: dict[object, Node] = dict(zip(keys, node.children, strict=True))
    for key, part in dest.items():
        where = join(path, key_name(key))
        child = stored.pop(key, None)
        if child is None:
            m.miss(_leaf_names(part, where))
        else:
            _walk(m, child, part, where, _setter(dest, key))
    for name, key, child in zip(node.names(), keys, node.children, strict=True):
        if key in stored:
            m.surplus(child, join(path, name))


def _setter(dest: Any, key: object) -> Assign:
    if not hasattr(type(dest), "__setitem__"):
        return None

    def assign(value: object) -> None:
        dest[key] = value

    return assign


def _sequence(m: Matching, node: Node, dest: Any, path: str, assign: Assign) -> None:
    if not m.has_tensors(node) and not _has_tensors(dest) and not m.partial(node):
        _value(m, node, dest, path, assign)
        return
    slots = list(dest)
    changes: list[int] = []
    for index, (child, part) in enumerate(zip(node.children, dest, strict=False)):
        where = join(path, str(index))
        _walk(m, child, part, where, _slot(dest, slots, index, changes) if assign or _is_mutable(dest) else None)
    for index in range(len(node.children), len(dest)):
        m.miss(_leaf_names(dest[index], join(path, str(index))))
    for index in range(len(dest), len(node.children)):
        m.surplus(node.children[index], join(path, str(index)))
    if assign is not None and not _is_mutable(dest):
        m.add(_Rebuild(dest, slots, changes, assign))


def _slot(dest: Any, slots: list[Any], index: int, changes: list[int]) -> Assign:
    def assign(value: object) -> None:
        if _is_mutable(dest):
            dest[index] = value
        slots[index] = value
        changes.append(index)

    return assign


def _is_mutable(dest: object) -> bool:
    return isinstance(dest, (list, deque))


@dataclasses.dataclass(frozen=True, slots=True)
class _Rebuild:
    """Put a new tuple in the place of the old, if an element was replaced."""

    dest: Any
    slots: list[Any]
    changes: list[int]
    assign: Any

    @property
    def nodes(self) -> tuple[()]:
        return ()

    def __call__(self, builder: Builder, targets: Mapping[int, torch.Tensor]) -> None:
        if self.changes:
            self.assign(tuple.__new__(type(self.dest), self.slots))


def _fields(m: Matching, node: Node, dest: Any, path: str, assign: Assign) -> None:
    stored = dict(zip(node.names(), node.children, strict=True))
    names = _field_names(dest) or ()
    slots = list(dest) if isinstance(dest, tuple) else []
    changes: list[int] = []
    for index, name in enumerate(names):
        part, where = getattr(dest, name), join(path, name)
        child = stored.pop(name, None)
        if child is None:
            m.miss(_leaf_names(part, where))
        elif slots:
            _walk(m, child, part, where, _slot(dest, slots, index, changes) if assign else None)
        else:
            _walk(m, child, part, where, _attribute(dest, name))
    for name, child in stored.items():
        m.surplus(child, join(path, name))
    if slots and assign is not None:
        m.add(_Rebuild(dest, slots, changes, assign))


def _attribute(dest: object, name: str) -> Assign:
    def assign(value: object) -> None:
        object.__setattr__(dest, name, value)  # frozen dataclasses too

    return assign


def _field_names(dest: object) -> tuple[str, ...] | None:
    kind: Any = type(dest)
    if is_namedtuple(kind):
        return tuple(kind._fields)
    if dataclasses.is_dataclass(kind):
        slots = [field.name for field in dataclasses.fields(kind) if hasattr(dest, field.name)]
        return tuple(dict.fromkeys([*slots, *getattr(dest, "__dict__", ())]))
    if isinstance(dest, (SimpleNamespace, argparse.Namespace)):
        return tuple(vars(dest))
    return None


def _value(m: Matching, node: Node, dest: Any, path: str, assign: Assign) -> None:
    """A leaf, or a container without tensors on either side: replaced, unless a tensor would become something else."""
    kind = m.kind(node)
    wrong = dest is not None and (
        (m.has_tensors(node) or _has_tensors(dest))
        or isinstance(dest, np.ndarray) != (node.tag == tags.ARRAY)
        or _is_container(dest) != (node.tag in tags.CONTAINERS)
    )
    if isinstance(dest, np.ndarray) and node.tag == tags.ARRAY and not wrong:
        dtype, shape = m.plain(node.args[0]), tuple(node.args[2])
        if dtype != dest.dtype or shape != dest.shape:
            m.mismatch(path, f"expected {dest.dtype} {dest.shape}, got {dtype} {shape}")
            return
        wrong = assign is None and not dest.flags.writeable
    if wrong:
        m.mismatch(path, f"expected a {type_name(dest)}, got a {kind}")
    elif assign is None and not isinstance(dest, (list, set, bytearray, np.ndarray)):
        m.mismatch(path, f"a {type_name(dest)} that nothing mutable holds cannot be replaced; give it inside a dict")
    else:
        m.add(SetValue(node, dest, path, assign))


def _is_container(dest: object) -> bool:
    return isinstance(dest, (Mapping, list, tuple, deque)) or _field_names(dest) is not None


def _parts_of(dest: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(dest, Mapping):
        yield from ((key_name(key), part) for key, part in dest.items())
    elif (names := _field_names(dest)) is not None:
        yield from ((name, getattr(dest, name)) for name in names)
    elif isinstance(dest, (list, tuple, deque)):
        yield from ((str(index), part) for index, part in enumerate(dest))


def _leaf_names(dest: Any, path: str, depth: int = 0) -> Iterator[str]:
    """The paths of everything at and below a part of ``into``."""
    if not isinstance(dest, torch.Tensor) and is_stateful(type(dest)):
        dest = dest.state_dict() if isinstance(dest, torch.nn.Module) else None
    parts = list(_parts_of(dest)) if depth < MAX_DEPTH and not isinstance(dest, torch.Tensor) else []
    if not parts:
        yield path
    for name, part in parts:
        yield from _leaf_names(part, join(path, name), depth + 1)


def _has_tensors(dest: Any, depth: int = 0) -> bool:
    if isinstance(dest, torch.Tensor) or is_stateful(type(dest)):
        return True
    return depth < MAX_DEPTH and any(_has_tensors(part, depth + 1) for _, part in _parts_of(dest))
