"""Writing a restored leaf into what exists: tensors bit for bit and in place, other values into their containers.

A destination is judged before anything is changed (``tensor_fault``); filling then moves bits, not numbers, so that
every dtype works and nothing is cast. ``Direct`` names the destinations whose memory can take a region as it is.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from s4async.state import tags
from s4async.state.coverage import is_dense, span
from s4async.state.document import Node, Record
from s4async.state.dtypes import PACKED_INT
from s4async.state.regions import bytes_of, strided
from s4async.state.skeleton import dtype_and_shape
from s4async.state.tensors import FORBIDDEN_MODULES

__all__ = ["Assign", "Direct", "copy_bits", "direct", "direct_targets", "put_tensor", "put_value", "tensor_fault"]

Assign = Callable[[Any], None] | None  # puts a value in the place of another, in a container that can change

_LAYOUTS = {
    tags.COO: (torch.sparse_coo,),
    tags.COMPRESSED: (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc),
}


@dataclass(frozen=True, slots=True)
class Direct:
    """A destination with exactly the bytes of one region."""

    region: int
    tensor: torch.Tensor
    address: int
    nbytes: int


def tensor_fault(node: Node, dest: torch.Tensor) -> str | None:
    """Why ``dest`` cannot take the tensor of ``node``, or ``None``. Changes nothing."""
    if isinstance(dest, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)):
        return "it is not initialized yet; run the module once first"
    if dest.is_meta:
        return "it is a meta tensor, which has no memory; make it real first, for example with to_empty()"
    if any(base.__module__.startswith(FORBIDDEN_MODULES) for base in type(dest).__mro__):
        return f"it is a {type(dest).__qualname__}, which is not filled in place"
    if dest.is_inference() and not torch.is_inference_mode_enabled():
        return "it was made in inference mode and cannot be changed outside of it"
    dtype, shape = dtype_and_shape(node)
    plain = node.tag in (tags.TENSOR, tags.SUBCLASS)
    strided = dest.layout is torch.strided and not dest.is_nested and not dest.is_quantized
    wrapper = type(dest).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if (
        plain != (strided and not wrapper)
        or dest.layout not in _LAYOUTS.get(node.tag, (dest.layout,))
        or (node.tag == tags.QUANTIZED) != dest.is_quantized
    ):
        return f"expected a {type(dest).__qualname__} of layout {dest.layout}, got a {tags.SPECS[node.tag].name}"
    mine = str(dest.dtype).removeprefix("torch.")
    if dtype not in (None, mine) or (shape is not None and tuple(dest.shape) != tuple(shape)):
        known = tuple(dest.shape) if shape is not None else ""
        return f"expected {mine} {known}, got {dtype} {'' if shape is None else tuple(shape)}"
    if plain and _shares_elements(dest):
        return "several of its elements share memory (expanded?); give a tensor of its own, for example clone()"
    return None


def _shares_elements(dest: torch.Tensor) -> bool:
    reach = 0
    for stride, size in sorted((t, n) for n, t in zip(dest.shape, dest.stride(), strict=True) if n > 1):
        if stride <= reach:
            return dest.numel() > 0
        reach += stride * (size - 1)
    return False


def copy_bits(dest: torch.Tensor, source: torch.Tensor) -> None:
    """Fill a strided tensor, on any device, with the bits of another of its dtype and shape."""
    if dest.is_conj() == source.is_conj() and dest.is_neg() == source.is_neg():
        _words(dest).copy_(_words(source))
        torch.autograd.graph.increment_version(dest)
    else:
        dest.copy_(source)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as integers of its element size: copying them works for every dtype."""
    plain = tensor.detach().as_subclass(torch.Tensor)
    dtype = PACKED_INT.get(plain.itemsize, torch.complex128)
    start = int(plain.storage_offset())
    return strided(plain.untyped_storage(), plain.device, dtype, start, plain.shape, plain.stride())


def put_tensor(dest: torch.Tensor, built: torch.Tensor, assign: Assign) -> None:
    """Fill ``dest``, which ``tensor_fault`` found fit; replace it where torch has no way to fill it."""
    with torch._C.DisableTorchFunctionSubclass():
        if not _filled(dest, built) and assign is not None:
            assign(built if built.device == dest.device else built.to(dest.device))


