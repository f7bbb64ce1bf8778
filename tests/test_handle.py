"""Handles: futures that can be awaited, cancelled at any moment, and tell how far they are."""

from __future__ import annotations

import asyncio
import gc
import io
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, as_completed, wait
from pathlib import Path
from typing import Any

import pytest
import torch

import s4async
from s4async import engine
from s4async.errors import StorageError, UsageError
from s4async.handle import LoadHandle, SaveHandle
from s4async.pipeline.flow import Meter
from s4async.storage.local import LocalStorage
from s4async.storage.memory import MemoryStorage
from tests.cases.harness import FailingFile, GatedFile, full, noise
from tests.children import run_child
from tests.contracts.faults import When
from tests.gates import TIMEOUT_S, Gated, in_callback, loop_held, run_in_thread


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    s4async.wait_all(TIMEOUT_S)


# ---- a future


def test_a_handle_is_a_future_of_the_standard_library() -> None:
    file = GatedFile()
    handle = s4async.save_async({"n": 1}, file)
    assert not handle.done() and not handle.cancelled()
    for call in (handle.result, handle.exception):
        with pytest.raises(TimeoutError):
            call(0)
    file.go.set()
    info = handle.result(TIMEOUT_S)
    assert handle.done() and not handle.running() and handle.exception() is None and handle.result() is info
    assert isinstance(info, s4async.CheckpointInfo)
    assert (info.url, info.step, info.raw_bytes) == ("<GatedFile>", None, 0)
    assert info.stored_bytes == len(file.getvalue())


def test_result_and_exception_of_a_failed_save_are_the_same_error() -> None:
    handle = s4async.save_async({"n": 1}, FailingFile(0))
    with pytest.raises(StorageError) as caught:
        handle.result(TIMEOUT_S)
    assert handle.exception(0) is caught.value and handle.done() and not handle.cancelled()


def test_a_cancelled_handle_raises_from_result_and_exception() -> None:
    file = GatedFile()
    handle = s4async.save_async({"n": 1}, file)
    assert handle.cancel()
    file.go.set()
    for call in (handle.result, handle.exception):
        with pytest.raises(CancelledError):
            call(TIMEOUT_S)
    assert handle.cancelled() and handle.done() and not handle.cancel()


def test_staged_is_done_when_save_async_returns() -> None:
    file = GatedFile()
    handle = s4async.save_async({"w": full(10, 1)}, file)
    assert handle.staged.done() and handle.staged.result(0) is None and not handle.done()
    file.go.set()
    handle.result(TIMEOUT_S)


def test_wait_and_as_completed_take_handles() -> None:
    file = GatedFile()
    failed = s4async.save_async({"n": 1}, FailingFile(0))
    wait([failed], TIMEOUT_S)
    assert failed.exception() is not None
    done = s4async.save_async({"n": 2}, io.BytesIO())
    wait([done], TIMEOUT_S)
    gated = s4async.save_async({"n": 3}, file)
    first = wait([failed, done, gated], TIMEOUT_S, return_when=FIRST_COMPLETED)
    assert first.not_done == {gated}
    completed = as_completed([failed, done, gated], TIMEOUT_S)
    assert {next(completed), next(completed)} == {failed, done}
    file.go.set()
    assert next(completed) is gated


# ---- done-callbacks


def test_callbacks_run_once_each_in_order_on_the_engines_thread() -> None:
    file, seen, ended = GatedFile(), [], threading.Event()
    handle = s4async.save_async({"n": 1}, file)
    handle.add_done_callback(lambda h: seen.append((1, h is handle, threading.current_thread().name)))
    handle.add_done_callback(lambda h: seen.append((2, h.result() is not None, threading.current_thread().name)))
    handle.add_done_callback(lambda _: ended.set())
    file.go.set()
    assert ended.wait(TIMEOUT_S)
    assert seen == [(1, True, "s4async-engine"), (2, True, "s4async-engine")]
    handle.add_done_callback(lambda _: seen.append((3, True, threading.current_thread().name)))
    assert seen[2:] == [(3, True, "MainThread")]  # done already: at once, where it is asked for


def test_a_callback_that_raises_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    file, ended = GatedFile(), threading.Event()
    handle = s4async.save_async({"n": 1}, file)
    handle.add_done_callback(lambda _: 1 / 0)
    handle.add_done_callback(lambda _: ended.set())
    file.go.set()
    assert ended.wait(TIMEOUT_S) and handle.result(TIMEOUT_S) is not None
    assert "ZeroDivisionError" in caplog.text


