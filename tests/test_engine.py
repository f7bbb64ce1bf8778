"""The one loop: outcomes, cancellation, callbacks, forks."""

import asyncio
import os
import threading
from concurrent.futures import CancelledError

import pytest

from s4async import engine
from s4async.errors import StorageError, UsageError
from s4async.options import Options


async def _value(value: int) -> int:
    return value


async def _set(event: asyncio.Event) -> None:
    event.set()


async def _fail(error: BaseException) -> None:
    raise error


def test_run_returns_and_raises() -> None:
    assert engine.current().run(_value(7)) == 7
    with pytest.raises(KeyError):
        engine.current().run(_fail(KeyError("x")))


def test_a_group_of_errors_arrives_as_the_first_of_ours() -> None:
    group = ExceptionGroup("tasks", [ValueError("a"), ExceptionGroup("inner", [StorageError("disk")])])
    with pytest.raises(StorageError, match="disk") as caught:
        engine.current().run(_fail(group))
    assert any("ValueError: a" in note for note in caught.value.__notes__)


def test_one_engine_per_process_on_its_own_thread() -> None:
    assert engine.current() is engine.current()

    async def where() -> str:
        assert engine.current().on_own_thread
        return threading.current_thread().name

    assert engine.current().run(where()) == "s4async-engine"
    assert not engine.current().on_own_thread


def test_waiting_on_the_engines_thread_is_refused_not_hung() -> None:
    async def nested() -> None:
        engine.current().run(_value(1))

    with pytest.raises(UsageError, match="callback"):
        engine.current().run(nested())


def test_cancel_answers_whether_it_will() -> None:
    begun = threading.Event()
    undone = threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            undone.set()

    job = engine.current().submit(work())
    assert begun.wait(10)
    assert job.cancel().result(10) is True
    with pytest.raises(CancelledError):
        job.future.result(10)
    assert undone.is_set()
    assert job.cancel().result(10) is False


def test_work_cancelled_before_it_begins_still_undoes_what_it_holds() -> None:
    async def cancelled_early() -> tuple[bool, list[str]]:
        steps = []

        async def work() -> None:
            try:
                steps.append("begun")
                await asyncio.sleep(60)
                steps.append("not reached")
            finally:
                steps.append("undone")

        job = engine.current().submit(work())  # on the loop's thread, so that it cannot begin before this returns
        answer = job.cancel_now()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.wrap_future(job.future), 10)
        return answer, steps

    assert engine.current().run(cancelled_early()) == (True, ["begun", "undone"])


def test_cancel_comes_too_late_once_held() -> None:
    jobs: list[engine.Job[str]] = []
    holds = threading.Event()
    go = asyncio.Event()

    async def work() -> str:
        while not jobs:
            await asyncio.sleep(0)
        jobs[0].hold()
        holds.set()
        await go.wait()
        return "committed"

    job = engine.current().submit(work())
    jobs.append(job)
    assert holds.wait(10)
    assert job.cancel().result(10) is False
    engine.current().run(_set(go))
    assert job.future.result(10) == "committed"


def test_threads_are_nice_in_the_background_only() -> None:
    options = Options(threads=1, niceness=7)

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    here = niceness()
    tools = engine.current().tools(options, background=True)
    assert tools.threads.submit(niceness).result(10) == min(19, here + 7)
    assert engine.current().tools(options, background=False).threads.submit(niceness).result(10) == here


def test_a_forked_child_gets_an_engine_of_its_own() -> None:
    engine.current().run(_value(1))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"%d" % engine.current().run(_value(5)))
        os._exit(0)
    os.close(write)
    assert os.read(read, 10) == b"5"
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    assert engine.current().run(_value(2)) == 2
