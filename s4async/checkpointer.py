"""Checkpointer: many steps under one URL, and the object behind ``save_checkpoint`` and ``load_checkpoint``.

Thread-safe. Every blocking method runs its storage work on the engine; ``save_async`` returns once the state is
captured. Used as a context manager it waits for its saves and raises a failure that nobody looked at.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from types import TracebackType
from typing import Any, Self

from s4async import engine
from s4async.catalog import Catalog, check_step
from s4async.errors import ClosedError, S4AsyncError, UsageError
from s4async.handle import CheckpointInfo, LoadHandle, SaveHandle
from s4async.inspection import Inspection, inspect_place, verify_place
from s4async.loading import LoadRequest, MapLocation, Where, load_blocking, load_in_background
from s4async.options import Options
from s4async.pending import pending
from s4async.saving import StepDestination, begin_save, wait_blocking
from s4async.storage.base import Storage, open_storage

__all__ = ["Checkpointer"]


class Checkpointer:
    """A store of checkpoints by step.

    ``store``: a folder, a URL, or a ``Storage``; ``None`` means the default store (``S4ASYNC_URL``, else
    ``s4async-checkpoints``). A step is a whole number of the caller's; it is committed once and never changed.
    """

    def __init__(
        self, store: str | os.PathLike[str] | Storage | None = None, *, options: Options | None = None
    ) -> None:
        self._options = Options.given(options)
        if store is None:
            store = self._options.url
        self._owned = isinstance(store, str | os.PathLike)
        self._storage = open_storage(store) if isinstance(store, str | os.PathLike) else _storage(store)
        self._catalog = Catalog(self._storage)
        self._handles: set[SaveHandle] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._storage.url

    def save(
        self,
        obj: object,
        *,
        step: int | None = None,
        metadata: Mapping[str, object] | None = None,
        pickle_objects: bool = False,
    ) -> CheckpointInfo:
        """Save and commit before returning. Arguments and errors as ``save_async``, and ``StorageError`` kinds."""
        handle = self._begin(obj, step, metadata, pickle_objects, background=False, on_overlap="wait")
        info = wait_blocking(handle)
        if info is None:
            raise ClosedError(f"{self.url}: the save was skipped")
        return info

    def save_async(
        self,
        obj: object,
        *,
        step: int | None = None,
        on_overlap: str | None = None,
        metadata: Mapping[str, object] | None = None,
        pickle_objects: bool = False,
    ) -> SaveHandle:
        """Capture ``obj`` and return; encoding, writing and the commit go on behind.

        ``step``: ``None`` takes the one after the newest. ``on_overlap``: what to do while another save of this
        process runs: ``"wait"`` (default), ``"skip"`` or ``"error"``. ``metadata``: plain JSON kept beside the state.
        ``pickle_objects``: allow leaves that only pickle can carry; loading then needs ``weights_only=False``.

        Raises ``UnsupportedStateError`` (a leaf cannot be carried, nothing was written), ``OverlapError``,
        ``UsageError``, ``ClosedError``, ``BudgetError``, or the failure of an earlier save that nobody looked at.
        """
        rule = self._options.on_overlap if on_overlap is None else on_overlap
        return self._begin(obj, step, metadata, pickle_objects, background=True, on_overlap=rule)

    def load(
        self,
        step: int | None = None,
        *,
        map_location: MapLocation = None,
        weights_only: bool = True,
        into: object | None = None,
        keys: str | Iterable[str] | None = None,
        strict: bool = True,
    ) -> Any:
        """The state of ``step``, by default of the newest committed one. Arguments and errors as ``s4async.load``."""
        request = LoadRequest(map_location, weights_only, into, keys, strict)
        return load_blocking(self._where(step), request, self._options)

    def load_async(
        self,
        step: int | None = None,
        *,
        map_location: MapLocation = None,
        weights_only: bool = True,
        into: object | None = None,
        keys: str | Iterable[str] | None = None,
        strict: bool = True,
    ) -> LoadHandle:
        """``load`` in the background: a handle whose result is what ``load`` returns."""
        request = LoadRequest(map_location, weights_only, into, keys, strict)
        return load_in_background(self._where(step), request, self._options)

    def latest_step(self) -> int | None:
        """The newest committed step, ``None`` in an empty store."""
        self._check_open()
        return engine.current().run(self._catalog.latest())

    def all_steps(self) -> list[int]:
        """Committed steps, ascending."""
        self._check_open()
        return engine.current().run(self._catalog.steps())

    def delete(self, step: int) -> None:
        """Remove a committed step, after this object's pending saves. Raises ``CheckpointNotFoundError``."""
        self._check_open()
        number = check_step(step)
        engine.current().check_may_block()
        wait(self._pending())
        engine.current().run(self._catalog.delete(number))

    def verify(self, step: int | None = None) -> CheckpointInfo:
        """Read every byte of a step and check it. Raises ``IntegrityError`` kinds naming what is broken."""
        return verify_place(self._where(step), self._options)

    def inspect(self, step: int | None = None) -> Inspection:
        """What a step holds, from its manifest alone."""
        return inspect_place(self._where(step), self._options)

    def wait_all(self, timeout: float | None = None) -> None:
        """Wait for every pending save of the process. Raises ``TimeoutError``, or a failure nobody looked at."""
        pending().wait_all(timeout)

    def close(self) -> None:
        """Wait for this object's saves and release the storage; idempotent. Raises a failure nobody looked at."""
        if self._closed:
            return
        try:
            runner = engine.current()
        except ClosedError:  # the interpreter is exiting: nothing is pending any more, and the threads have ended
            self._closed = True
            return
        runner.check_may_block()
        self._closed = True
        wait(self._pending())
        if self._owned:
            runner.run(self._storage.close())
        pending().tell_failures()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except S4AsyncError as failure:  # the caller's own error matters more
            error.add_note(f"while closing {self!r}: {failure}")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._pending())} saves pending"
        return f"<Checkpointer {self.url} {state}>"

    def _begin(
        self,
        obj: object,
        step: int | None,
        metadata: Mapping[str, object] | None,
        pickle_objects: bool,
        *,
        background: bool,
        on_overlap: str,
    ) -> SaveHandle:
        self._check_open()
        destination = StepDestination(self._catalog, None if step is None else check_step(step))
        handle = begin_save(
            obj,
            destination,
            self._options,
            background=background,
            on_overlap=on_overlap,
            pickle_objects=pickle_objects,
            metadata=metadata,
        )
        with self._lock:
            self._handles = {h for h in self._handles if not h.done()} | {handle}
        return handle

    def _pending(self) -> list[SaveHandle]:
        with self._lock:
            return [handle for handle in self._handles if not handle.done() and not handle.inherited]

    def _where(self, step: int | None) -> Where:
        self._check_open()
        return Where(self._storage, None, None if step is None else check_step(step), owned=False)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was closed")


def _storage(store: Storage) -> Storage:
    if not hasattr(store, "open_upload"):
        raise UsageError(f"expected a folder, a URL or a Storage, got {type(store).__name__}")
    return store
