"""Storages and helpers that stop the engine's work at a chosen place, for as long as a test wants. No clocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from s4async import engine
from s4async.storage.base import Storage
from tests.contracts.faults import Fault, Faulty, When

__all__ = ["TIMEOUT_S", "Gated", "in_callback", "loop_held", "run_in_thread"]

TIMEOUT_S = 30.0  # far above what anything here needs


class Gated(Faulty):
    """A storage that waits at its call number ``at`` until ``open``; then it goes on. Counts open uploads."""

    def __init__(self, storage: Storage, at: int | None = None, when: When = When.BEFORE) -> None:
        super().__init__(storage, None if at is None else Fault(at, when))
        self.open_uploads = 0
        self._go = asyncio.Event()

    async def strike(self, number: int, when: When) -> None:
        if self.is_due(number, when):
            self.hanging.set()
            await self._go.wait()

    @asynccontextmanager
    async def open_upload(self, key: str, **options: Any) -> AsyncIterator[Any]:
        self.open_uploads += 1
        try:
            async with super().open_upload(key, **options) as upload:
                yield upload
        finally:
            self.open_uploads -= 1

    def wait_until_reached(self) -> None:
        engine.current().run(asyncio.wait_for(self.hanging.wait(), TIMEOUT_S))

    def open(self) -> None:
        engine.current().run(_set(self._go))


async def _set(event: asyncio.Event) -> None:
    event.set()


@contextmanager
def loop_held() -> Iterator[None]:
    """The engine's loop does not turn inside: what is begun meanwhile has not run a line."""
    held, go = threading.Event(), threading.Event()

    async def hold() -> None:
        held.set()
        go.wait(TIMEOUT_S)

    job = engine.current().submit(hold())
    assert held.wait(TIMEOUT_S)
    try:
        yield
    finally:
        go.set()
        job.future.result(TIMEOUT_S)


def in_callback(function: Callable[[], object]) -> object:
    """What ``function`` returns, or raises, on the engine's thread, where done-callbacks run."""

    async def call() -> object:
        return function()

    return engine.current().submit(call()).future.result(TIMEOUT_S)


def run_in_thread(function: Callable[[], object]) -> Callable[[], object]:
    """Start ``function`` in a thread; the result waits for it and returns or raises as it did."""
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the test waits
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()

    def join() -> object:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    return join
