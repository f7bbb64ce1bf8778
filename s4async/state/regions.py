"""Aliasing: views of storages -> regions that hold every covered byte once, ties kept, nothing uncovered stored.

A view is *dense* if all bytes between its first and last element are its own. Dense views that overlap share a
region; a view with holes that shares no element is stored compact, in an order that keeps its dimension permutation;
views with few holes that share elements lie in one region, a private copy with the uncovered bytes zeroed; where more
than half would be holes, sparse views are stored compact and their tie ends. Decides by addresses, shapes and strides;
reads bytes only for that private copy. Grouping is by storage: memory that reaches two
storages at different addresses (two NumPy slices of one array) is stored twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from s4async.frame import Region
from s4async.state.coverage import Span, families, hidden_units, is_dense, self_overlaps, span
from s4async.state.dtypes import PACKED_INT

__all__ = ["Place", "Source", "View", "bytes_of", "place", "strided"]

_MAX_ITEMSIZE = 16


@dataclass(frozen=True, slots=True)
class Source:
    """Where the bytes of one region come from. ``tensor`` is live memory of the caller: the region's bytes are the
    contiguous bytes of it in C order. A plain strided tensor without history; one-dimensional ``uint8`` where the
    bytes are one run."""

    region: Region
    tensor: torch.Tensor


@dataclass(slots=True, eq=False)
class View:
    """One strided tensor of the state: ``offset`` in bytes from the start of the storage, strides in elements."""

    path: str
    device: torch.device
    storage: torch.UntypedStorage
    address: int  # of the storage
    offset: int
    itemsize: int
    nbytes: int  # elements times itemsize
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    contiguous: bool
    dtype: str
    region: str  # dtype of a region that is mostly this view
    flags: int = 0
    index: int = 0  # in the order of the state

    @property
    def span(self) -> Span:
        return span(self.offset, self.itemsize, self.shape, self.strides)


class Place(NamedTuple):
    """Where a view went: ``offset`` in bytes from the start of the region."""

    region: int
    offset: int
    strides: tuple[int, ...]


class _Part(NamedTuple):
    """A region in the making: its bytes, and the place of every view in it."""

    tensor: torch.Tensor
    nbytes: int
    places: list[tuple[View, int, tuple[int, ...]]]


def place(views: Sequence[View]) -> tuple[tuple[Source, ...], list[Place]]:
    """Regions in the order of the first view in each, and one place per view."""
    parts: list[_Part] = []
    groups: dict[tuple[int, torch.device], list[View]] = {}
    for index, view in enumerate(views):
        view.index = index
        if view.nbytes == 0:
            parts.append(_Part(bytes_of(view.storage, view.device, 0, 0), 0, [(view, 0, view.strides)]))
        else:
            groups.setdefault((view.address, view.device), []).append(view)
    for group in groups.values():
        if len(group) == 1:
            parts.append(_alone(group))
        else:
            for cluster in _clusters(group):
                parts.extend(_tied(cluster))
    parts.sort(key=_first_index)
    places: list[Place | None] = [None] * len(views)
    sources = []
    for number, part in enumerate(parts):
        first = largest = part.places[0][0]
        for view, offset, strides in part.places:
            places[view.index] = Place(number, offset, strides)
            if view.index < first.index:
                first = view
            if view.nbytes > largest.nbytes:
                largest = view
        location = _location(first.device, first.storage)
        sources.append(Source(Region(first.path, largest.region, part.nbytes, location), part.tensor))
    return tuple(sources), [found for found in places if found is not None]


def strided(
    storage: torch.UntypedStorage,
    device: torch.device,
    dtype: torch.dtype,
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int],
) -> torch.Tensor:
    """A tensor over memory that exists; ``offset`` and ``strides`` in elements."""
    empty = _EMPTY.get((dtype, device))
    if empty is None:
        with warnings.catch_warnings(), torch.inference_mode(False):  # it outlives the caller's mode
            warnings.simplefilter("ignore")  # complex32 is "experimental"; its bits are not
            empty = _EMPTY[dtype, device] = torch.empty(0, dtype=dtype, device=device)
    return empty.data.set_(storage, offset, shape, strides)


def bytes_of(storage: torch.UntypedStorage, device: torch.device, offset: int, nbytes: int) -> torch.Tensor:
    """``nbytes`` bytes of a storage as a one-dimensional ``uint8`` tensor."""
    return strided(storage, device, torch.uint8, offset, (nbytes,), (1,))


_EMPTY: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}  # making one costs as much as all the rest
_LOCATIONS: dict[torch.device, str] = {}


def _location(device: torch.device, storage: torch.UntypedStorage) -> str:
    tag = _LOCATIONS.get(device)
    if tag is None:
        tag = _LOCATIONS[device] = str(torch.serialization.location_tag(storage))
    return tag


def _first_index(part: _Part) -> int:
    return min([view.index for view, _, _ in part.places])


def _end(view: View) -> int:
    return view.offset + view.nbytes if view.contiguous else view.span.end


def _clusters(group: list[View]) -> list[list[View]]:
    """Views of one storage whose intervals overlap, directly or through others."""
    clusters: list[list[View]] = []
    reached = -1
    for view in sorted(group, key=lambda v: v.offset):
        if view.offset < reached:
            clusters[-1].append(view)
        else:
            clusters.append([view])
        reached = max(reached, _end(view))
    return clusters


def _alone(aliases: list[View]) -> _Part:
    """Views of the same elements, with no other view near them."""
    view = aliases[0]
    if view.contiguous:
        tensor = bytes_of(view.storage, view.device, view.offset, view.nbytes)
        return _Part(tensor, view.nbytes, [(alias, 0, alias.strides) for alias in aliases])
    own = view.span
    if is_dense(own.dims):
        return _run(aliases, own.offset, own.end)
    if self_overlaps(own.dims) and own.end - own.offset < own.nbytes:
        return _masked(aliases, own.offset, own.end)
    return _compact(aliases)


def _run(views: list[View], start: int, end: int) -> _Part:
    """All bytes of an interval of the storage."""
    storage = max((view.storage for view in views), key=lambda s: s.nbytes())
    tensor = bytes_of(storage, views[0].device, start, end - start)
    return _Part(tensor, end - start, [(view, view.offset - start, view.strides) for view in views])


def _compact(aliases: list[View]) -> _Part:
    """The elements back to back, dimensions in the order of their strides; stride 0 stays and costs nothing."""
    view = aliases[0]
    order = sorted((d for d, t in enumerate(view.strides) if t), key=lambda d: view.strides[d], reverse=True)
    strides = [0] * len(view.shape)
    count = 1
    for dim in reversed(order):
        strides[dim] = count
        count *= view.shape[dim]
    shape = [view.shape[dim] for dim in order]
    steps = [view.strides[dim] for dim in order]
    itemsize = view.itemsize
    if itemsize not in PACKED_INT:  # complex128: two halves per element
        shape, steps, itemsize = [*shape, itemsize // 8], [*(2 * step for step in steps), 1], 8
    tensor = strided(view.storage, view.device, PACKED_INT[itemsize], view.offset // itemsize, shape, steps)
    return _Part(tensor, count * view.itemsize, [(alias, 0, tuple(strides)) for alias in aliases])


def _tied(cluster: list[View]) -> list[_Part]:
    """Regions of views whose intervals overlap."""
    distinct: dict[tuple[object, ...], list[View]] = {}
    for view in cluster:
        distinct.setdefault((view.offset, view.itemsize, view.shape, view.strides), []).append(view)
    if len(distinct) == 1:
        return [_alone(cluster)]
    members = list(distinct.values())
    spans = [aliases[0].span for aliases in members]
    start, end = min(s.offset for s in spans), max(s.end for s in spans)
    covered = all(is_dense(s.dims) for s in spans)
    if not covered:
        if end - start > 2 * sum(s.nbytes for s in spans):
            return _peeled(members, spans)
        nbytes, kin = families(spans)
        covered = nbytes == end - start
        if not covered and len(kin) > 1:
            return [part for family in kin for part in _tied([v for number in family for v in members[number]])]
        if 2 * nbytes < end - start and any(map(_is_holey, spans)):
            return _peeled(members, spans)
    if any((s.offset - start) % s.itemsize for s in spans):
        # Some view would start inside an element of itself: begin earlier, at an offset that suits every element size.
        return [_masked(cluster, start - start % _MAX_ITEMSIZE, end)]
    return [_run(cluster, start, end) if covered else _masked(cluster, start, end)]


def _is_holey(s: Span) -> bool:
    return s.end - s.offset > 2 * s.nbytes


def _peeled(members: list[list[View]], spans: list[Span]) -> list[_Part]:
    """Where the views together leave more holes than bytes: those that do so by themselves apart, the others as they
    then lie.

    This ends the tie between a sparse view and what it shares elements with; keeping it would store and allocate the
    holes: ``big[::1000]`` beside ``big[:10]`` would cost as much as ``big``.
    """
    parts = [_alone(aliases) for aliases, s in zip(members, spans, strict=True) if _is_holey(s)]
    rest = [view for aliases, s in zip(members, spans, strict=True) if not _is_holey(s) for view in aliases]
    return parts + [part for cluster in _clusters(rest) for part in _tied(cluster)]


def _masked(views: list[View], start: int, end: int) -> _Part:
    """A private copy of an interval with the bytes that no view covers zeroed."""
    part = _run(views, start, end)
    unit, hidden = hidden_units([view.span for view in views], start, end)
    copy = part.tensor.clone()
    copy.view(-1, unit).masked_fill_(torch.from_numpy(hidden).to(copy.device)[:, None], 0)
    return part._replace(tensor=copy)
