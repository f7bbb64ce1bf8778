"""The end of the script, and the caller's own event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import s4async
from s4async.errors import UsageError
from tests.cases.harness import GatedFile, all_steps, child, noise

# ---- the handle is never awaited and the script ends (fsspec/s3fs#543, agronholm/apscheduler#985)


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('boom')", 1),
        ("logging.shutdown(); del h; gc.collect()", 0),
        ("threading.Thread(target=h.result, daemon=True).start()", 0),
    ],
)
def test_a_save_is_finished_before_the_interpreter_exits(tmp_path: Path, tail: str, code: int) -> None:
    """Elsewhere: "cannot schedule new futures after interpreter shutdown", a truncated file, a lost last checkpoint.
    Right: finished first, and the exit code unchanged."""
    place = tmp_path / "ck.s4"
    done = child(f"h = s4async.save_async({{'w': noise(6_000_000)}}, {str(place)!r})\n{tail}")
    assert done.returncode == code, done.stderr
    assert torch.equal(s4async.load(place)["w"], noise(6_000_000))
    if code != 1:
        assert done.stderr == ""
    assert "shutdown" not in done.stderr and "never awaited" not in done.stderr


def test_saves_begun_in_threads_and_forks_are_finished_too(tmp_path: Path) -> None:
    """A daemon thread that saves while the script ends, and a forked worker that returns, lose nothing either."""
    done = child(f"""
    def work(name):
        s4async.save_async({{"w": noise(2_000_000)}}, f"{tmp_path}/{{name}}.s4")
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=work, args=("fork",))
    worker.start()
    worker.join()
    thread = threading.Thread(target=work, args=("thread",), daemon=True)
    thread.start()
    thread.join()
    with s4async.Checkpointer({str(tmp_path / "store")!r}) as store:
        store.save_async({{"w": noise(2_000_000)}}, step=7)
    never_closed = s4async.Checkpointer({str(tmp_path / "store")!r})
    never_closed.save_async({{"w": noise(2_000_000)}}, step=8)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("fork", "thread"):
        assert torch.equal(s4async.load(tmp_path / f"{name}.s4")["w"], noise(2_000_000))
    assert all_steps(tmp_path / "store") == [7, 8]
    assert torch.equal(s4async.load(tmp_path / "store")["w"], noise(2_000_000))


def test_os_exit_leaves_a_whole_checkpoint_or_none(tmp_path: Path) -> None:
    """Nothing runs after ``os._exit``. What is there is whole, or it is not there."""
    place = tmp_path / "ck.s4"
    child(f"s4async.save_async({{'w': noise(6_000_000)}}, {str(place)!r}); os._exit(0)")
    if place.exists():
        assert torch.equal(s4async.load(place)["w"], noise(6_000_000))
    s4async.save({"n": 1}, place)
    assert list(tmp_path.iterdir()) == [place]


# ---- inside running event loops (fsspec/s3fs#1012, aio-libs/aiobotocore#807, zarr-developers/zarr-python#2878)


def _runners() -> list[Any]:
    def uvloop_run(main: Any) -> Any:
        uvloop = pytest.importorskip("uvloop")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)

    return [pytest.param(asyncio.run, id="asyncio"), pytest.param(uvloop_run, id="uvloop")]


@pytest.mark.parametrize("run", _runners())
def test_loops_of_the_caller_in_turn(tmp_path: Path, run: Callable[[Any], Any]) -> None:
    """Elsewhere: "cannot run the event loop while another loop is running", "attached to a different loop", "event loop
    is closed". Right: blocking calls inside a loop, awaiting twice, two loops in turn, and a handle of a closed one."""

    async def main(value: int) -> s4async.SaveHandle:
        place = tmp_path / f"{value}.s4"
        s4async.save({"v": value}, place)
        file = GatedFile()
        handle = s4async.save_async({"v": value + 1}, file)

        async def opener() -> None:  # runs only if awaiting leaves the loop free
            await asyncio.sleep(0)
            file.go.set()

        opening = asyncio.ensure_future(opener())
        await handle
        await handle
        await opening
        assert s4async.load(place)["v"] == value and s4async.load(file.content())["v"] == value + 1
        assert (await s4async.load_async(place)) == {"v": value}
        with s4async.Checkpointer(tmp_path / "store") as store:
            await store.save_async({"v": value}, step=value)
            assert store.latest_step() == value
        return handle

    handles = [run(main(value)) for value in (1, 10)]
    assert all(handle.done() for handle in handles)
    assert handles[0].result(1) is not None

    async def other() -> object:
        return await handles[0]

    assert run(other()) == handles[0].result()


def test_handles_are_awaitable_in_every_way(tmp_path: Path) -> None:
    """``gather``, ``wait_for``, ``create_task`` of a wrapper and ``wrap_future`` all take a handle."""

    async def main() -> None:
        handles = [s4async.save_async({"n": n}, tmp_path / f"{n}.s4") for n in range(4)]
        infos = await asyncio.gather(*handles)
        assert [info.url for info in infos if info] == [str(tmp_path / f"{n}.s4") for n in range(4)]
        assert await asyncio.wait_for(handles[0], 10) == infos[0]
        assert await asyncio.wrap_future(handles[1]) == infos[1]

    asyncio.run(main())


def test_giving_up_on_an_await_does_not_stop_the_save() -> None:
    """A cancelled task or a time-out around the await is about the waiting, not about the checkpoint."""
    file = GatedFile()

    async def main() -> None:
        handle = s4async.save_async({"n": 5}, file)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0.01)
        assert not handle.done()
        file.go.set()
        await handle

    asyncio.run(main())
    assert s4async.load(file.content()) == {"n": 5}


def test_a_loop_that_is_gone_before_the_save_ends() -> None:
    """The loop that awaited was closed: the save ends all the same, and others still get its outcome."""
    file = GatedFile()

    async def main() -> s4async.SaveHandle:
        handle = s4async.save_async({"n": 5}, file)
        waiting = asyncio.ensure_future(_await(handle))
        await asyncio.sleep(0)
        waiting.cancel()
        return handle

    handle = asyncio.run(main())
    file.go.set()
    assert handle.result(60) is not None and s4async.load(file.content()) == {"n": 5}


async def _await(handle: s4async.SaveHandle) -> object:
    return await handle


def test_blocking_calls_in_a_callback_are_refused_not_hung(tmp_path: Path) -> None:
    """A callback runs on the engine's thread, the one thread that must not wait for itself. What does not block works:
    the next save can be begun there."""
    file, done = GatedFile(), threading.Event()
    told: list[str] = []
    begun: list[s4async.SaveHandle] = []
    calls: list[Callable[[], object]] = [
        lambda: s4async.save({"n": 1}, tmp_path / "never"),
        lambda: s4async.save_checkpoint({"n": 1}, tmp_path / "never", step=1),
        lambda: s4async.load(tmp_path / "missing"),
        lambda: s4async.verify(tmp_path / "missing"),
        lambda: s4async.Checkpointer(tmp_path / "missing").all_steps(),
    ]

    def callback(_: object) -> None:
        for call in calls:
            try:
                call()
            except UsageError as error:
                told.append(str(error))
        begun.append(s4async.save_async({"n": 2}, tmp_path / "next.s4"))
        done.set()

    s4async.save_async({"n": 0}, file).add_done_callback(callback)
    file.go.set()
    assert done.wait(60)
    assert len(told) == len(calls) and all("done-callback" in text for text in told)
    begun[0].result(60)
    assert s4async.load(tmp_path / "next.s4") == {"n": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["next.s4"]
