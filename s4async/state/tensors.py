"""Tensors of every kind -> strided views and tokens. ``rebuild`` is the way back.

A plain strided tensor is one TENSOR node and one view. Everything else is taken apart into such: quantized tensors
into integers and scales, sparse and nested ones into indices and values, wrapper subclasses into what their
``__tensor_flatten__`` gives, other subclasses into a plain tensor and attributes. A tensor without memory of its own
(meta, fake, functional) is refused by name. Python attributes of plain tensors, ``grad`` and hooks are not carried.
"""

from __future__ import annotations

import copyreg
from typing import Any

import torch

from s4async.errors import UnsupportedStateError
from s4async.state import tags
from s4async.state.classes import class_name
from s4async.state.dtypes import QUANTIZED, name_of
from s4async.state.regions import View
from s4async.state.writer import Encoder, Writer

__all__ = ["ENCODERS", "FORBIDDEN_MODULES", "put_subclass"]

# Subclasses from here either have no memory of their own or are one rank's piece of a larger tensor.
FORBIDDEN_MODULES = ("torch.distributed", "torch._subclasses", "torch.fx", "torch._functorch", "torch._dynamo")
_SHARDED = "it is one rank's part of a distributed tensor: save such state through torch.distributed.checkpoint"
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _put_tensor(w: Writer, t: torch.Tensor, path: str) -> None:
    flags = tags.REQUIRES_GRAD if t.requires_grad else 0
    attributes = t.__dict__
    if attributes and attributes.get("_is_buffer") is True:
        flags |= tags.BUFFER | (tags.PERSISTENT if attributes.get("persistent") else 0)
    _put_any(w, t, path, flags)


def _put_parameter(w: Writer, t: torch.Tensor, path: str) -> None:
    _put_any(w, t, path, tags.PARAMETER | (tags.REQUIRES_GRAD if t.requires_grad else 0))


