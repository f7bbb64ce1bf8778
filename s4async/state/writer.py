"""Writer: what a capture accumulates, and the dispatch from a type to the function that writes it.

The encoder of a type appends tokens for the value it is given and calls back for its parts. The writer guards depth
and cycles, turns dict keys into key nodes and paths, and is the one place that refuses: by path, type and reason,
with the remedies. It knows no concrete type; ``tree`` gives it the table.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NoReturn

import torch

from s4async.errors import UnsupportedStateError
from s4async.state.document import MAX_DEPTH
from s4async.state.regions import View
from s4async.state.tags import BLOB, INT, KEY, KEYS, PICKLE, RUN, TUPLE

__all__ = ["INLINE_NBYTES", "Encoder", "Encoders", "Writer", "key_name", "printable", "type_name"]

INLINE_NBYTES = 1024  # longer byte strings, texts and arrays get a region: compressed, and read only when selected

Encoder = Callable[["Writer", Any, str], None]


class Encoders(dict[type, Encoder]):
    """The encoder of each exact type; a function of the type where there is none. Remembers nothing of users' types."""

    def __init__(self, table: Mapping[type, Encoder], other: Callable[[type], Encoder]) -> None:
        super().__init__(table)
        self._other = other

    def __missing__(self, kind: type) -> Encoder:
        return self._other(kind)


class Writer:
    """Tokens, byte strings and views of one capture. Used by one thread, once."""

    __slots__ = ("_active", "_pickle", "blobs", "encoders", "tokens", "views")

    def __init__(self, encoders: Encoders, pickle_objects: bool) -> None:
        self.tokens: list[object] = []
        self.blobs: list[bytes] = []
        self.views: list[View] = []
        self.encoders = encoders
        self._pickle = pickle_objects
        self._active: set[int] = set()  # containers on the way from the root, by identity

    def put(self, value: object, path: str) -> None:
        """Write one value."""
        self.encoders[type(value)](self, value, path)

    def enter(self, container: object, path: str) -> None:
        """Begin a container: its parts are written before ``leave``."""
        active = self._active
        if id(container) in active:
            raise UnsupportedStateError(
                f"{path!r}: the {type_name(container)} contains itself; a state is a tree: break the cycle or leave "
                "the entry out"
            )
        active.add(id(container))
        if len(active) > MAX_DEPTH:
            raise UnsupportedStateError(f"{path!r}: nested deeper than {MAX_DEPTH}")

    def leave(self, container: object) -> None:
        self._active.discard(id(container))

    def key(self, key: object, path: str) -> str:
        """Write a dict key; returns how it reads in a path."""
        kind = type(key)
        if kind is str and key.isascii():  # type: ignore[attr-defined]
            self.tokens.append(key)
            return key  # type: ignore[return-value]
        if kind is int and -(1 << 63) <= key < 1 << 64:  # type: ignore[operator]
            self.tokens += (INT, key)
            return str(key)
        name = key_name(key)
        if kind is str and name == key:
            self.tokens.append(key)
            return name
        self.tokens += (KEY, name)
        self.plain(key, path, f"key {name}")
        return name

    def plain(self, value: object, path: str, what: str) -> None:
        """Write a dict key or a set element: a value whose hash runs no code of a user's class."""
        if type(value) is tuple:
            self.enter(value, path)
            self.tokens += (TUPLE, len(value))
            for element in value:
                self.plain(element, path, what)
            self.leave(value)
            return
        mark, views, pickles, self._pickle = len(self.tokens), len(self.views), self._pickle, False
        cause: UnsupportedStateError | None = None
        try:
            self.put(value, path)
        except UnsupportedStateError as error:
            cause = error
        finally:
            self._pickle = pickles
        tag = self.tokens[mark] if cause is None else None
        if cause or len(self.views) > views or (type(tag) is int and tag not in KEYS):
            raise UnsupportedStateError(
                f"{path!r}: cannot carry the {what}: a {type_name(value)} in it. Keys and set elements may be numbers, "
                "short texts and bytes, None, enum members, dtypes, devices, and tuples of these"
            ) from cause

    def data(self, data: bytes, path: str) -> None:
        """Write a payload: in the document if it is short, else in a region."""
        if len(data) <= INLINE_NBYTES:
            self.tokens.append(BLOB)
            self.blobs.append(data)
        else:  # frombuffer wants writable memory; the copy also frees the caller's buffer
            self.run(torch.frombuffer(bytearray(data), dtype=torch.uint8), "uint8", path)

    def run(self, flat: torch.Tensor, region_dtype: str, path: str) -> None:
        """Write a payload that lies in memory: a one-dimensional contiguous ``uint8`` tensor on the host."""
        storage = flat.untyped_storage()
        offset, nbytes = int(flat.storage_offset()), flat.numel()
        self.tokens.append(RUN)
        # fmt: off
        self.views.append(View(
            path, flat.device, storage, storage.data_ptr(), offset, 1, nbytes, (nbytes,), (1,), True, "uint8",
            region_dtype,
        ))
        # fmt: on

    def unsupported(self, value: object, path: str, reason: str) -> None:
        """Pickle a value that has no encoding, if the caller opted in; else refuse it."""
        if not self._pickle:
            self.refuse(value, path, reason)
        try:
            data = pickle.dumps(value, protocol=5)
        except Exception as error:  # noqa: BLE001  # __reduce__ of anybody's class
            self.refuse(value, path, f"{reason}; and pickle cannot carry it either: {error}", error)
        self.tokens.append(PICKLE)
        self.data(data, path)

    def refuse(self, value: object, path: str, reason: str, cause: BaseException | None = None) -> NoReturn:
        """Raise ``UnsupportedStateError``."""
        raise UnsupportedStateError(
            f"{path!r}: cannot carry a {type_name(value)}: {reason}. Leave it out, put its state_dict() in its place, "
            "or pass pickle_objects=True (then load needs weights_only=False)"
        ) from cause


def type_name(value: object) -> str:
    """``module.qualname`` of the value's type, without ``builtins``."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def key_name(key: object) -> str:
    """How a dict key reads in a path: strings and ints as they are, other keys as they print."""
    return printable(str(key) if isinstance(key, (str, torch.dtype, torch.device, Enum)) else repr(key))


def printable(text: str) -> str:
    """The text with lone surrogates escaped, so that it can be written as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
