"""The walk over a state: ``capture``, and what happens to a type that no table knows.

An object with ``state_dict`` and ``load_state_dict`` stands for its state dict, taken here, on the caller's thread.
A container that occurs twice becomes two equal ones; one that contains itself is refused. The tables of all other
modules meet here, and only here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from s4async.errors import S4AsyncError, UnsupportedStateError
from s4async.state import arrays, classes, containers, rebuild, tensors, values
from s4async.state.builder import PICKLED, Tables
from s4async.state.document import encode
from s4async.state.regions import Source, place
from s4async.state.writer import Encoder, Encoders, Writer, type_name

__all__ = ["BUILDERS", "ENCODERS", "Capture", "capture", "is_stateful"]

BUILDERS = Tables(
    {**values.BUILDERS, **arrays.BUILDERS, **classes.BUILDERS, **rebuild.BUILDERS, **containers.BUILDERS, **PICKLED},
    {**classes.ASSEMBLERS, **containers.ASSEMBLERS},
)


@dataclass(frozen=True, slots=True)
class Capture:
    """A state at one moment. ``skeleton`` is complete and immutable; ``sources`` name the live memory of the regions,
    in the order in which the skeleton counts them, and keep it alive."""

    skeleton: bytes
    sources: tuple[Source, ...]


def capture(obj: object, *, pickle_objects: bool = False) -> Capture:
    """Take a state apart, on the thread of the caller. Reads no tensor data, except where views with holes overlap.

    Raises ``UnsupportedStateError`` naming the path of the entry. ``pickle_objects``: pickle what has no encoding.
    """
    writer = Writer(ENCODERS, pickle_objects)
    with _no_collection():
        writer.put(obj, "")
        sources, places = place(writer.views)
        records = [
            (p.region, p.offset, v.dtype, v.shape, p.strides, v.flags)
            for v, p in zip(writer.views, places, strict=True)
        ]
        return Capture(encode(writer.tokens, writer.blobs, records), sources)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection: thousands of short-lived records would start full collections of the whole process,
    80 ms each in a training job, inside the stall. Nothing here makes cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def is_stateful(kind: type) -> bool:
    """Whether instances stand for their ``state_dict()``."""
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


def _encoder_of(kind: type) -> Encoder:
    """The encoder of a type that no table has."""
    if issubclass(kind, torch.Tensor):
        return tensors.put_subclass
    if is_stateful(kind) and not issubclass(kind, type):
        return _put_stateful
    if issubclass(kind, np.generic):
        return arrays.put_scalar
    if issubclass(kind, np.dtype):
        return arrays.put_dtype
    return classes.encoder_of(kind) or _put_unsupported


def _put_unsupported(w: Writer, value: object, path: str) -> None:
    bases = (dict, list, tuple, set, str, bytes, int, float, np.ndarray)
    base = next((base for base in bases if isinstance(value, base)), None)
    if base is not None:
        w.unsupported(value, path, f"a subclass of {base.__name__}; convert it to a plain {base.__name__}")
    elif isinstance(value, torch.Generator):
        w.unsupported(value, path, "a generator; store its get_state()")
    elif isinstance(value, type):
        w.unsupported(value, path, "classes are not carried")
    else:
        w.unsupported(value, path, "it has no encoding")


def _put_stateful(w: Writer, value: Any, path: str) -> None:
    w.enter(value, path)
    try:
        state = value.state_dict()
    except S4AsyncError:
        raise
    except Exception as error:  # the user's code
        raise UnsupportedStateError(f"{path!r}: {type_name(value)}.state_dict() failed: {error!r}") from error
    w.encoders[type(state)](w, state, path)
    w.leave(value)


ENCODERS = Encoders({**values.ENCODERS, **arrays.ENCODERS, **tensors.ENCODERS, **containers.ENCODERS}, _encoder_of)
