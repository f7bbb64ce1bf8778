"""The functions of the package: ``save``, ``load``, their async twins, and the store's two. Wiring only.

Paths, URLs and file-like objects are told apart here; everything else is in ``saving``, ``loading`` and
``checkpointer``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import IO, Any

from s4async.catalog import Catalog
from s4async.checkpointer import Checkpointer
from s4async.errors import UsageError
from s4async.handle import CheckpointInfo, LoadHandle, SaveHandle
from s4async.inspection import Inspection, inspect_place, verify_place
from s4async.loading import LoadRequest, MapLocation, Where, load_blocking, load_in_background
from s4async.options import Options
from s4async.pending import pending
from s4async.saving import Destination, ObjectDestination, StepDestination, begin_save, wait_blocking
from s4async.storage.base import Storage, is_local, local_path, open_storage, split_url
from s4async.storage.stream import STREAM_KEY, StreamStorage

__all__ = [
    "inspect",
    "load",
    "load_async",
    "load_checkpoint",
    "save",
    "save_async",
    "save_checkpoint",
    "verify",
    "wait_all",
]

Place = str | os.PathLike[str] | IO[bytes]
Store = str | os.PathLike[str] | Storage


def save(
    obj: object,
    f: Place,
    *,
    metadata: Mapping[str, object] | None = None,
    pickle_objects: bool = False,
    options: Options | None = None,
) -> CheckpointInfo:
    """Save ``obj`` to one self-contained object and return once it is durable.

    ``obj``: nested containers, tensors of every dtype and layout, modules, optimizers, NumPy arrays, plain values.
    ``f``: a path, a ``file://`` URL or a writable binary file. An object of that name is replaced in one moment.
    ``metadata``: plain JSON kept beside the state. ``pickle_objects``: allow leaves that only pickle can carry;
    loading then needs ``weights_only=False``.

    Raises ``UnsupportedStateError`` (names the leaf; nothing was written), ``StorageError`` kinds (name the path; the
    older object is intact), ``UsageError``.
    """
    options = Options.given(options)
    handle = begin_save(
        obj,
        _destination(f),
        options,
        background=False,
        on_overlap="wait",
        pickle_objects=pickle_objects,
        metadata=metadata,
    )
    info = wait_blocking(handle)
    if info is None:
        raise UsageError("a blocking save cannot be skipped")
    return info


def save_async(
    obj: object,
    f: Place | None = None,
    *,
    on_overlap: str | None = None,
    metadata: Mapping[str, object] | None = None,
    pickle_objects: bool = False,
    options: Options | None = None,
) -> SaveHandle:
    """Capture ``obj`` and return a handle; encoding, writing and the commit go on behind.

    Once it returns, nothing done to ``obj`` can change what is stored. ``f``: as in ``save``; ``None`` means the next
    step of the default store (``S4ASYNC_URL``, else the folder ``s4async-checkpoints``). ``on_overlap``: what to do
    while another save of this process runs: ``"wait"`` (default), ``"skip"`` or ``"error"``.

    Raises on the caller's thread what ``save`` raises before writing, ``OverlapError``, ``BudgetError``, and the
    failure of an earlier save whose handle nobody looked at. Everything later is raised by ``handle.result()``.
    """
    options = Options.given(options)
    rule = options.on_overlap if on_overlap is None else on_overlap
    if f is None:
        destination: Destination = StepDestination(Catalog(open_storage(options.url)), None, owned=True)
    else:
        destination = _destination(f)
    return begin_save(
        obj,
        destination,
        options,
        background=True,
        on_overlap=rule,
        pickle_objects=pickle_objects,
        metadata=metadata,
    )


def load(
    f: Place,
    map_location: MapLocation = None,
    *,
    weights_only: bool = True,
    into: object | None = None,
    keys: str | Iterable[str] | None = None,
    strict: bool = True,
    options: Options | None = None,
) -> Any:
    """The state in ``f``, bit for bit, or ``into`` filled with it.

    ``f``: a path, URL or readable, seekable binary file of one object; or the folder or URL of a store, which gives
    its newest committed step. ``map_location``: as in ``torch.load`` (with ``into`` its
    devices decide). ``weights_only=False`` allows pickled objects.
    ``keys``: names or globs of leaves or branches (``"model/*"``); only their bytes are read. ``into``: a mapping,
    module, optimizer or nest of them, filled in place (tensors keep their identity); then a ``LoadReport`` with
    ``missing``, ``unexpected`` and ``mismatched`` is returned, and ``strict=True`` demands that all three are empty.

    Raises ``CheckpointNotFoundError``, ``IntegrityError`` kinds (do not trust the file), ``StateMismatchError``
    (nothing was changed), ``UnsafeLoadError``, ``UnsupportedError`` (a newer format), ``StorageError`` kinds.
    """
    options = Options.given(options)
    request = LoadRequest(map_location, weights_only, into, keys, strict)
    return load_blocking(_where(f), request, options)


def load_async(
    f: Place,
    map_location: MapLocation = None,
    *,
    weights_only: bool = True,
    into: object | None = None,
    keys: str | Iterable[str] | None = None,
    strict: bool = True,
    options: Options | None = None,
) -> LoadHandle:
    """``load`` in the background; the handle's result is what ``load`` returns."""
    options = Options.given(options)
    request = LoadRequest(map_location, weights_only, into, keys, strict)
    return load_in_background(_where(f), request, options)


