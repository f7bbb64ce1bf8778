"""Matching: what comparing a skeleton with an existing state accumulates, and the actions that fill it.

Collects the three lists of a report and, per fitting leaf, an action for later. Knows tensors and values; how
containers and stateful objects are walked is in ``into`` and ``stateful``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from s4async.state import tags
from s4async.state.builder import Builder
from s4async.state.document import Node
from s4async.state.fill import Assign, Direct, direct, direct_targets, put_tensor, put_value, tensor_fault
from s4async.state.skeleton import Skeleton, parts, records, walk
from s4async.state.tree import BUILDERS

__all__ = ["Action", "CopyTensor", "LoadReport", "Matching", "SetValue"]

Targets = Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an in-place load did not do. ``missing``: in ``into``, not in the checkpoint. ``unexpected``: in the
    checkpoint, not in ``into``. ``mismatched``: in both but unfit, with the reason. What was not loaded kept its value.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()

    def __str__(self) -> str:
        lists = (("missing", self.missing), ("unexpected", self.unexpected), ("mismatched", self.mismatched))
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in lists if names) or "everything was loaded"


class Action(Protocol):
    """One step of filling."""

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes that are built, or were restored directly."""
        ...

    def __call__(self, builder: Builder, targets: Targets) -> None: ...


@dataclass(frozen=True, slots=True)
class CopyTensor:
    """Fill a tensor, unless its memory was the region's place already."""

    node: Node
    dest: torch.Tensor
    path: str
    assign: Assign

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.node,)

    def __call__(self, builder: Builder, targets: Targets) -> None:
        if is_direct(self.node, targets):
            torch.autograd.graph.increment_version(self.dest)
        else:
            built: Any = builder.build_at(self.node, self.path)
            put_tensor(self.dest, built, self.assign)


@dataclass(frozen=True, slots=True)
class SetValue:
    """Replace a value."""

    node: Node
    dest: object
    path: str
    assign: Assign

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.node,)

    def __call__(self, builder: Builder, targets: Targets) -> None:
        put_value(self.dest, builder.build_at(self.node, self.path), self.assign)


class Matching:
    """Used by one thread, for one ``match``."""

    def __init__(self, skeleton: Skeleton, whole: bool) -> None:
        self._skeleton = skeleton
        self._whole = whole
        self._missing: list[str] = []
        self._unexpected: list[str] = []
        self._mismatched: list[str] = []
        self._direct: list[Direct] = []
        self._plain = Builder(BUILDERS, {}, weights_only=True)
        self.actions: list[Action] = []

    def report(self) -> LoadReport:
        return LoadReport(tuple(self._missing), tuple(self._unexpected), tuple(self._mismatched))

    def targets(self) -> dict[int, torch.Tensor]:
        """The direct destinations, once everything was walked."""
        users = Counter(record.region for record in records(self._skeleton.root))
        return direct_targets(self._direct, users)

    def add(self, action: Action) -> None:
        self.actions.append(action)

    def miss(self, paths: Iterable[str]) -> None:
        """Paths of ``into`` that the checkpoint lacks; those that were not asked for are not missing."""
        self._missing += [path for path in paths if self._whole or self._skeleton.selects(path)]

    def surplus(self, node: Node, path: str) -> None:
        """Leaves of the checkpoint that ``into`` lacks."""
        self._unexpected += [leaf for leaf, _ in walk(node, path)]

    def mismatch(self, path: str, reason: str) -> None:
        self._mismatched.append(f"{path or 'the state'}: {reason}")

    def fits(self, node: Node, dest: torch.Tensor, path: str, *, in_place: bool = True) -> bool:
        """Whether the leaf can fill the tensor. Notes a mismatch, or the memory if it can be filled directly."""
        if node.tag not in tags.TENSORS:
            self.mismatch(path, f"expected a tensor {dest.dtype} {tuple(dest.shape)}, got a {self.kind(node)}")
            return False
        fault = tensor_fault(node, dest)
        if fault is not None:
            self.mismatch(path, fault)
            return False
        if in_place and node.tag == tags.TENSOR:
            found = direct(node, dest, self._skeleton.regions[node.args[0].region].nbytes)
            if found is not None:
                self._direct.append(found)
        return True

    def plain(self, node: Node | str) -> Any:
        """The value of a node without tensors: a key, a dtype."""
        return node if isinstance(node, str) else self._plain.build(node)

    def kind(self, node: Node) -> str:
        """The type of a node, for messages."""
        return type(node.args[0]).__name__ if node.tag == tags.VALUE else tags.SPECS[node.tag].name

    def has_tensors(self, node: Node) -> bool:
        """Whether a tensor is at or below the node."""
        return node.tag in tags.TENSORS or any(self.has_tensors(part) for part in parts(node))

    def partial(self, node: Node) -> bool:
        """Whether something below the node was not selected."""
        return not node.whole or any(self.partial(child) for child in node.children)


def is_direct(node: Node, targets: Targets) -> bool:
    """Whether the leaf's bytes were restored into their destination."""
    return node.tag == tags.TENSOR and node.args[0].region in targets
