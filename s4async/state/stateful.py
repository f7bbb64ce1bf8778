"""Objects with ``load_state_dict``, loaded in place: modules, optimizers, and everything else.

A module is compared entry by entry with its own state dict, and its tensors can be restored without a second copy.
``Optimizer.load_state_dict`` casts state to the dtype of the parameter; that is undone, and state that exists already
keeps its identity. Others (schedulers, scalers) are opaque: they are given their state dict.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from s4async.errors import S4AsyncError, StateMismatchError
from s4async.state import tags
from s4async.state.builder import Builder
from s4async.state.document import Node, join
from s4async.state.fill import copy_bits
from s4async.state.matching import Matching, Targets, is_direct
from s4async.state.writer import type_name

__all__ = ["match_stateful"]

_MAPS = (tags.DICT, tags.ORDERED)
_LAZY = (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)  # loading gives these their shape


def match_stateful(m: Matching, node: Node, dest: Any, path: str) -> None:
    """Compare with one object; adds the action that loads it."""
    if isinstance(dest, torch.nn.Module) and node.tag in _MAPS:
        _match_module(m, node, dest, path)
    elif isinstance(dest, torch.nn.Module):
        m.mismatch(path, f"expected the state dict of a {type_name(dest)}, got a {m.kind(node)}")
    elif m.partial(node):
        m.mismatch(path, f"a {type_name(dest)} cannot take a selected part of its state")
    elif isinstance(dest, torch.optim.Optimizer) and _is_plain_optimizer(dest):
        _match_optimizer(m, node, dest, path)
    else:
        m.add(_LoadObject(node, dest, path))


def _load(dest: Any, state: object, path: str, **options: bool) -> None:
    try:
        dest.load_state_dict(state, **options)
    except S4AsyncError:
        raise
    except Exception as error:  # the user's code
        raise StateMismatchError(f"{path!r}: {type_name(dest)}.load_state_dict() failed: {error}") from error


@dataclass(frozen=True, slots=True)
class _LoadObject:
    node: Node
    dest: Any
    path: str

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.node,)

    def __call__(self, builder: Builder, targets: Targets) -> None:
        _load(self.dest, builder.build_at(self.node, self.path), self.path)


def _match_module(m: Matching, node: Node, module: torch.nn.Module, path: str) -> None:
    state = module.state_dict()
    stored = dict(zip(node.names(), node.children, strict=True))
    in_place = _loads_plainly(module)
    entries: list[tuple[str, Node, Any]] = []
    for name, value in state.items():
        child = stored.pop(name, None)
        where = join(path, name)
        if child is None:
            m.miss([where])
        elif not isinstance(value, torch.Tensor) or isinstance(value, _LAZY):
            entries.append((name, child, None))
        elif m.fits(child, value, where, in_place=in_place):
            entries.append((name, child, value))
    for name, child in stored.items():
        m.surplus(child, join(path, name))
    m.add(_LoadModule(node, module, path, entries))


def _loads_plainly(module: torch.nn.Module) -> bool:
    """Whether loading copies entries to where they are; a user's hook may want to see them first."""
    return all(
        type(part)._load_from_state_dict.__module__.startswith("torch.nn.") and not part._load_state_dict_pre_hooks
        for part in module.modules()
    )


@dataclass(frozen=True, slots=True)
class _LoadModule:
    """``entries``: name, leaf, and the module's own tensor, or ``None`` where only the module knows."""

    node: Node
    module: torch.nn.Module
    path: str
    entries: list[tuple[str, Node, Any]]

    @property
    def nodes(self) -> list[Node]:
        return [child for _, child, _ in self.entries]

    def __call__(self, builder: Builder, targets: Targets) -> None:
        state: OrderedDict[str, Any] = OrderedDict()
        for name, child, tensor in self.entries:
            if tensor is not None and is_direct(child, targets):
                state[name] = tensor  # filled already; loading it onto itself costs nothing and keeps hooks working
            else:
                state[name] = builder.build_at(child, join(self.path, name))
        attributes = builder.build_at(self.node.args[0], self.path) if self.node.tag == tags.ORDERED else None
        if isinstance(attributes, dict) and "_metadata" in attributes:
            state._metadata = attributes["_metadata"]  # type: ignore[attr-defined]
        _load(self.module, state, self.path, strict=False)  # names were compared


def _is_plain_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict


def _match_optimizer(m: Matching, node: Node, optimizer: torch.optim.Optimizer, path: str) -> None:
    stored = dict(zip(node.names(), node.children, strict=True)) if node.tag in _MAPS else {}
    if not {"state", "param_groups"} <= stored.keys():
        m.mismatch(path, f"expected the state dict of a {type_name(optimizer)}, got a {m.kind(node)}")
        return
    expected = [len(group["params"]) for group in optimizer.param_groups]
    members = [_entries(m, group).get("params", Node(tags.LIST)).children for group in stored["param_groups"].children]
    if [len(group) for group in members] != expected:
        m.mismatch(
            join(path, "param_groups"),
            f"expected groups of {expected} parameters, got {[len(group) for group in members]}",
        )
        return
    states = _entries(m, stored["state"])
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, param in zip(chain.from_iterable(members), params, strict=True):
        wanted = _entries(m, states.get(m.plain(number), Node(tags.DICT)))
        for key, value in optimizer.state.get(param, {}).items():
            record = wanted[key].args[0] if key in wanted and wanted[key].tag == tags.TENSOR else None
            if record and isinstance(value, torch.Tensor) and tuple(value.shape) != record.shape:
                where = join(path, f"state/{m.plain(number)}/{key}")
                m.mismatch(where, f"expected {tuple(value.shape)}, got {record.shape}")
                return
    m.add(_LoadOptimizer(node, optimizer, path))


def _entries(m: Matching, node: Node) -> dict[object, Node]:
    if node.tag not in (*_MAPS, tags.DEFAULT):
        return {}
    return {m.plain(key): child for key, child in zip(node.keys, node.children, strict=True)}


@dataclass(frozen=True, slots=True)
class _LoadOptimizer:
    node: Node
    optimizer: torch.optim.Optimizer
    path: str

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.node,)

    def __call__(self, builder: Builder, targets: Targets) -> None:
        optimizer, built = self.optimizer, builder.build_at(self.node, self.path)
        before = {param: dict(state) for param, state in optimizer.state.items()}
        _load(optimizer, built, self.path)
        numbers = chain.from_iterable(group["params"] for group in built["param_groups"])  # type: ignore[index]
        params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        for number, param in zip(numbers, params, strict=True):
            stored = built["state"].get(number, {})  # type: ignore[index]
            _restore_exactly(optimizer.state.get(param, {}), stored, before.get(param, {}))


def _restore_exactly(state: Any, stored: Mapping[Any, Any], before: Mapping[Any, Any]) -> None:
    """Give the state of one parameter the stored bits, in the tensors that it had before where they fit."""
    for key, value in stored.items():
        loaded = state.get(key)
        if type(value) is not torch.Tensor or type(loaded) is not torch.Tensor or value.layout is not torch.strided:
            continue
        exact, old = value.to(loaded.device), before.get(key)
        if type(old) is torch.Tensor and (old.dtype, old.shape, old.device) == (exact.dtype, exact.shape, exact.device):
            copy_bits(old, exact)
            exact = old
        state[key] = exact
