"""Plain values: numbers, texts, bytes, torch constants, paths and times; to tokens and back.

Only exact types: a subclass of ``int`` or ``str`` is somebody else's class and is refused. Every bit of a float, every
surrogate of a text and every digit of an int survives. Building runs constructors of the standard library alone.
"""

from __future__ import annotations

import datetime as dt
import pathlib
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch

from s4async.errors import FormatError, UnsupportedError
from s4async.state import tags
from s4async.state.builder import Builder, BuildFunction
from s4async.state.document import Node
from s4async.state.writer import INLINE_NBYTES, Encoder, Writer

__all__ = ["BUILDERS", "ENCODERS", "TORCH_CONSTANTS"]

_MAX_FRACTION_BITS = 1 << 15  # reducing a fraction takes time quadratic in this
_PATHS = {
    kind.__name__: kind
    for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
}
TORCH_CONSTANTS: dict[str, object] = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, torch.qscheme))
}


def _put_token(w: Writer, value: object, path: str) -> None:
    w.tokens.append(value)


def _put_int(w: Writer, value: int, path: str) -> None:
    if -(1 << 63) <= value < 1 << 64:  # what msgpack holds
        w.tokens += (tags.INT, value)
    else:
        w.tokens.append(tags.BIGINT)
        w.blobs.append(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _put_str(w: Writer, value: str, path: str) -> None:
    if len(value) <= INLINE_NBYTES and (value.isascii() or _is_utf8(value)):
        w.tokens.append(value)
    else:
        w.tokens.append(tags.TEXT)
        w.data(value.encode("utf-8", "surrogatepass"), path)


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _put_bytes(w: Writer, value: bytes, path: str) -> None:
    w.data(value, path)


def _put_bytearray(w: Writer, value: bytearray, path: str) -> None:
    w.tokens.append(tags.BYTEARRAY)
    w.data(bytes(value), path)


def _put_complex(w: Writer, value: complex, path: str) -> None:
    w.tokens += (tags.COMPLEX, value.real, value.imag)


def _put_ellipsis(w: Writer, value: object, path: str) -> None:
    w.tokens.append(tags.ELLIPSIS)


def _put_slice(w: Writer, value: slice, path: str) -> None:
    _put_three(w, tags.SLICE, value, path)


def _put_range(w: Writer, value: range, path: str) -> None:
    _put_three(w, tags.RANGE, value, path)


def _put_three(w: Writer, tag: int, value: slice | range, path: str) -> None:
    w.enter(value, path)
    w.tokens.append(tag)
    for part in (value.start, value.stop, value.step):
        w.put(part, path)
    w.leave(value)


def _put_torch(w: Writer, value: object, path: str) -> None:
    name = str(value)
    if TORCH_CONSTANTS.get(name) is not value:
        w.unsupported(value, path, f"torch has no constant {name!r}")
    else:
        w.tokens += (tags.TORCH, name)


def _put_device(w: Writer, value: torch.device, path: str) -> None:
    w.tokens += (tags.DEVICE, str(value))


def _put_size(w: Writer, value: torch.Size, path: str) -> None:
    if not all(type(n) is int for n in value):
        w.unsupported(value, path, "a symbolic size")
    else:
        w.tokens += (tags.SIZE, len(value), *value)


def _put_path(w: Writer, value: pathlib.PurePath, path: str) -> None:
    w.tokens += (tags.PATH, type(value).__name__)
    _put_str(w, str(value), path)


def _put_date(w: Writer, value: dt.date, path: str) -> None:
    w.tokens += (tags.DATE, 3, value.year, value.month, value.day)


def _put_time(w: Writer, value: dt.time, path: str) -> None:
    if _has_plain_zone(w, value, path):
        w.tokens += (tags.TIME, 5, value.hour, value.minute, value.second, value.microsecond, value.fold)
        w.put(value.tzinfo, path)


def _put_datetime(w: Writer, value: dt.datetime, path: str) -> None:
    if _has_plain_zone(w, value, path):
        day = (value.year, value.month, value.day)
        w.tokens += (tags.DATETIME, 8, *day, value.hour, value.minute, value.second, value.microsecond, value.fold)
        w.put(value.tzinfo, path)


def _has_plain_zone(w: Writer, value: dt.time | dt.datetime, path: str) -> bool:
    plain = type(value.tzinfo) in (type(None), dt.timezone)
    if not plain:
        w.unsupported(value, path, f"its tzinfo is a {type(value.tzinfo).__qualname__}, not a datetime.timezone")
    return plain


def _put_timedelta(w: Writer, value: dt.timedelta, path: str) -> None:
    w.tokens += (tags.TIMEDELTA, 3, value.days, value.seconds, value.microseconds)


def _put_timezone(w: Writer, value: dt.timezone, path: str) -> None:
    w.tokens.append(tags.TIMEZONE)
    for part in value.__getinitargs__():  # type: ignore[attr-defined]  # offset and, if it was given, name
        w.put(part, path)
    if len(value.__getinitargs__()) == 1:  # type: ignore[attr-defined]
        w.tokens.append(None)


def _put_uuid(w: Writer, value: uuid.UUID, path: str) -> None:
    w.tokens.append(tags.UUID)
    w.blobs.append(value.bytes)


def _put_decimal(w: Writer, value: Decimal, path: str) -> None:
    w.tokens += (tags.DECIMAL, str(value))


def _put_fraction(w: Writer, value: Fraction, path: str) -> None:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_FRACTION_BITS:
        w.unsupported(value, path, f"more than {_MAX_FRACTION_BITS} bits")
        return
    w.tokens.append(tags.FRACTION)
    _put_int(w, value.numerator, path)
    _put_int(w, value.denominator, path)


ENCODERS: dict[type, Encoder] = {
    type(None): _put_token,
    bool: _put_token,
    float: _put_token,
    int: _put_int,
    str: _put_str,
    bytes: _put_bytes,
    bytearray: _put_bytearray,
    complex: _put_complex,
    type(...): _put_ellipsis,
    slice: _put_slice,
    range: _put_range,
    torch.dtype: _put_torch,
    torch.layout: _put_torch,
    torch.memory_format: _put_torch,
    torch.qscheme: _put_torch,
    torch.device: _put_device,
    torch.Size: _put_size,
    dt.date: _put_date,
    dt.time: _put_time,
    dt.datetime: _put_datetime,
    dt.timedelta: _put_timedelta,
    dt.timezone: _put_timezone,
    uuid.UUID: _put_uuid,
    Decimal: _put_decimal,
    Fraction: _put_fraction,
    **dict.fromkeys(_PATHS.values(), _put_path),
}


def _text(b: Builder, node: Node) -> str:
    return b.payload(node.args[0]).decode("utf-8", "surrogatepass")


def _integer(b: Builder, node: Node) -> int:
    value = b.build(node)
    if type(value) is not int:  # an object with __index__ would run code
        raise FormatError(f"expected an int, found a {type(value).__name__}")
    return value


def _fraction(b: Builder, node: Node) -> Fraction:
    top, bottom = (_integer(b, arg) for arg in node.args)
    if max(top.bit_length(), bottom.bit_length()) > _MAX_FRACTION_BITS:
        raise FormatError(f"a fraction of more than {_MAX_FRACTION_BITS} bits")
    return Fraction(top, bottom)


def _torch(b: Builder, node: Node) -> object:
    try:
        return TORCH_CONSTANTS[node.args[0]]
    except KeyError:
        raise UnsupportedError(f"{b.path!r}: this torch has no {node.args[0]!r:.60}") from None


def _path(b: Builder, node: Node) -> pathlib.PurePath:
    kind, text = _PATHS[node.args[0]], b.build(node.args[1])
    if type(text) is not str:
        raise FormatError("a path that is no str")
    try:
        return kind(text)
    except NotImplementedError as error:  # a WindowsPath on a POSIX system, or the reverse
        raise UnsupportedError(f"{b.path!r}: {error}") from error


def _time(b: Builder, node: Node) -> dt.time:
    hour, minute, second, microsecond, fold = node.args[0]
    return dt.time(hour, minute, second, microsecond, _zone(b, node), fold=fold)


def _datetime(b: Builder, node: Node) -> dt.datetime:
    *fields, fold = node.args[0]
    year, month, day, hour, minute, second, microsecond = fields
    return dt.datetime(year, month, day, hour, minute, second, microsecond, _zone(b, node), fold=fold)


def _zone(b: Builder, node: Node) -> Any:
    zone = b.build(node.args[1])
    if type(zone) not in (type(None), dt.timezone):
        raise FormatError("a tzinfo that is no timezone")
    return zone


def _timezone(b: Builder, node: Node) -> dt.timezone:
    offset, name = (b.build(arg) for arg in node.args)
    if type(offset) is not dt.timedelta or type(name) not in (type(None), str):
        raise FormatError("a timezone that is no offset and name")
    return dt.timezone(offset) if name is None else dt.timezone(offset, name)  # type: ignore[arg-type]


BUILDERS: dict[int, BuildFunction] = {
    tags.VALUE: lambda b, node: node.args[0],
    tags.INT: lambda b, node: node.args[0],
    tags.BIGINT: lambda b, node: int.from_bytes(node.args[0], "little", signed=True),
    tags.COMPLEX: lambda b, node: complex(*node.args),
    tags.TEXT: _text,
    tags.BLOB: lambda b, node: node.args[0],
    tags.RUN: lambda b, node: b.payload(node),
    tags.BYTEARRAY: lambda b, node: bytearray(b.payload(node.args[0])),
    tags.ELLIPSIS: lambda b, node: ...,
    tags.SLICE: lambda b, node: slice(*(b.build(arg) for arg in node.args)),
    tags.RANGE: lambda b, node: range(*(_integer(b, arg) for arg in node.args)),
    tags.KEY: lambda b, node: b.build(node.args[1]),
    tags.TORCH: _torch,
    tags.DEVICE: lambda b, node: torch.device(node.args[0]),
    tags.SIZE: lambda b, node: torch.Size(node.args[0]),
    tags.PATH: _path,
    tags.DATE: lambda b, node: dt.date(*node.args[0]),
    tags.TIME: _time,
    tags.DATETIME: _datetime,
    tags.TIMEDELTA: lambda b, node: dt.timedelta(*node.args[0]),
    tags.TIMEZONE: _timezone,
    tags.UUID: lambda b, node: uuid.UUID(bytes=node.args[0]),
    tags.DECIMAL: lambda b, node: Decimal(node.args[0]),
    tags.FRACTION: _fraction,
}
