"""Tensors of every kind from their parts. The way back of ``tensors``.

What a kind's kernels take on trust is checked here first, since the numbers come from the data: index ranges of
sparse tensors, bounds of nested ones, lengths of per-channel scales. A wrapper subclass is rebuilt by its own
``__tensor_unflatten__``; its class must be loaded already.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from s4async.errors import FormatError, UnsafeLoadError
from s4async.state import tags
from s4async.state.builder import Builder, BuildFunction
from s4async.state.classes import find_class
from s4async.state.document import Node, Record
from s4async.state.dtypes import QUANTIZED
from s4async.state.tensors import FORBIDDEN_MODULES
from s4async.state.values import TORCH_CONSTANTS

__all__ = ["BUILDERS"]

_JAGGED = ("torch.nested._internal.nested_tensor", "NestedTensor")


def _tensor(b: Builder, node: Node) -> torch.Tensor:
    record: Record = node.args[0]
    return _finish(_strided(b, record), record.flags)


def _strided(b: Builder, record: Record) -> torch.Tensor:
    tensor = b.view(record)
    if record.flags & tags.CONJ:
        tensor = torch.conj(tensor)
    if record.flags & tags.NEG:
        tensor = torch._neg_view(tensor)
    return tensor


def _finish(tensor: torch.Tensor, flags: int) -> torch.Tensor:
    """Apply the flags that are not about the bytes."""
    requires_grad = bool(flags & tags.REQUIRES_GRAD)
    if flags & tags.PARAMETER:
        return torch.nn.Parameter(tensor, requires_grad)
    if flags & tags.BUFFER:
        return torch.nn.Buffer(tensor.requires_grad_(requires_grad), persistent=bool(flags & tags.PERSISTENT))
    return tensor.requires_grad_() if requires_grad and not tensor.requires_grad else tensor


def _part(b: Builder, node: Node) -> torch.Tensor:
    part = b.build(node)
    if not isinstance(part, torch.Tensor):
        raise FormatError(f"{b.path!r}: a part of a tensor is a {type(part).__name__}")
    return part


def _quantized(b: Builder, node: Node) -> torch.Tensor:
    flags, dtype_name, scheme, params, inner = node.args
    dtype: Any = TORCH_CONSTANTS.get(dtype_name)
    raw = _strided(b, inner)
    if str(raw.dtype) != f"torch.{QUANTIZED.get(dtype)}":
        raise FormatError(f"{b.path!r}: a tensor of {dtype_name} with {raw.dtype} for its integers")
    values: list[Any] = [b.build(param) for param in params]
    options: dict[str, Any] = {"dtype": dtype, "device": raw.device}
    with _quiet():
        if scheme == str(torch.per_tensor_affine):
            scale, zero_point = values
            if type(scale) is not float or type(zero_point) is not int:
                raise FormatError(f"{b.path!r}: a scale of {scale!r:.40} and a zero point of {zero_point!r:.40}")
            tensor = torch._empty_affine_quantized((0,), scale=scale, zero_point=zero_point, **options)
        else:
            tensor = _per_channel(b, scheme, values, raw, options)
        tensor.set_(raw.untyped_storage(), raw.storage_offset(), raw.shape, raw.stride())
    return _finish(tensor, flags)


def _per_channel(b: Builder, scheme: str, values: list[Any], raw: torch.Tensor, options: Any) -> torch.Tensor:
    scales, zero_points, axis = values
    schemes = (str(torch.per_channel_affine), str(torch.per_channel_affine_float_qparams))
    good = scheme in schemes and type(axis) is int and 0 <= axis < raw.dim()
    good = good and all(
        type(v) is torch.Tensor and v.shape == raw.shape[axis : axis + 1] for v in (scales, zero_points)
    )
    if not good or zero_points.is_floating_point() != (scheme == schemes[1]):
        raise FormatError(
            f"{b.path!r}: rule 'one scale and zero point per channel': scheme {scheme!r:.60}, axis {axis}"
        )
    # No memory yet: only the size along the axis must agree with the scales; set_ gives the shape.
    return torch._empty_per_channel_affine_quantized(
        tuple(n if dim == axis else 0 for dim, n in enumerate(raw.shape)),
        scales=scales,
        zero_points=zero_points,
        axis=axis,
        **options,
    )


def _coo(b: Builder, node: Node) -> torch.Tensor:
    flags, coalesced, shape, *parts = node.args
    indices, values = (_strided(b, part) for part in parts)
    with _quiet():
        tensor = torch.sparse_coo_tensor(indices, values, shape, device=values.device, check_invariants=True)
        return _finish(tensor._coalesced_(coalesced), flags)


def _compressed(b: Builder, node: Node) -> torch.Tensor:
    flags, layout, shape, *parts = node.args
    compressed, other, values = (_strided(b, part) for part in parts)
    with _quiet():
        tensor = torch.sparse_compressed_tensor(
            compressed,
            other,
            values,
            shape,
            layout=_layout(b, layout),
            device=values.device,  # not the default device
            check_invariants=True,
        )
    return _finish(tensor, flags)


def _layout(b: Builder, name: str) -> Any:
    layout = TORCH_CONSTANTS.get(name)
    if not isinstance(layout, torch.layout):
        raise FormatError(f"{b.path!r}: {name!r:.60} is no layout")
    return layout


def _nested(b: Builder, node: Node) -> torch.Tensor:
    flags, *parts = node.args
    buffer, *numbers = (_strided(b, part) for part in parts)
    sizes, strides, offsets = numbers = [t.cpu() for t in numbers]  # torch keeps these on the host
    good = buffer.dim() == 1 and sizes.dim() == 2 and sizes.shape == strides.shape and offsets.shape == sizes.shape[:1]
    good = good and all(t.dtype == torch.int64 for t in numbers)
    good = good and all(t.numel() == 0 or int(t.min()) >= 0 for t in numbers)
    if good:
        for size, stride, offset in zip(sizes.tolist(), strides.tolist(), offsets.tolist(), strict=True):
            last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
            good = good and (0 in size or last < buffer.numel())
    if not good:
        raise FormatError(f"{b.path!r}: rule 'the parts of a nested tensor lie in its buffer'")
    with _quiet():
        tensor = torch._nested_view_from_buffer(buffer, sizes, strides, offsets)
    return _finish(tensor, flags)


def _subclass(b: Builder, node: Node) -> torch.Tensor:
    flags, module, qualname, inner, attributes = node.args
    kind = _tensor_class(b, module, qualname)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise UnsafeLoadError(f"{b.path!r}: {module}.{qualname} is a wrapper now; it cannot be built from plain data")
    built = b.build(attributes)
    if not isinstance(built, dict):
        raise FormatError(f"{b.path!r}: attributes that are no dict")
    with torch._C.DisableTorchFunctionSubclass():
        tensor = _part(b, inner).as_subclass(kind)
        if flags & tags.REQUIRES_GRAD:
            tensor.requires_grad_()
        vars(tensor).update(built)
        if flags & tags.PARAMETER:
            vars(tensor)["_is_param"] = True
    return tensor


def _flattened(b: Builder, node: Node) -> torch.Tensor:
    flags, module, qualname, names, parts, context, sizes = node.args
    kind: Any = _tensor_class(b, module, qualname)
    inner = {name: _part(b, part) for name, part in zip(names, parts, strict=True)}
    if (module, qualname) == _JAGGED:
        _check_jagged(b, inner, b.build(context))
    outer: Any = b.build(sizes) or (None, None)
    with torch._C.DisableTorchFunctionSubclass():
        tensor = kind.__tensor_unflatten__(inner, b.build(context), *outer)
    if not isinstance(tensor, torch.Tensor):
        raise FormatError(f"{b.path!r}: {module}.{qualname}.__tensor_unflatten__ gave a {type(tensor).__name__}")
    return _finish(tensor, flags)


def _check_jagged(b: Builder, inner: dict[str, torch.Tensor], context: Any) -> None:
    values, offsets, lengths = inner["_values"], inner["_offsets"], inner.get("_lengths")
    dim = context["ragged_idx"] - 1
    good = offsets.dim() == 1 and offsets.dtype in (torch.int32, torch.int64) and 0 <= dim < values.dim()
    if good and lengths is not None:
        good = lengths.shape == (offsets.shape[0] - 1,) and lengths.dtype == offsets.dtype
    if good:
        starts, ends = offsets[:-1], offsets[1:] if lengths is None else offsets[:-1] + lengths
        good = offsets.numel() > 0 and bool(((starts >= 0) & (starts <= ends) & (ends <= values.shape[dim])).all())
    if not good:
        raise FormatError(f"{b.path!r}: rule 'the rows of a jagged tensor lie in its values'")


def _tensor_class(b: Builder, module: str, qualname: str) -> type[torch.Tensor]:
    kind = find_class(b, module, qualname, torch.Tensor)
    if kind is torch.Tensor or any(base.__module__.startswith(FORBIDDEN_MODULES) for base in kind.__mro__):
        raise FormatError(f"{b.path!r}: {module}.{qualname} is no subclass that a checkpoint may hold")
    return kind


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's notes that sparse, nested and quantized tensors are in beta or deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


BUILDERS: dict[int, BuildFunction] = {
    tags.TENSOR: _tensor,
    tags.QUANTIZED: _quantized,
    tags.COO: _coo,
    tags.COMPRESSED: _compressed,
    tags.NESTED: _nested,
    tags.SUBCLASS: _subclass,
    tags.FLATTENED: _flattened,
}
