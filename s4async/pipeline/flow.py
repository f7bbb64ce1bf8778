"""How work flows: ordered results from threads under a byte budget, bounded runners, and the meter of a save.

Two shapes are enough. ``ordered`` (saving): jobs run in threads, results come back in order, and no more raw bytes are
in flight than the window allows, though one job always passes, so nothing can deadlock. ``spread`` (restoring): a fixed
number of runners take jobs from one iterator; order does not matter. Both end every task they started before they
return, whatever happens, so that no thread touches a buffer after its owner has gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["Meter", "in_thread", "ordered", "spread"]

J = TypeVar("J")
R = TypeVar("R")


@dataclass(slots=True)
class Meter:
    """Counters of one save or restore. Written by the engine's loop only; reading from other threads is harmless."""

    frames: int = 0
    frames_done: int = 0
    raw_nbytes: int = 0
    raw_done_nbytes: int = 0
    stored_nbytes: int = 0
    encode_s: float = 0.0  # summed over threads
    upload_s: float = 0.0  # waiting for the storage
    commit_s: float = 0.0
    by_dtype: dict[str, tuple[int, int]] = field(default_factory=dict)  # dtype -> raw, stored bytes

    def add_frame(self, dtype: str, raw_nbytes: int, stored_nbytes: int, seconds: float) -> None:
        self.frames_done += 1
        self.raw_done_nbytes += raw_nbytes
        self.stored_nbytes += stored_nbytes
        self.encode_s += seconds
        raw, stored = self.by_dtype.get(dtype, (0, 0))
        self.by_dtype[dtype] = (raw + raw_nbytes, stored + stored_nbytes)


async def in_thread(pool: Executor, run: Callable[..., R], *args: object) -> R:
    """``run(*args)`` in a thread. A cancellation is passed on only after the thread has let go of its arguments."""
    future = pool.submit(run, *args)
    try:
        return await asyncio.wrap_future(future)
    finally:
        await _settle([future])


async def ordered(
    jobs: Iterable[J], run: Callable[[J], R], cost: Callable[[J], int], pool: Executor, window_nbytes: int
) -> AsyncGenerator[R, None]:
    """Results of ``run(job)``, computed in ``pool``, in the order of ``jobs``; at most ``window_nbytes`` in flight.

    A result counts as in flight until the consumer asks for the next one. Close it with ``contextlib.aclosing``: it
    then cancels what has not begun and waits for what has.
    """
    pending: deque[tuple[Future[R], int]] = deque()
    in_flight = 0
    try:
        for job in jobs:
            nbytes = cost(job)
            while pending and in_flight + nbytes > window_nbytes:
                result = await asyncio.wrap_future(pending[0][0])
                done = pending.popleft()[1]
                yield result
                in_flight -= done
            pending.append((pool.submit(run, job), nbytes))
            in_flight += nbytes
        while pending:
            result = await asyncio.wrap_future(pending[0][0])
            pending.popleft()
            yield result
    finally:
        await _settle([future for future, _ in pending])


async def _settle(futures: list[Future[R]]) -> None:
    """Cancel what has not begun and wait for what has. Outcomes are dropped: the first failure is on its way up.

    Works on the threads' own futures: cancelling an asyncio future says nothing about the thread behind it.
    """
    waiting = {asyncio.wrap_future(future) for future in futures if not future.cancel() and not future.done()}
    while waiting:
        try:
            done, waiting = await asyncio.wait(waiting)
        except asyncio.CancelledError:
            continue  # a cancellation is what brought us here; a second one must not leave a thread behind
        for future in done:
            future.exception()


async def spread(jobs: Iterable[J], run: Callable[[J], Awaitable[None]], runners: int) -> None:
    """Run every job with at most ``runners`` at a time; the first failure cancels the others."""
    iterator: Iterator[J] = iter(jobs)

    async def runner() -> None:
        for job in iterator:  # shared: each job is taken once
            await run(job)

    async with asyncio.TaskGroup() as group:
        for _ in range(runners):
            group.create_task(runner())
