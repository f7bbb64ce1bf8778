from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from s4async.errors import ClosedError
from s4async.storage.threads import IOThreads


def test_results_and_errors_come_back() -> None:
    async def body() -> None:
        threads = IOThreads()
        assert await threads.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 7, 0)
        threads.close()
        threads.close()
        assert await threads.run(int) == 0  # a closed pool starts again
        threads.close()

    asyncio.run(body())


def test_no_more_threads_than_said() -> None:
    names = set()
    barrier = threading.Barrier(2)

    def note() -> None:
        names.add(threading.current_thread().name)
        barrier.wait(10)

    async def body() -> None:
        threads = IOThreads(threads=2)
        await asyncio.gather(*(threads.run(note) for _ in range(10)))
        threads.close()

    asyncio.run(body())
    assert len(names) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_cancelling_waits_for_the_call(fails: bool) -> None:
    leave = threading.Event()

    def work() -> None:
        assert leave.wait(10)
        if fails:
            raise ZeroDivisionError

    async def body() -> None:
        threads = IOThreads(threads=1)
        tasks = [asyncio.ensure_future(threads.run(work)) for _ in range(2)]  # one running, one waiting its turn
        await asyncio.sleep(0)
        for _ in range(3):
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        leave.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in done)
        threads.close()

    asyncio.run(body())


def test_a_timeout_around_a_call() -> None:
    leave = threading.Event()

    async def body() -> None:
        threads = IOThreads()
        asyncio.get_running_loop().call_later(0.02, leave.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await threads.run(leave.wait, 10)
        assert leave.is_set()
        threads.close()

    asyncio.run(body())


def test_an_executor_that_is_gone() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(ClosedError, match="no thread for a blocking call"):
        asyncio.run(IOThreads(executor).run(int))