def _put_any(w: Writer, t: torch.Tensor, path: str, flags: int) -> None:
    """Write a tensor of torch's own types."""
    try:
        if t.layout is not torch.strided or t.is_nested or t.is_quantized or t.is_meta:
            _put_special(w, t, path, flags)
        else:
            w.tokens.append(tags.TENSOR)
            _add_view(w, t, path, flags)
    except (UnsupportedStateError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # torch answers with any type where there is no storage
        w.refuse(t, path, f"its memory cannot be read: {error}", error)


def _add_view(w: Writer, t: torch.Tensor, path: str, flags: int, plain: torch.dtype | None = None) -> None:
    """The record of a strided tensor. ``plain``: the dtype to record, where the tensor's own is a quantized one."""
    row = name_of(plain or t.dtype)
    if row is None:
        w.refuse(t, path, f"its dtype {t.dtype} has no encoding")
    storage = t.untyped_storage()
    address = storage.data_ptr()
    itemsize = row.itemsize
    nbytes = t.numel() * itemsize
    if nbytes and not address:
        w.refuse(t, path, "it has no memory of its own")
    if t.is_conj():
        flags |= tags.CONJ
    if t.is_neg():
        flags |= tags.NEG
    # fmt: off
    w.views.append(View(
        path, t.device, storage, address, int(t.storage_offset()) * itemsize, itemsize, nbytes, tuple(t.shape),
        t.stride(), t.is_contiguous(), row.name, row.region, flags,
    ))
    # fmt: on


def _put_special(w: Writer, t: torch.Tensor, path: str, flags: int) -> None:
    if t.is_meta:
        w.refuse(t, path, "a meta tensor has no data")
    t = t.detach()
    if t.is_quantized:
        _put_quantized(w, t, path, flags)
    elif t.is_nested:
        w.tokens += (tags.NESTED, flags)
        where = (t._nested_tensor_size(), t._nested_tensor_strides(), t._nested_tensor_storage_offsets())
        _add_views(w, path, t.values(), *where)
    elif t.layout is torch.sparse_coo:
        w.tokens += (tags.COO, flags, t.is_coalesced(), len(t.shape), *t.shape)
        _add_views(w, path, t._indices(), t._values())
    elif t.layout in _COMPRESSED:
        rows = t.layout in (torch.sparse_csr, torch.sparse_bsr)
        compressed, other = (t.crow_indices(), t.col_indices()) if rows else (t.ccol_indices(), t.row_indices())
        w.tokens += (tags.COMPRESSED, flags, str(t.layout), len(t.shape), *t.shape)
        _add_views(w, path, compressed, other, t.values())
    else:
        w.refuse(t, path, f"its layout {t.layout} has no encoding; convert it with to_dense()")


def _add_views(w: Writer, path: str, *parts: torch.Tensor) -> None:
    for part in parts:
        _add_view(w, part, path, 0)


def _put_quantized(w: Writer, t: torch.Tensor, path: str, flags: int) -> None:
    plain = QUANTIZED.get(t.dtype)
    if plain is None:
        w.refuse(t, path, f"its dtype {t.dtype} has no encoding")
    scheme = t.qscheme()
    if scheme == torch.per_tensor_affine:
        params: tuple[object, ...] = (t.q_scale(), t.q_zero_point())
    elif scheme in (torch.per_channel_affine, torch.per_channel_affine_float_qparams):
        params = (t.q_per_channel_scales(), t.q_per_channel_zero_points(), t.q_per_channel_axis())
    else:
        w.refuse(t, path, f"its scheme {scheme} has no encoding")
    w.tokens += (tags.QUANTIZED, flags, str(t.dtype), str(scheme), len(params))
    for param in params:
        w.put(param, path)
    _add_view(w, t, path, 0, getattr(torch, plain))


def _put_uninitialized(w: Writer, t: torch.Tensor, path: str) -> None:
    w.refuse(t, path, "it is not initialized yet; run the module once first")


def put_subclass(w: Writer, t: torch.Tensor, path: str) -> None:
    """Write a tensor of somebody's subclass, without running its ``__torch_function__``."""
    kind = type(t)
    for base in kind.__mro__:
        if base.__module__.startswith(FORBIDDEN_MODULES):
            w.refuse(t, path, _SHARDED if "torch.distributed" in base.__module__ else "it has no data of its own")
    found = class_name(w, t, kind, path)
    if found is None:
        return
    w.enter(t, path)
    with torch._C.DisableTorchFunctionSubclass():
        if hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__"):
            _put_flattened(w, t, found, path)
        elif copyreg._slotnames(kind):  # type: ignore[attr-defined]
            w.refuse(t, path, "its class has __slots__")
        elif kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            w.refuse(t, path, "it is a wrapper without __tensor_flatten__ and __tensor_unflatten__")
        else:
            attributes = dict(t.__dict__)
            flags = _subclass_flags(t, attributes)
            w.tokens += (tags.SUBCLASS, flags, *found)
            _put_any(w, t.detach().as_subclass(torch.Tensor), path, 0)
            w.put(attributes, path)
    w.leave(t)


def _put_flattened(w: Writer, t: Any, found: tuple[str, str], path: str) -> None:
    try:
        names, context = t.__tensor_flatten__()
        parts = [getattr(t, name) for name in names]
    except Exception as error:  # noqa: BLE001  # the user's code
        w.refuse(t, path, f"its __tensor_flatten__ failed: {error!r}", error)
    if not all(type(name) is str and isinstance(part, torch.Tensor) for name, part in zip(names, parts, strict=True)):
        w.refuse(t, path, "its __tensor_flatten__ gives something that is no tensor")
    w.tokens += (tags.FLATTENED, _subclass_flags(t, {}), *found, len(names), *names, len(names))
    for name, part in zip(names, parts, strict=True):
        w.put(part, f"{path}/{name}")
    w.put(context, path)
    sizes = (tuple(t.shape), tuple(t.stride()) if t.layout is torch.strided else ())
    w.put(sizes if all(type(n) is int for part in sizes for n in part) else None, path)


def _subclass_flags(t: torch.Tensor, attributes: dict[str, object]) -> int:
    parameter = attributes.pop("_is_param", getattr(t, "_is_param", False)) is True
    return (tags.REQUIRES_GRAD if t.requires_grad else 0) | (tags.PARAMETER if parameter else 0)


ENCODERS: dict[type, Encoder] = {
    torch.Tensor: _put_tensor,
    torch.nn.Parameter: _put_parameter,
    torch.nn.UninitializedParameter: _put_uninitialized,
    torch.nn.UninitializedBuffer: _put_uninitialized,
}