BLOCKING: dict[str, Callable[[s4async.Checkpointer, Any], object]] = {
    "save": lambda store, place: s4async.save({"n": 2}, place),
    "load": lambda store, place: s4async.load(place),
    "inspect": lambda store, place: s4async.inspect(place),
    "verify": lambda store, place: s4async.verify(place),
    "save_checkpoint": lambda store, place: s4async.save_checkpoint({"n": 2}, "memory://callbacks", step=1),
    "store.save": lambda store, place: store.save({"n": 2}),
    "store.load": lambda store, place: store.load(),
    "store.latest_step": lambda store, place: store.latest_step(),
    "store.all_steps": lambda store, place: store.all_steps(),
    "store.delete": lambda store, place: store.delete(0),
    "store.close": lambda store, place: store.close(),
    "store.verify": lambda store, place: store.verify(),
}


@pytest.mark.parametrize("name", BLOCKING)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_blocking_calls_in_a_callback_are_refused_not_hung(tmp_path: Path, name: str, busy: bool) -> None:
    """Whether or not another save is pending that they would wait for."""
    place = tmp_path / "ck.s4"
    s4async.save({"n": 1}, place)
    storage = Gated(MemoryStorage(), 0 if busy else None)
    with s4async.Checkpointer(storage) as store:
        if busy:
            store.save_async({"n": 1}, step=0)
        with pytest.raises(UsageError, match="callback"):
            in_callback(lambda: BLOCKING[name](store, place))
        if busy:
            storage.open()
        assert store.wait_all(TIMEOUT_S) is None  # type: ignore[func-returns-value]
        assert store.all_steps() == ([0] if busy else [])


def test_waiting_in_a_callback_for_what_is_not_done_is_refused() -> None:
    file = GatedFile()
    handle = s4async.save_async({"n": 1}, file)
    for call in (handle.result, handle.exception, s4async.wait_all):
        with pytest.raises(UsageError):
            in_callback(call)
    with pytest.raises(UsageError, match="callback"):
        in_callback(lambda: s4async.save_async({"n": 2}, io.BytesIO(), on_overlap="wait"))
    file.go.set()
    handle.result(TIMEOUT_S)


def test_what_does_not_block_is_allowed_in_a_callback(tmp_path: Path) -> None:
    file, place = GatedFile(), tmp_path / "next.s4"
    handle = s4async.save_async({"n": 1}, file)
    next_one: list[SaveHandle] = []
    handle.add_done_callback(lambda _: next_one.append(s4async.save_async({"n": 2}, place)))
    handle.add_done_callback(lambda h: h.cancel())
    ended = threading.Event()
    handle.add_done_callback(lambda _: ended.set())
    file.go.set()
    assert ended.wait(TIMEOUT_S)
    assert next_one[0].result(TIMEOUT_S) is not None and s4async.load(place) == {"n": 2}
    loading = in_callback(lambda: s4async.load_async(place))
    assert isinstance(loading, LoadHandle) and loading.result(TIMEOUT_S) == {"n": 2}


# ---- awaiting


def _runners() -> list[Any]:
    def uvloop_run(main: Any) -> Any:
        uvloop = pytest.importorskip("uvloop")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)

    return [pytest.param(asyncio.run, id="asyncio"), pytest.param(uvloop_run, id="uvloop")]


@pytest.mark.parametrize("run", _runners())
def test_one_handle_is_awaited_from_two_loops_in_turn(run: Callable[[Any], Any]) -> None:
    file = GatedFile()
    handle = s4async.save_async({"n": 1}, file)

    async def give_up() -> None:
        waiting = asyncio.ensure_future(_await(handle))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    run(give_up())
    assert not handle.done() and not handle.cancelled()

    async def wait_for_it() -> object:
        asyncio.get_running_loop().call_soon(file.go.set)
        return await handle

    assert run(wait_for_it()) is handle.result(0)
    assert run(_await(handle)) is handle.result(0)


async def _await(handle: Any) -> object:
    return await handle


@pytest.mark.parametrize("run", _runners())
def test_several_are_awaited_at_once(run: Callable[[Any], Any], tmp_path: Path) -> None:
    file = GatedFile()

    async def main() -> tuple[Any, ...]:
        good = s4async.save_async({"n": 1}, tmp_path / "a.s4")
        bad = await asyncio.to_thread(s4async.save_async, {"n": 2}, FailingFile(0))
        bad.add_done_callback(lambda _: None)  # looked at: the next save need not tell its failure
        gated = await asyncio.to_thread(s4async.save_async, {"n": 3}, file)
        asyncio.get_running_loop().call_soon(file.go.set)
        return await asyncio.gather(good, bad, gated, gated, asyncio.wrap_future(good), return_exceptions=True)

    good, bad, gated, again, wrapped = run(main())
    assert good is wrapped and good.url == str(tmp_path / "a.s4")
    assert isinstance(bad, StorageError) and gated is again and s4async.load(file.content()) == {"n": 3}