def _filled(dest: Any, built: Any) -> bool:
    flattens = hasattr(type(dest), "__tensor_flatten__")
    if flattens or hasattr(type(built), "__tensor_flatten__"):
        return type(dest) is type(built) and _filled_parts(dest, built)
    if built.layout is torch.sparse_coo:
        dest.copy_(built)
    elif built.layout is not torch.strided:
        if dest.layout is not built.layout or dest.values().shape != built.values().shape:
            return False
        dest.copy_(built)
    elif built.is_quantized:
        if dest.qscheme() != torch.per_tensor_affine or built.qscheme() != torch.per_tensor_affine:
            return False
        dest.copy_(built)
    elif built.is_nested:
        return False
    else:
        copy_bits(dest, built)
        if type(built) is type(dest) and built.__dict__ and type(built) is not torch.nn.Parameter:
            dest.__dict__.update(built.__dict__)
    return True


def _filled_parts(dest: Any, built: Any) -> bool:
    """Fill the inner tensors of a wrapper, if both are made alike."""
    names, context = dest.__tensor_flatten__()
    others, other_context = built.__tensor_flatten__()
    if list(names) != list(others) or repr(context) != repr(other_context):
        return False
    pairs = [(getattr(dest, name), getattr(built, name)) for name in names]
    if any(a.shape != b.shape or a.dtype != b.dtype or type(a) is not torch.Tensor for a, b in pairs):
        return False
    return all(_filled(a, b) for a, b in pairs)


def put_value(dest: Any, built: Any, assign: Assign) -> None:
    """Replace a value; a list, set or deque of the same type keeps its identity, an array its memory."""
    if isinstance(dest, np.ndarray) and isinstance(built, np.ndarray) and dest.flags.writeable:
        dest[...] = built
    elif type(dest) is type(built) and type(dest) in (list, bytearray):
        dest[:] = built
    elif type(dest) is type(built) and type(dest) in (set, collections.deque) and _same_limit(dest, built):
        dest.clear()
        (dest.update if isinstance(dest, set) else dest.extend)(built)
    elif assign is not None:
        assign(built)


def _same_limit(dest: Any, built: Any) -> bool:
    return getattr(dest, "maxlen", None) == getattr(built, "maxlen", None)


def direct(node: Node, dest: torch.Tensor, region_nbytes: int) -> Direct | None:
    """The memory of ``dest`` as the place where the region can be restored: a whole, dense, plain host tensor with
    the same strides."""
    if node.tag != tags.TENSOR or type(dest) not in (torch.Tensor, torch.nn.Parameter) or dest.device.type != "cpu":
        return None
    record: Record = node.args[0]
    nbytes = dest.numel() * dest.itemsize
    whole = 0 < nbytes == region_nbytes and record.offset == 0 and dest.stride() == record.strides
    lazy = record.flags & (tags.CONJ | tags.NEG) or dest.is_conj() or dest.is_neg()
    if not whole or lazy or not is_dense(span(0, dest.itemsize, record.shape, record.strides).dims):
        return None
    start = int(dest.storage_offset()) * dest.itemsize
    flat = bytes_of(dest.untyped_storage(), dest.device, start, nbytes)
    return Direct(record.region, flat, flat.data_ptr(), nbytes)


def direct_targets(found: Iterable[Direct], users: Mapping[int, int]) -> dict[int, torch.Tensor]:
    """One destination per region, for the regions whose every leaf has the same one, and that overlap no other.

    ``users``: how many leaves each region has.
    """
    by_region: dict[int, list[Direct]] = {}
    for candidate in found:
        by_region.setdefault(candidate.region, []).append(candidate)
    alone = [
        group[0]
        for region, group in by_region.items()
        if len(group) == users[region] and len({candidate.address for candidate in group}) == 1
    ]
    alone.sort(key=lambda candidate: candidate.address)
    targets, reached, last = {}, 0, -1
    for candidate in alone:
        if candidate.address >= reached:
            targets[candidate.region] = candidate.tensor
            last = candidate.region
        else:
            targets.pop(last, None)
        reached = max(reached, candidate.address + candidate.nbytes)
    return targets
