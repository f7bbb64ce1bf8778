"""Objects of the user's classes: dataclasses, enums and named tuples, and the finding of a class by name.

A class is recorded as module and qualified name, and looked up in modules that are already loaded, by ``vars`` alone:
nothing is imported, no module ``__getattr__`` runs. Building an instance runs none of its code either: no ``__init__``,
no property setter; a class with ``__del__`` is refused, since that would run later.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from enum import Enum, Flag
from typing import Any

from s4async.errors import FormatError, StateMismatchError, UnsafeLoadError
from s4async.state import tags
from s4async.state.builder import AssembleFunction, Builder, BuildFunction
from s4async.state.document import Node, join
from s4async.state.writer import Encoder, Writer, printable

__all__ = [
    "ASSEMBLERS",
    "BUILDERS",
    "class_name",
    "encoder_of",
    "find_class",
    "is_namedtuple",
    "lookup",
    "put_namespace",
]


def lookup(module: str, qualname: str) -> object:
    """What a loaded module has under that name, without running any of its code; ``None`` if nothing."""
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        try:
            found = vars(found).get(part)
        except TypeError:  # no __dict__, or None: there is nothing of that name
            return None
    return found


def class_name(w: Writer, value: object, kind: type, path: str) -> tuple[str, str] | None:
    """Module and qualified name of ``kind``; ``None``, with ``value`` pickled or refused, if a load cannot use it."""
    reason = ""
    if lookup(kind.__module__, kind.__qualname__) is not kind:
        reason = f"a load could not find its class as {kind.__module__}.{kind.__qualname__}; define it in a module"
    elif _has_del(kind):
        reason = "its class defines __del__"
    if reason:
        w.unsupported(value, path, reason)
        return None
    return kind.__module__, kind.__qualname__


def find_class(b: Builder, module: str, qualname: str, base: type) -> type:
    """The loaded class of that name, a subclass of ``base``. Raises ``UnsafeLoadError``."""
    found = lookup(module, qualname)
    where = f"{b.path!r}: class {module}.{qualname}"
    if found is None:
        raise UnsafeLoadError(f"{where} is not loaded; import {module} first (loading a checkpoint imports nothing)")
    if not isinstance(found, type) or not issubclass(found, base):
        raise UnsafeLoadError(f"{where} is no {base.__name__} class, which the checkpoint says it is")
    if _has_del(found):
        raise UnsafeLoadError(f"{where} defines __del__, which would run later; it cannot be built safely")
    return found


def _has_del(kind: type) -> bool:
    return any("__del__" in vars(base) for base in kind.__mro__)


def is_namedtuple(kind: type) -> bool:
    """Whether instances can be carried as a named tuple: fields, and nothing besides."""
    fields = getattr(kind, "_fields", None)
    return (
        issubclass(kind, tuple)
        and isinstance(fields, tuple)
        and all(isinstance(name, str) for name in fields)
        and not hasattr(kind, "n_sequence_fields")  # a C struct sequence, which has fields of another kind
    )


def encoder_of(kind: type) -> Encoder | None:
    """What writes instances of an enum, a named tuple or a dataclass."""
    if issubclass(kind, Enum):
        return _put_enum
    if is_namedtuple(kind):
        return _put_namedtuple
    return _put_dataclass if dataclasses.is_dataclass(kind) else None


def _put_enum(w: Writer, value: Enum, path: str) -> None:
    kind = type(value)
    name: Any = value._name_  # None for an unnamed combination
    named = kind._member_map_.get(name) is value
    if not named and not (isinstance(value, Flag) and _combines(kind) and type(value._value_) is int):
        w.unsupported(value, path, "it is no named member of its enum")
    elif found := class_name(w, value, kind, path):
        if named:
            w.tokens += (tags.ENUM, *found, name)
        else:
            w.tokens += (tags.FLAG, *found)
            w.put(value._value_, path)


def _combines(kind: Any) -> bool:
    """Whether a combination of members is made without code of the user's class."""
    owner = next(base for base in kind.__mro__ if "_missing_" in vars(base))
    return type(kind) is type(Flag) and owner is Flag