def test_an_await_raises_what_happened() -> None:
    handle = s4async.save_async({"n": 1}, FailingFile(0))
    with pytest.raises(StorageError, match="No space left"):
        asyncio.run(_await(handle))
    file = GatedFile()
    cancelled = s4async.save_async({"n": 2}, file)
    assert cancelled.cancel()
    file.go.set()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_await(cancelled))


def test_awaiting_needs_a_running_loop() -> None:
    handle = s4async.save_async({"n": 1}, io.BytesIO())
    handle.result(TIMEOUT_S)
    with pytest.raises(RuntimeError, match="no running event loop"):
        next(handle.__await__())


def test_a_loop_closed_while_it_awaits_disturbs_nobody() -> None:
    file = GatedFile()
    handle = s4async.save_async({"n": 1}, file)
    loop = asyncio.new_event_loop()
    task = loop.create_task(_await(handle))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    file.go.set()
    assert handle.result(TIMEOUT_S) is not None and not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()
    assert s4async.save({"n": 2}, io.BytesIO()) is not None


def test_cancelling_a_wrapped_future_cancels_the_save() -> None:
    """``wrap_future`` ties the two together, unlike ``await handle``: that is what it is for."""
    file = GatedFile()
    handle = s4async.save_async({"n": 1}, file)

    async def main() -> None:
        wrapped = asyncio.wrap_future(handle)
        wrapped.cancel()
        await asyncio.wait([wrapped])

    asyncio.run(main())
    file.go.set()
    wait([handle], TIMEOUT_S)
    assert handle.cancelled() and not file.getvalue()


def test_a_load_is_awaited_too(tmp_path: Path) -> None:
    s4async.save({"w": full(10, 3)}, tmp_path / "ck.s4")

    async def main() -> Any:
        return await s4async.load_async(tmp_path / "ck.s4")

    assert asyncio.run(main())["w"].eq(3).all()


# ---- progress, report, repr


class _Watching(io.BytesIO):
    """Notes the progress of the save at every write, once the test has handed it over."""

    def __init__(self) -> None:
        super().__init__()
        self.handle: SaveHandle | None = None
        self.ready = threading.Event()
        self.seen: list[s4async.Progress] = []

    def write(self, data: Any, /) -> int:
        assert self.ready.wait(TIMEOUT_S) and self.handle is not None
        self.seen.append(self.handle.progress())
        return super().write(data)


def test_progress_grows_to_the_totals() -> None:
    file = _Watching()
    state = {"w": noise(200_000), "b": noise(50_000, 1).bfloat16(), "n": 1}
    options = s4async.Options(frame_bytes=64 << 10, window_bytes=128 << 10)
    file.handle = s4async.save_async(state, file, options=options)
    file.ready.set()
    file.handle.result(TIMEOUT_S)
    last = file.handle.progress()
    assert last.state == "COMMITTED"
    assert last.frames_done == last.frames > 10 and last.raw_bytes_done == last.raw_bytes == 900_000
    assert last.stored_bytes == len(file.getvalue())
    steps = [*file.seen, last]
    for name in ("frames_done", "raw_bytes_done", "stored_bytes"):
        counts = [getattr(step, name) for step in steps]
        assert counts == sorted(counts) and len(set(counts)) > 5
    assert {(step.frames, step.raw_bytes) for step in steps} == {(last.frames, 900_000)}
    assert {step.state for step in file.seen} == {"SNAPSHOTTED"}


def test_the_report_adds_up(tmp_path: Path) -> None:
    state = {"w": noise(100_000), "b": noise(1000, 1).bfloat16(), "n": torch.arange(50)}
    handle = s4async.save_async(state, tmp_path / "ck.s4")
    handle.result(TIMEOUT_S)
    r = handle.report
    assert r.stall_s >= r.wait_s + r.capture_s + r.snapshot_s - 1e-6
    assert min(r.wait_s, r.capture_s, r.snapshot_s, r.encode_s, r.upload_s, r.commit_s) >= 0
    assert r.total_s >= r.stall_s and r.total_s >= r.upload_s + r.commit_s and r.encode_s > 0
    assert sum(raw for raw, _ in r.by_dtype.values()) == r.raw_bytes == 402_400
    stored = sum(stored for _, stored in r.by_dtype.values())
    assert stored < r.stored_bytes == (tmp_path / "ck.s4").stat().st_size
    assert set(r.by_dtype) == {"float32", "bfloat16", "int64"}
    assert math.isclose(r.ratio, r.stored_bytes / r.raw_bytes)
    assert s4async.save_async({}, tmp_path / "none.s4").report.ratio == 0


