"""Containers: dicts, sequences, sets, namespaces and ``random.Random``; to tokens and back.

Types, key types and key order are exact, ``default_factory`` (of a known set), ``maxlen`` and the attributes of an
``OrderedDict`` included. Knows nothing of tensors: parts go through the writer and the builder.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

from s4async.errors import FormatError, UnsupportedError, UnsupportedStateError
from s4async.state import tags
from s4async.state.builder import AssembleFunction, Builder, BuildFunction
from s4async.state.classes import put_namespace
from s4async.state.document import Node
from s4async.state.writer import Encoder, Writer

__all__ = ["ASSEMBLERS", "BUILDERS", "ENCODERS"]

_FACTORIES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, list, dict, set, tuple, frozenset, OrderedDict, Counter, deque)
}
_NAMESPACES: dict[str, type] = {"types.SimpleNamespace": SimpleNamespace, "argparse.Namespace": argparse.Namespace}


def _put_pairs(w: Writer, value: Mapping[Any, object], path: str) -> None:
    w.enter(value, path)
    items = list(value.items())
    w.tokens.append(len(items))
    names = [w.key(key, path) for key, _ in items]
    prefix = path + "/" if path else ""
    encoders = w.encoders  # not w.put: one Python frame less per level of nesting
    for name, (_, part) in zip(names, items, strict=True):
        encoders[type(part)](w, part, prefix + name)
    w.leave(value)


def _put_dict(w: Writer, value: dict[Any, object], path: str) -> None:
    w.tokens.append(tags.DICT)
    _put_pairs(w, value, path)


def _put_ordered(w: Writer, value: OrderedDict[Any, object], path: str) -> None:
    w.tokens.append(tags.ORDERED)
    # A module's state dict has its versions in an attribute.
    w.put(vars(value) or None, path)
    _put_pairs(w, value, path)


def _put_default(w: Writer, value: defaultdict[Any, object], path: str) -> None:
    factory: Any = value.default_factory
    name = "" if factory is None else getattr(factory, "__name__", "")
    if factory is not None and _FACTORIES.get(name) is not factory:
        w.unsupported(value, path, f"its default factory {factory!r} is none of {', '.join(_FACTORIES)}")
        return
    w.tokens += (tags.DEFAULT, name)
    _put_pairs(w, value, path)


def _put_counter(w: Writer, value: Counter[Any], path: str) -> None:
    if vars(value):
        w.unsupported(value, path, "a Counter with attributes")
        return
    w.tokens.append(tags.COUNTER)
    _put_pairs(w, value, path)


def _put_proxy(w: Writer, value: MappingProxyType[Any, object], path: str) -> None:
    w.tokens.append(tags.PROXY)
    _put_pairs(w, value, path)


def _put_items(w: Writer, value: Iterable[object], head: tuple[object, ...], path: str) -> None:
    w.enter(value, path)
    items = list(value)
    w.tokens += (*head, len(items))
    prefix = path + "/" if path else ""
    encoders = w.encoders
    for index, part in enumerate(items):
        encoders[type(part)](w, part, f"{prefix}{index}")
    w.leave(value)


def _put_list(w: Writer, value: list[object], path: str) -> None:
    _put_items(w, value, (tags.LIST,), path)


def _put_tuple(w: Writer, value: tuple[object, ...], path: str) -> None:
    _put_items(w, value, (tags.TUPLE,), path)


def _put_deque(w: Writer, value: deque[object], path: str) -> None:
    _put_items(w, value, (tags.DEQUE, value.maxlen), path)


def _put_set(w: Writer, value: set[object] | frozenset[object], path: str) -> None:
    mark = len(w.tokens), len(w.blobs), len(w.views)
    w.enter(value, path)
    try:
        w.tokens += (tags.SET if type(value) is set else tags.FROZENSET, len(value))
        for element in value:
            w.plain(element, path, f"element {element!r:.40}")
    except UnsupportedStateError as error:
        del w.tokens[mark[0] :], w.blobs[mark[1] :], w.views[mark[2] :]
        w.unsupported(value, path, str(error))
    w.leave(value)


def _put_simple_namespace(w: Writer, value: SimpleNamespace, path: str) -> None:
    put_namespace(w, value, (tags.NAMESPACE, "types.SimpleNamespace"), path)


def _put_argparse_namespace(w: Writer, value: argparse.Namespace, path: str) -> None:
    put_namespace(w, value, (tags.NAMESPACE, "argparse.Namespace"), path)


def _put_random(w: Writer, value: random.Random, path: str) -> None:
    w.tokens.append(tags.RANDOM)
    w.put(value.getstate(), path)


ENCODERS: dict[type, Encoder] = {
    dict: _put_dict,
    OrderedDict: _put_ordered,
    defaultdict: _put_default,
    Counter: _put_counter,
    MappingProxyType: _put_proxy,
    list: _put_list,
    tuple: _put_tuple,
    deque: _put_deque,
    set: _put_set,
    frozenset: _put_set,
    SimpleNamespace: _put_simple_namespace,
    argparse.Namespace: _put_argparse_namespace,
    random.Random: _put_random,
}


def _dict(b: Builder, node: Node, parts: list[object]) -> object:
    return _filled(b, node, parts, {})


def _filled(b: Builder, node: Node, parts: list[object], target: Any) -> Any:
    for key, part in zip(node.keys, parts, strict=True):
        target[b.build(key) if isinstance(key, Node) else key] = part
    if len(target) != len(node.keys):
        raise FormatError(f"{b.path!r}: rule 'keys are distinct'")
    return target


def _ordered(b: Builder, node: Node, parts: list[object]) -> object:
    built: OrderedDict[object, object] = _filled(b, node, parts, OrderedDict())
    attributes = b.build(node.args[0])
    if attributes is not None:
        if type(attributes) is not dict:
            raise FormatError(f"{b.path!r}: attributes that are no dict")
        vars(built).update(attributes)
    return built


def _default(b: Builder, node: Node, parts: list[object]) -> object:
    name = node.args[0]
    if name and name not in _FACTORIES:
        raise UnsupportedError(f"{b.path!r}: default factory {name!r:.40} is unknown to this build")
    return _filled(b, node, parts, defaultdict(_FACTORIES.get(name)))


def _set(b: Builder, node: Node, parts: list[object]) -> object:
    built = set(parts)
    if len(built) != len(parts):
        raise FormatError(f"{b.path!r}: rule 'elements are distinct'")
    return built if node.tag == tags.SET else frozenset(built)


def _namespace(b: Builder, node: Node, parts: list[object]) -> object:
    kind = _NAMESPACES.get(node.args[0])
    if kind is None:
        raise UnsupportedError(f"{b.path!r}: namespace {node.args[0]!r:.40} is unknown to this build")
    built = kind()
    vars(built).update(zip(node.keys, parts, strict=True))
    return built


def _random(b: Builder, node: Node) -> random.Random:
    state: Any = b.build(node.args[0])
    version, numbers, gauss = state
    if not all(type(n) is int for n in numbers) or type(gauss) not in (type(None), float):
        raise FormatError(f"{b.path!r}: a random state of something that is no number")
    built = random.Random(0)  # noqa: S311  # it gets the stored state
    built.setstate((version, numbers, gauss))
    return built


BUILDERS: dict[int, BuildFunction] = {
    tags.ABSENT: lambda b, node: None,
    tags.RANDOM: _random,
}
ASSEMBLERS: dict[int, AssembleFunction] = {
    tags.DICT: _dict,
    tags.ORDERED: _ordered,
    tags.DEFAULT: _default,
    tags.COUNTER: lambda b, node, parts: _filled(b, node, parts, Counter()),
    tags.PROXY: lambda b, node, parts: MappingProxyType(_filled(b, node, parts, {})),
    tags.LIST: lambda b, node, parts: parts,
    tags.TUPLE: lambda b, node, parts: tuple(parts),
    tags.DEQUE: lambda b, node, parts: deque(parts, node.args[0]),
    tags.SET: _set,
    tags.FROZENSET: _set,
    tags.NAMESPACE: _namespace,
}