def _put_namedtuple(w: Writer, value: Any, path: str) -> None:
    kind = type(value)
    if kind.__dictoffset__ and vars(value):
        w.unsupported(value, path, "a named tuple with attributes besides its fields")
    elif found := class_name(w, value, kind, path):
        state = dict(zip(kind._fields, tuple(value), strict=True))
        _put_fields(w, value, (tags.NAMEDTUPLE, *found), state, path)


def _put_dataclass(w: Writer, value: object, path: str) -> None:
    kind = type(value)
    slots = _slots(kind)
    if slots is None or not _creatable(kind):
        w.unsupported(value, path, "a dataclass that also is a built-in type, or has descriptors as fields")
    elif found := class_name(w, value, kind, path):
        state = {name: slot.__get__(value) for name, slot in slots.items() if _is_set(value, slot)}
        if kind.__dictoffset__:
            state |= object.__getattribute__(value, "__dict__")
        _put_fields(w, value, (tags.DATACLASS, *found), state, path)


def put_namespace(w: Writer, value: object, head: tuple[object, ...], path: str) -> None:
    """Write an object that is nothing but its attributes."""
    _put_fields(w, value, head, vars(value), path)


def _put_fields(w: Writer, value: object, head: tuple[object, ...], state: dict[str, object], path: str) -> None:
    if not all(type(name) is str and printable(name) == name for name in state):
        w.unsupported(value, path, "it has attributes whose names are no plain text")
        return
    w.enter(value, path)
    w.tokens += (*head, len(state), *state)
    for name, part in state.items():
        w.encoders[type(part)](w, part, join(path, name))
    w.leave(value)


def _creatable(kind: type) -> bool:
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True


def _slots(kind: type) -> dict[str, types.MemberDescriptorType] | None:
    """The slots of a class by name; ``None`` if a field is another kind of data descriptor, whose setter is code."""
    slots: dict[str, types.MemberDescriptorType] = {}
    for base in reversed(kind.__mro__):
        for name, found in vars(base).items():
            if isinstance(found, types.MemberDescriptorType):
                slots[name] = found
            elif name in getattr(kind, "__dataclass_fields__", ()) and hasattr(type(found), "__set__"):
                return None
    return slots


def _is_set(value: object, slot: types.MemberDescriptorType) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _enum(b: Builder, node: Node) -> object:
    module, qualname, name = node.args
    kind = find_class(b, module, qualname, Enum)
    member = vars(kind)["_member_map_"].get(name)
    if member is None:
        raise StateMismatchError(f"{b.path!r}: {module}.{qualname} has no member {name!r} any more")
    return member


def _flag(b: Builder, node: Node) -> object:
    module, qualname, value = node.args
    kind = find_class(b, module, qualname, Flag)
    number = b.build(value)
    if type(number) is not int or not _combines(kind):
        raise FormatError(f"a flag of {number!r:.40}")
    return kind(number)


def _namedtuple(b: Builder, node: Node, parts: list[object]) -> object:
    module, qualname = node.args
    kind: Any = find_class(b, module, qualname, tuple)
    if not is_namedtuple(kind) or kind._fields != node.keys:
        raise StateMismatchError(
            f"{b.path!r}: {module}.{qualname} has changed: expected a named tuple of {', '.join(map(str, node.keys))}"
        )
    return tuple.__new__(kind, parts)


def _dataclass(b: Builder, node: Node, parts: list[object]) -> object:
    module, qualname = node.args
    kind = find_class(b, module, qualname, object)
    slots = _slots(kind)
    if not dataclasses.is_dataclass(kind) or slots is None or not _creatable(kind):
        raise UnsafeLoadError(f"{b.path!r}: {module}.{qualname} is no dataclass that can be built without its code")
    instance = object.__new__(kind)
    for name, value in zip(node.keys, parts, strict=True):
        if name in slots:
            slots[str(name)].__set__(instance, value)
        elif kind.__dictoffset__:
            object.__getattribute__(instance, "__dict__")[name] = value
        else:
            raise StateMismatchError(f"{b.path!r}: {module}.{qualname} has no slot {name!r} any more")
    return instance


BUILDERS: dict[int, BuildFunction] = {
    tags.ENUM: _enum,
    tags.FLAG: _flag,
}
ASSEMBLERS: dict[int, AssembleFunction] = {
    tags.NAMEDTUPLE: _namedtuple,
    tags.DATACLASS: _dataclass,
}