def save_checkpoint(
    obj: object,
    store: Store,
    *,
    step: int,
    metadata: Mapping[str, object] | None = None,
    pickle_objects: bool = False,
    options: Options | None = None,
) -> CheckpointInfo:
    """Save and commit one step of a store. Raises what ``Checkpointer.save`` raises."""
    with Checkpointer(store, options=options) as checkpointer:
        return checkpointer.save(obj, step=step, metadata=metadata, pickle_objects=pickle_objects)


def load_checkpoint(
    store: Store,
    step: int | None = None,
    *,
    map_location: MapLocation = None,
    weights_only: bool = True,
    into: object | None = None,
    keys: str | Iterable[str] | None = None,
    strict: bool = True,
    options: Options | None = None,
) -> Any:
    """The state of a committed step, the newest by default. Raises what ``load`` raises."""
    with Checkpointer(store, options=options) as checkpointer:
        return checkpointer.load(
            step, map_location=map_location, weights_only=weights_only, into=into, keys=keys, strict=strict
        )


def inspect(f: Place, *, options: Options | None = None) -> Inspection:
    """What is in a checkpoint, from its manifest alone: no tensor is read. ``f`` as in ``load``."""
    return inspect_place(_where(f), Options.given(options))


def verify(f: Place, *, options: Options | None = None) -> CheckpointInfo:
    """Read every byte of a checkpoint and check it. Raises ``IntegrityError`` kinds naming what is broken."""
    return verify_place(_where(f), Options.given(options))


def wait_all(timeout: float | None = None) -> None:
    """Wait for every pending save. Raises ``TimeoutError``, or a failure that nobody looked at."""
    pending().wait_all(timeout)


def _destination(f: Place) -> ObjectDestination:
    if not isinstance(f, str | os.PathLike):
        storage = StreamStorage(f)
        return ObjectDestination(storage, STREAM_KEY, storage.url)
    root, key = split_url(f)
    return ObjectDestination(open_storage(root), key, os.fspath(f))


def _where(f: Place) -> Where:
    """Tell an object from a store: locally a folder is a store; elsewhere the name is tried as an object first."""
    if not isinstance(f, str | os.PathLike):
        storage = StreamStorage(f)
        return Where(storage, STREAM_KEY)
    if is_local(f):
        path = local_path(f)
        if os.path.isdir(path):
            return Where(open_storage(path), None)
        root, key = split_url(path)
        return Where(open_storage(root), key)
    try:
        root, key = split_url(f)
    except UsageError:  # a bucket or a whole memory storage: no object can have this name
        return Where(open_storage(f), None)
    return Where(open_storage(root), key, store=open_storage(f))