def test_the_report_shows_the_wait_for_an_earlier_save(tmp_path: Path) -> None:
    file = GatedFile()
    first = s4async.save_async({"n": 1}, file)
    second = run_in_thread(lambda: s4async.save_async({"n": 2}, tmp_path / "ck.s4"))
    assert file.entered.wait(TIMEOUT_S)
    file.go.set()
    handle = second()
    assert isinstance(handle, SaveHandle) and first.done()
    handle.result(TIMEOUT_S)
    assert 0 < handle.report.wait_s <= handle.report.stall_s


def test_repr_shows_every_state(tmp_path: Path) -> None:
    def at(call: str, **options: Any) -> tuple[Gated, SaveHandle]:
        probe = Gated(MemoryStorage())
        s4async.Checkpointer(probe).save({"n": 1}, step=1)
        at = next(i for i, (name, _) in enumerate(probe.calls) if name == call)
        storage = Gated(MemoryStorage(), at)
        handle = s4async.Checkpointer(storage).save_async({"n": 1}, step=1, **options)
        storage.wait_until_reached()
        return storage, handle

    storage, handle = at("open_upload")
    assert repr(handle) == "<SaveHandle to memory://(unnamed) step 1 SNAPSHOTTED frames 0/0 bytes 0/0 stored 0>"
    skipped = s4async.save_async({"n": 2}, tmp_path / "ck.s4", on_overlap="skip")
    assert "SKIPPED" in repr(skipped) and skipped.skipped and not handle.skipped
    assert skipped.done() and skipped.staged.done() and skipped.result() is None and not skipped.cancel()
    storage.open()
    handle.result(TIMEOUT_S)
    assert " COMMITTED " in repr(handle)
    storage, handle = at("put")
    assert " STORED " in repr(handle) and " stored 0" not in repr(handle)
    storage.open()
    wait([handle], TIMEOUT_S)
    storage, handle = at("write")
    assert handle.cancel()
    wait([handle], TIMEOUT_S)
    assert " CANCELLED " in repr(handle)
    failed = s4async.save_async({"n": 1}, FailingFile(0))
    assert failed.exception(TIMEOUT_S) is not None and " FAILED " in repr(failed)


def test_repr_of_a_load(tmp_path: Path) -> None:
    place = tmp_path / "ck.s4"
    s4async.save({"w": noise(1000)}, place)
    with loop_held():
        running = s4async.load_async(place)
        assert repr(running) == f"<LoadHandle from {place} RUNNING frames 0/0 bytes 0/0 stored 0>"
    running.result(TIMEOUT_S)
    assert f"from {place} RESTORED frames 1/1 bytes 4000/4000" in repr(running)
    assert running.progress().state == "RESTORED"
    failed = s4async.load_async(tmp_path / "none.s4")
    assert failed.exception(TIMEOUT_S) is not None and " FAILED " in repr(failed)
    with loop_held():
        cancelled = s4async.load_async(place)
        answer = cancelled._job.cancel() if cancelled._job else None
    assert answer is not None and answer.result(TIMEOUT_S)
    wait([cancelled], TIMEOUT_S)
    assert " CANCELLED " in repr(cancelled)


# ---- cancelling


def _calls_before_the_commit(storage_of: Callable[[], Any]) -> list[str]:
    probe = Gated(storage_of())
    s4async.Checkpointer(probe).save({"w": noise(3000)}, step=1)
    names = [name for name, _ in probe.calls]
    return names[: names.index("put")]


CALLS = ("head", "open_upload", "write", "write", "write", "complete")
MOMENTS = [(0, When.BEFORE), *((at, when) for at in range(1, len(CALLS)) for when in When)]  # head finds nothing


@pytest.mark.parametrize(("at", "when"), MOMENTS, ids=[f"{when.value}-{at}-{CALLS[at]}" for at, when in MOMENTS])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_cancelling_in_every_stage_leaves_nothing(tmp_path: Path, kind: str, at: int, when: When) -> None:
    """Nothing visible, no temporary, no open upload, the snapshot's memory given back, and the next save works."""
    inner: Any = MemoryStorage() if kind == "memory" else LocalStorage(tmp_path)
    storage = Gated(inner, at, when)
    store = s4async.Checkpointer(storage)
    engine.current().arena.clear()
    handle = store.save_async({"w": noise(3000)}, step=1)
    storage.wait_until_reached()
    assert handle.cancel() is True
    with pytest.raises(CancelledError):
        handle.result(TIMEOUT_S)
    assert tuple(name for name, _ in storage.calls)[: at + 1] == CALLS[: at + 1]
    assert storage.open_uploads == 0 and engine.current().arena._kept is not None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert store.all_steps() == [] and engine.current().run(_keys(storage.storage)) == []
    storage.fault = None
    store.save({"n": 2}, step=1)
    assert store.load() == {"n": 2}


