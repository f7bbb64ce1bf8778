"""The pipeline, played: bytes of sources into fresh storages; and what exact equality of states means."""

from __future__ import annotations

import dataclasses
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from s4async.frame import Region
from s4async.state import Capture, Skeleton, Source, capture

__all__ = ["assert_same", "bits", "regions_of", "round_trip", "storages_of", "stored"]


def stored(source: Source) -> torch.UntypedStorage:
    """The bytes of a source, as the pipeline copies them: contiguous, in C order."""
    tensor = source.tensor
    assert type(tensor) is torch.Tensor and not tensor.requires_grad and not tensor.is_conj() and not tensor.is_neg()
    flat = tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    assert flat.numel() == source.region.nbytes
    return flat.clone().untyped_storage()


def storages_of(captured: Capture) -> dict[int, torch.UntypedStorage]:
    return {index: stored(source) for index, source in enumerate(captured.sources)}


def regions_of(captured: Capture) -> list[Region]:
    return [source.region for source in captured.sources]


def round_trip(state: object, keys: str | Sequence[str] | None = None, pickle_objects: bool = False) -> Any:
    """Capture, copy, decode, build."""
    captured = capture(state, pickle_objects=pickle_objects)
    skeleton = Skeleton.decode(captured.skeleton, regions_of(captured)).select(keys)
    storages = storages_of(captured)
    needed = {index: storages[index] for index in skeleton.region_indexes}
    return skeleton.build(needed, weights_only=not pickle_objects)


def bits(tensor: torch.Tensor) -> bytes:
    """Every bit of the values of a strided tensor, in the order of its elements, whatever its dtype."""
    plain = tensor.detach().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
    size = plain.itemsize
    raw = torch.empty(0, dtype=torch.uint8, device=plain.device)
    raw.set_(
        plain.untyped_storage(),
        int(plain.storage_offset()) * size,
        (*plain.shape, size),
        (*(stride * size for stride in plain.stride()), 1),
    )
    return raw.cpu().numpy().tobytes()


def assert_same(a: Any, b: Any, at: str = "$") -> None:
    """Exact: types, key order, attributes of tensors, and every bit of every number."""
    assert type(a) is type(b), (at, type(a), type(b))
    if isinstance(a, torch.Tensor):
        _assert_same_tensor(a, b, at)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.dtype.isalignedstruct, a.dtype.type) == (
            b.dtype,
            b.shape,
            b.dtype.isalignedstruct,
            b.dtype.type,
        ), at
        assert a.tobytes("A") == b.tobytes("A"), at
        assert b.flags.writeable and b.flags.owndata, at
    elif isinstance(a, np.generic):
        padded = a.dtype.char in "gG"  # a long double has bytes that mean nothing
        assert a.dtype == b.dtype and repr(a) == repr(b) and (padded or a.tobytes() == b.tobytes()), at
    elif isinstance(a, dict):
        assert [(type(k), repr(k)) for k in a] == [(type(k), repr(k)) for k in b], at
        for (key, x), y in zip(a.items(), b.values(), strict=True):
            assert_same(x, y, f"{at}[{key!r:.40}]")
        if isinstance(a, defaultdict):
            assert a.default_factory is b.default_factory, at
        if isinstance(a, OrderedDict | Counter):
            assert_same(vars(a), vars(b), f"{at}.__dict__")
    elif isinstance(a, list | tuple | deque):
        assert len(a) == len(b) and getattr(a, "maxlen", None) == getattr(b, "maxlen", None), at
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{at}[{index}]")
    elif isinstance(a, float):
        assert struct.pack("d", a) == struct.pack("d", b), at
    elif isinstance(a, complex):
        assert_same((a.real, a.imag), (b.real, b.imag), at)
    elif dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
        for name in names:
            assert_same(getattr(a, name), getattr(b, name), f"{at}.{name}")
        assert_same(getattr(a, "__dict__", {}), getattr(b, "__dict__", {}), f"{at}.__dict__")
    else:
        assert a == b and hash_or_none(a) == hash_or_none(b), (at, a, b)


def hash_or_none(value: object) -> int | None:
    try:
        return hash(value)
    except TypeError:
        return None


def _assert_same_tensor(a: torch.Tensor, b: torch.Tensor, at: str) -> None:
    assert (a.dtype, a.layout, a.device, a.requires_grad) == (b.dtype, b.layout, b.device, b.requires_grad), at
    assert b.is_leaf, at
    if hasattr(type(a), "__tensor_flatten__"):
        names, context = a.__tensor_flatten__()  # type: ignore[attr-defined]
        assert (names, repr(context)) == (b.__tensor_flatten__()[0], repr(b.__tensor_flatten__()[1])), at  # type: ignore[attr-defined]
        for name in names:
            assert_same(getattr(a, name), getattr(b, name), f"{at}.{name}")
    elif a.is_nested:
        assert len(a.unbind()) == len(b.unbind()), at
        for x, y in zip(a.unbind(), b.unbind(), strict=True):
            assert_same(x.detach(), y.detach(), at)
    elif a.layout is torch.sparse_coo:
        assert (a.shape, a.is_coalesced()) == (b.shape, b.is_coalesced()), at
        assert_same((a.detach()._indices(), a.detach()._values()), (b.detach()._indices(), b.detach()._values()), at)
    elif a.layout is not torch.strided:
        assert a.shape == b.shape and bits(a.to_dense()) == bits(b.to_dense()), at
        assert_same(a.detach().values(), b.detach().values(), at)
    else:
        assert (a.shape, a.is_conj(), a.is_neg()) == (b.shape, b.is_conj(), b.is_neg()), at
        if a.is_quantized:
            assert a.qscheme() == b.qscheme() and torch.equal(a.dequantize(), b.dequantize()), at
            a, b = a.int_repr(), b.int_repr()
        assert bits(a) == bits(b), at
