"""Order, windows, and that no thread outlives its caller."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest

from s4async.pipeline.flow import Meter, in_thread, ordered, spread


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_results_come_in_order_though_threads_end_in_any(pool: ThreadPoolExecutor) -> None:
    later_done = threading.Event()

    def work(job: int) -> int:
        if job == 0:
            assert later_done.wait(10)
        if job == 1:
            later_done.set()
        return job * job

    async def main() -> list[int]:
        return [r async for r in ordered(range(20), work, lambda _: 1, pool, 4)]

    assert asyncio.run(main()) == [n * n for n in range(20)]


def test_the_window_bounds_what_is_in_flight_but_one_job_always_passes(pool: ThreadPoolExecutor) -> None:
    begun: list[int] = []

    def work(nbytes: int) -> int:
        begun.append(nbytes)
        return nbytes

    async def main() -> None:
        taken = 0
        async with aclosing(ordered([60, 50, 200, 40, 30], work, int, pool, 100)) as results:
            async for _ in results:
                taken += 1
                assert sum(begun[taken - 1 :]) <= 100 or len(begun) == taken

    asyncio.run(main())
    assert begun == [60, 50, 200, 40, 30]


def test_a_failure_arrives_and_running_threads_end_first(pool: ThreadPoolExecutor) -> None:
    release = threading.Event()
    begun: set[int] = set()
    ended: set[int] = set()

    def work(job: int) -> int:
        if job == 0:
            raise KeyError("first")
        begun.add(job)
        release.wait(10)
        ended.add(job)
        return job

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.05, release.set)
        with pytest.raises(KeyError):
            async with aclosing(ordered(range(8), work, lambda _: 1, pool, 100)) as results:
                async for _ in results:
                    pass
        assert release.is_set() and ended == begun

    asyncio.run(main())


def test_cancelling_waits_for_the_thread(pool: ThreadPoolExecutor) -> None:
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        release.wait(10)
        ended.set()

    async def main() -> None:
        task = asyncio.create_task(in_thread(pool, work))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


def test_spread_takes_each_job_once_with_bounded_runners() -> None:
    seen: list[int] = []
    running = 0

    async def work(job: int) -> None:
        nonlocal running
        running += 1
        assert running <= 3
        await asyncio.sleep(0)
        seen.append(job)
        running -= 1

    asyncio.run(spread(range(10), work, 3))
    assert sorted(seen) == list(range(10))


def test_spread_ends_all_runners_before_it_fails() -> None:
    cancelled: list[int] = []

    async def work(job: int) -> None:
        if job == 1:
            raise KeyError(job)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(job)
            raise

    with pytest.raises(ExceptionGroup):
        asyncio.run(spread(range(3), work, 3))
    assert sorted(cancelled) == [0, 2]


def test_the_meter_counts_by_dtype() -> None:
    meter = Meter()
    for raw, stored in ((10, 6), (20, 14)):
        meter.add_frame("bfloat16", raw, stored, 0.5)
    assert meter.by_dtype == {"bfloat16": (30, 20)}
    assert (meter.frames_done, meter.raw_done_nbytes, meter.stored_nbytes, meter.encode_s) == (2, 30, 20, 1.0)
