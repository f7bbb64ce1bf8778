"""NumPy: arrays, scalars, dtypes and random generators; to tokens and back.

Arrays are exact in dtype (field names, byte order, alignment, units), shape, values and C or Fortran order; other
strides come back as C order. Loaded arrays own their memory and are writable. Object arrays and subclasses of
``ndarray`` are refused. Arrays lie in regions named by the torch dtype of the same bits, so that they compress alike.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from s4async.errors import FormatError, UnsupportedError
from s4async.state import tags
from s4async.state.builder import Builder, BuildFunction
from s4async.state.document import Node
from s4async.state.dtypes import DTYPES, MAX_DIMS, MAX_SIZE
from s4async.state.writer import INLINE_NBYTES, Encoder, Writer

__all__ = ["BUILDERS", "ENCODERS", "put_dtype", "put_scalar"]

_Array = npt.NDArray[Any]
_SIMPLE = re.compile(r"[<>|][biufcmMSUV][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?|q|Q")  # as dtype.str writes them
_SAME_SIZE = "qQ" if np.dtype("q").str == np.dtype("l").str else ""  # long long is not long, though of one size
_MAX_POOL = 1024  # words; NumPy's default is 4
_BIT_GENERATORS: dict[str, type[np.random.BitGenerator]] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}


def _put_array(w: Writer, value: _Array, path: str) -> None:
    if not _is_exact(value.dtype):
        w.unsupported(value, path, f"its dtype {value.dtype} holds objects or is not NumPy's own")
        return
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    w.tokens.append(tags.ARRAY)
    put_dtype(w, value.dtype, path)
    w.tokens += ("F" if fortran else "C", len(value.shape), *value.shape)
    if value.nbytes <= INLINE_NBYTES:
        w.data(value.tobytes("F" if fortran else "C"), path)
        return
    flat = value.T if fortran else value
    if not (flat.flags.c_contiguous and flat.flags.writeable):
        flat = np.array(flat, order="C")
    w.run(torch.from_numpy(flat.reshape(-1).view(np.uint8)), _region_dtype(value.dtype), path)


def _region_dtype(dtype: np.dtype[Any]) -> str:
    known = dtype.name in DTYPES and dtype.isnative and dtype.fields is None
    return dtype.name if known else "uint8"


def put_scalar(w: Writer, value: np.generic, path: str) -> None:
    """Write a NumPy scalar of any of NumPy's own types."""
    dtype: np.dtype[Any] = value.dtype
    made: object = np.zeros((), dtype)[()]
    if not _is_exact(dtype) or type(made) is not type(value):
        w.unsupported(value, path, f"its dtype {dtype} holds objects or its type is not NumPy's own")
        return
    w.tokens.append(tags.SCALAR)
    put_dtype(w, dtype, path)
    if isinstance(value, np.str_):
        text = str.__str__(value)  # not str(value) or an array: both strip trailing zeros
        w.blobs.append(text.encode("utf-32-le", "surrogatepass"))
    else:
        w.blobs.append(bytes(value) if isinstance(value, np.bytes_) else np.asarray(value).tobytes())


def put_dtype(w: Writer, value: np.dtype[Any], path: str) -> None:
    """Write a dtype."""
    if not _is_exact(value):
        w.unsupported(value, path, "it holds objects or is not NumPy's own")
    elif value.subdtype is not None:
        base, shape = value.subdtype
        w.tokens.append(tags.SUBARRAY)
        put_dtype(w, base, path)
        w.tokens += (len(shape), *shape)
    elif value.fields is not None and value.names is not None:
        fields = [value.fields[name] for name in value.names]
        w.tokens += (tags.RECORD, len(fields), *value.names, len(fields))
        for field in fields:
            put_dtype(w, field[0], path)
        w.tokens += (len(fields), *(field[1] for field in fields), len(fields))
        for field in fields:
            w.put(field[2] if len(field) > 2 else None, path)
        w.tokens += (value.itemsize, value.isalignedstruct, value.type is np.record)
    else:
        w.tokens += (tags.DTYPE, value.char if value.char in _SAME_SIZE else value.str)


def _is_exact(dtype: np.dtype[Any]) -> bool:
    """Whether ``put_dtype`` carries everything there is to the dtype."""
    if dtype.hasobject or dtype.metadata:
        return False
    if dtype.subdtype is not None:
        return _is_exact(dtype.subdtype[0])
    if dtype.fields is not None:
        parts = dtype.fields.values()
        titled = (type(part[2]) is str for part in parts if len(part) > 2)
        return dtype.type in (np.void, np.record) and all(_is_exact(part[0]) for part in parts) and all(titled)
    return bool(_SIMPLE.fullmatch(dtype.str)) and np.dtype(dtype.str) == dtype and dtype.isbuiltin != 2


def _put_generator(w: Writer, value: np.random.Generator, path: str) -> None:
    _put_bits(w, tags.GENERATOR, value, value.bit_generator, value.bit_generator.state, path)


def _put_random_state(w: Writer, value: np.random.RandomState, path: str) -> None:
    _put_bits(w, tags.RANDOMSTATE, value, value._bit_generator, value.get_state(legacy=False), path)


def _put_bits(w: Writer, tag: int, value: object, bits: Any, state: object, path: str) -> None:
    seeds = _seeds(bits.seed_seq)
    if type(bits) is not _BIT_GENERATORS.get(type(bits).__name__) or seeds is None:
        w.unsupported(value, path, f"its bit generator is a {type(bits).__qualname__} with seeds of another kind")
        return
    w.enter(value, path)
    w.tokens += (tag, type(bits).__name__)
    w.put(seeds, path)
    w.put(state, path)
    w.leave(value)