async def _keys(storage: Any) -> list[str]:
    return [info.key async for info in storage.list()]


def test_the_stages_above_are_all_there_are() -> None:
    assert tuple(_calls_before_the_commit(MemoryStorage)) == CALLS


def test_cancelling_before_the_first_line_of_the_work(tmp_path: Path) -> None:
    place = tmp_path / "ck.s4"

    def begin_and_cancel() -> SaveHandle:
        handle = s4async.save_async({"w": noise(3000)}, place)
        assert handle.cancel() is True
        return handle

    handle = in_callback(begin_and_cancel)
    assert isinstance(handle, SaveHandle)
    with pytest.raises(CancelledError):
        handle.result(TIMEOUT_S)
    assert "CANCELLED" in repr(handle) and list(tmp_path.iterdir()) == []
    s4async.save({"n": 1}, place, options=s4async.Options(on_overlap="error"))


@pytest.mark.parametrize("when", list(When), ids=lambda when: when.value)
def test_cancelling_during_the_commit_comes_too_late(when: When) -> None:
    storage = Gated(MemoryStorage(), len(CALLS), when)
    store = s4async.Checkpointer(storage)
    handle = store.save_async({"w": noise(3000)}, step=1)
    storage.wait_until_reached()
    assert storage.calls[-1][0] in ("put", "open_upload", "write") and handle.cancel() is False
    storage.open()
    assert handle.result(TIMEOUT_S) is not None and not handle.cancelled() and store.all_steps() == [1]
    assert handle.cancel() is False


def test_cancelling_an_object_comes_too_late_when_it_is_being_completed() -> None:
    class Flushing(GatedFile):
        def write(self, data: Any, /) -> int:
            return io.BytesIO.write(self, data)

        def flush(self) -> None:
            self.entered.set()
            assert self.go.wait(TIMEOUT_S)

    file = Flushing()
    handle = s4async.save_async({"n": 1}, file)
    assert file.entered.wait(TIMEOUT_S)
    assert handle.cancel() is False
    file.go.set()
    assert handle.result(TIMEOUT_S) is not None and s4async.load(file.content()) == {"n": 1}


def test_a_commit_that_begins_before_the_handle_knows_its_job_is_held_all_the_same() -> None:
    """The loop may be faster than the thread that called ``save_async``."""

    class Job:
        held = False

        def hold(self) -> None:
            self.held = True

    handle, job = SaveHandle("to nowhere", Meter()), Job()
    handle.hold()
    handle.attach(job)  # type: ignore[arg-type]
    assert job.held


def test_cancelling_a_load_leaves_no_thread_at_work(tmp_path: Path) -> None:
    s4async.save({"w": noise(3000)}, tmp_path / "ck.s4")
    target = {"w": full(3000, 0)}
    probe = Gated(MemoryStorage())
    s4async.Checkpointer(probe).save({"w": noise(3000)}, step=1)
    for at in range(len(probe.calls), len(probe.calls) + 4):
        storage = Gated(MemoryStorage(), at)
        store = s4async.Checkpointer(storage)
        store.save({"w": noise(3000)}, step=1)
        handle = store.load_async(into=target)
        storage.wait_until_reached()
        assert handle.cancel() is True
        with pytest.raises(CancelledError):
            handle.result(TIMEOUT_S)
    assert target["w"].eq(0).all()


def test_a_forked_child_neither_waits_for_nor_cancels_its_parents_save() -> None:
    done = run_child("""
    file = GatedFile()
    handle = s4async.save_async({"n": 1}, file)
    assert file.entered.wait(60)
    async def wait_for_it():
        await handle
    if os.fork() == 0:
        signal.alarm(30)
        assert "SNAPSHOTTED" in repr(handle) and handle.progress().frames == 0 and not handle.done()
        for call in (handle.result, handle.exception, handle.cancel, lambda: asyncio.run(wait_for_it())):
            try:
                call()
            except UsageError as error:
                assert "forked" in str(error), error
            else:
                os._exit(1)
        s4async.save({"n": 2}, io.BytesIO())
        s4async.wait_all()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    file.go.set()
    assert handle.result(60) is not None
    """)
    assert (done.returncode, done.stderr) == (0, "")