def _seeds(seeds: Any) -> dict[str, object] | None:
    """What a seed sequence is made of; empty for a generator seeded in the old way, ``None`` if it cannot be told."""
    if seeds is None:
        return {}
    parts = {key: getattr(seeds, key, None) for key in ("entropy", "spawn_key", "pool_size", "n_children_spawned")}
    return parts if type(seeds) is np.random.SeedSequence and _are_seeds(parts) else None


def _are_seeds(parts: dict[str, Any]) -> bool:
    for part in parts.values():
        numbers = part if type(part) in (list, tuple) else (0 if part is None else part,)
        if not all(type(number) is int for number in numbers):
            return False
    return bool(0 <= parts.get("pool_size", 0) <= _MAX_POOL)


ENCODERS: dict[type, Encoder] = {
    np.ndarray: _put_array,
    np.random.Generator: _put_generator,
    np.random.RandomState: _put_random_state,
    **dict.fromkeys({np.dtype(code).type for code in "?bhilqBHILQefdgFDG"}, put_scalar),
}


def _built_dtype(b: Builder, node: Node) -> np.dtype[Any]:
    dtype = b.build(node)
    if not isinstance(dtype, np.dtype):
        raise FormatError(f"{b.path!r}: expected a dtype, found a {type(dtype).__name__}")
    return dtype


def _dtype(b: Builder, node: Node) -> np.dtype[Any]:
    text = node.args[0]
    if not _SIMPLE.fullmatch(text):
        raise FormatError(f"{b.path!r}: {text!r:.40} is no simple dtype")
    try:
        dtype: np.dtype[Any] = np.dtype(text)
    except TypeError as error:  # a long double of another machine
        raise UnsupportedError(f"{b.path!r}: this NumPy has no dtype {text!r:.40}: {error}") from error
    return dtype


def _record(b: Builder, node: Node) -> np.dtype[Any]:
    names, formats, offsets, titles, itemsize, aligned, is_record = node.args
    spec: Any = {
        "names": list(names),
        "formats": [_built_dtype(b, part) for part in formats],
        "offsets": list(offsets),
        "itemsize": itemsize,
    }
    built = [b.build(title) for title in titles]
    if any(title is not None for title in built):
        spec["titles"] = built
    dtype: np.dtype[Any] = np.dtype(spec, align=aligned)
    return np.dtype((np.record, dtype)) if is_record else dtype


def _subarray(b: Builder, node: Node) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype((_built_dtype(b, node.args[0]), node.args[1]))
    return dtype


def _array(b: Builder, node: Node) -> _Array:
    dtype, order, shape, payload = _built_dtype(b, node.args[0]), node.args[1], node.args[2], node.args[3]
    data = b.raw(payload)
    if len(shape) > MAX_DIMS or min(shape, default=0) < 0 or max(shape, default=0) > MAX_SIZE:
        raise FormatError(f"{b.path!r}: shape {shape} of an array")
    if math.prod(shape) * dtype.itemsize != len(data) or order not in ("C", "F"):
        raise FormatError(f"{b.path!r}: {len(data)} bytes for an array of shape {shape}, {dtype}, order {order!r:.10}")
    array: _Array = np.empty(shape, dtype, order=order)
    if data.size:
        flat = (array.T if order == "F" else array).reshape(-1)
        flat.view(np.uint8)[:] = data
    return array


def _scalar(b: Builder, node: Node) -> object:
    dtype, data = _built_dtype(b, node.args[0]), node.args[1]
    if dtype.type is np.str_:
        return np.str_(data.decode("utf-32-le", "surrogatepass"))
    if dtype.type is np.bytes_:
        return np.bytes_(data)
    if dtype.itemsize != len(data):
        raise FormatError(f"{b.path!r}: {len(data)} bytes for a scalar of {dtype}")
    return np.ndarray((), dtype, bytearray(data))[()]


def _bits(b: Builder, node: Node) -> tuple[np.random.BitGenerator, Any]:
    seeds, state = b.build(node.args[1]), b.build(node.args[2])
    if not isinstance(seeds, dict) or not _are_seeds(seeds) or not _is_plain(state):
        raise FormatError(f"{b.path!r}: a random generator with seeds or state of another kind")
    return _BIT_GENERATORS[node.args[0]](np.random.SeedSequence(**seeds)), state


def _is_plain(state: object) -> bool:
    """Whether NumPy can read it without calling methods of a user's class."""
    if type(state) is dict:
        return all(type(key) is str and _is_plain(part) for key, part in state.items())
    return type(state) in (str, int, float, np.ndarray)


def _generator(b: Builder, node: Node) -> np.random.Generator:
    bits, state = _bits(b, node)
    bits.state = state
    return np.random.Generator(bits)


def _random_state(b: Builder, node: Node) -> np.random.RandomState:
    bits, state = _bits(b, node)
    random_state = np.random.RandomState(bits)
    random_state.set_state(state)
    return random_state


BUILDERS: dict[int, BuildFunction] = {
    tags.ARRAY: _array,
    tags.SCALAR: _scalar,
    tags.DTYPE: _dtype,
    tags.RECORD: _record,
    tags.SUBARRAY: _subarray,
    tags.GENERATOR: _generator,
    tags.RANDOMSTATE: _random_state,
}
