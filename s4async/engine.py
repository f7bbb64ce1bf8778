"""The one thread with the one event loop, and the pools of threads that work for it.

Everything asynchronous runs here and nowhere else: callers get ``concurrent.futures``, never a coroutine, so training
code needs no loop and a loop of the caller's (Jupyter, Ray) is never touched. One engine per process, made on first
use; a forked child gets its own. At interpreter exit pending work is finished within ``exit_timeout_s``, before the
executors go away (``threading._register_atexit`` runs earlier than ``atexit`` and than the executors' own hook).

Owner of mutable state: the loop's thread for tasks, ``_lock`` for the rest.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

from s4async.device.cpu import CpuDevice
from s4async.device.pool import Arena, Pool
from s4async.errors import ClosedError, OperationalError, UsageError, single_error
from s4async.options import Options
from s4async.pipeline.save import Tools

__all__ = ["Engine", "Job", "at_exit", "current"]

T = TypeVar("T")
_POOL_KEEP_NBYTES = 256 << 20  # of frame buffers; about two windows
_STOP_TIMEOUT_S = 5.0  # an idle loop stops at once; a stuck one must not keep the interpreter
_EXITING = "the interpreter is exiting: s4async has stopped; save and load before the main thread ends"

_lock = threading.Lock()
_engine: Engine | None = None
_stopped = False  # at interpreter exit, for good
_exit_hooks: list[Callable[[], None]] = []


def current() -> Engine:
    """The process's engine, started if need be. Raises ``ClosedError`` once the interpreter's exit has stopped it."""
    global _engine
    with _lock:
        if _stopped:
            raise ClosedError(_EXITING)
        if _engine is None:
            _engine = Engine()
        return _engine


def at_exit(hook: Callable[[], None]) -> None:
    """Call ``hook`` at interpreter exit, while threads still run; later hooks first."""
    _exit_hooks.append(hook)


class Engine:
    """Runs coroutines on its own loop; ``submit`` from any thread."""

    def __init__(self) -> None:
        self.pool = Pool(_POOL_KEEP_NBYTES)
        self.arena = Arena()
        self.device = CpuDevice()
        self._executors: dict[tuple[int, int], ThreadPoolExecutor] = {}
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="s4async-engine", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # "can't start new thread at interpreter shutdown"
            raise ClosedError(_EXITING) from error
        self._loop = started.result()

    @property
    def on_own_thread(self) -> bool:
        """Whether the caller is this engine's thread, which must never block on its own work."""
        return threading.current_thread() is self._thread

    def check_may_block(self) -> None:
        """Raise ``UsageError`` on the engine's own thread."""
        if self.on_own_thread:
            raise UsageError(
                "a blocking s4async call inside a done-callback would wait for itself for ever: callbacks run on the "
                "engine's thread. Hand the work to a thread of your own, or use save_async or load_async"
            )

    def tools(self, options: Options, *, background: bool) -> Tools:
        """Device, buffers and threads. ``background``: niced threads, for work beside training."""
        return Tools(self.device, self.pool, self._threads(options, background), options)

    def submit(
        self, work: Coroutine[Any, Any, T], future: Future[T] | None = None, ended: Callable[[], None] | None = None
    ) -> Job[T]:
        """Start ``work`` on the loop; its outcome goes to ``future``, right after ``ended`` was called on the loop:
        always once, even if a cancellation came before the first line of ``work``. Raises ``ClosedError``."""
        job = Job(self._loop, Future() if future is None else future, ended or _nothing)
        try:
            self._loop.call_soon_threadsafe(job.start, work)
        except RuntimeError as error:  # the loop is closed
            work.close()
            raise ClosedError(_EXITING) from error
        return job

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and wait for it. Ctrl-C cancels it and waits until it has let go. Raises ``UsageError`` on
        the engine's own thread, where waiting would never end."""
        try:
            self.check_may_block()
        except UsageError:
            work.close()
            raise
        job = self.submit(work)
        try:
            return job.future.result()
        except BaseException:
            if not job.future.done():
                job.cancel()
                with suppress(BaseException):
                    job.future.exception()
            raise

    def _threads(self, options: Options, background: bool) -> ThreadPoolExecutor:
        key = (options.worker_threads, options.niceness if background else 0)
        with _lock:
            if key not in self._executors:
                name = "s4async-encode" if background else "s4async-work"
                self._executors[key] = ThreadPoolExecutor(key[0], name, initializer=_be_nice, initargs=(key[1],))
            return self._executors[key]

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            loop = runner.get_loop()
            loop.call_soon(started.set_result, loop)
            loop.run_forever()


class Job(Generic[T]):
    """A coroutine on the engine's loop and the future that gets its outcome.

    The coroutine always begins, so that whatever it has to undo is undone: one that is cancelled earlier gets the
    cancellation at its first wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, future: Future[T], ended: Callable[[], None]) -> None:
        self.future = future
        self._loop = loop
        self._ended = ended
        self._task: asyncio.Task[T] | None = None
        self._begun = False
        self._unwanted = False  # cancelled before it began
        self._held = False

    def start(self, work: Coroutine[Any, Any, T]) -> None:
        """On the loop."""
        self._task = self._loop.create_task(self._run(work))
        self._task.add_done_callback(self._finish)

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        self._begun = True
        if self._unwanted and self._task is not None:
            self._task.cancel()
        try:
            return await work
        except (KeyboardInterrupt, SystemExit) as error:  # from code of the caller; asyncio would stop the loop for all
            raise OperationalError(f"code called in the background raised {error!r}") from error

    def hold(self) -> None:
        """On the loop: from here on a cancellation comes too late (the commit has begun)."""
        self._held = True

    def cancel(self) -> Future[bool]:
        """Ask the task to stop, from any thread. The answer: whether it will; it comes as soon as the loop turns."""
        answer: Future[bool] = Future()
        self._loop.call_soon_threadsafe(lambda: answer.set_result(self.cancel_now()))
        return answer

    def cancel_now(self) -> bool:
        """The same on the loop's own thread."""
        if not self._begun:
            self._unwanted = True
            return True
        if self._held or self._task is None or self._task.done():
            return False
        return self._task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        self._ended()
        self._task, self._ended = None, _nothing  # a future that is kept keeps its job, and this would keep the rest
        if task.cancelled():
            Future.cancel(self.future)
            self.future.set_running_or_notify_cancel()
        elif (error := task.exception()) is not None:
            self.future.set_exception(single_error(error))
        else:
            self.future.set_result(task.result())


def _nothing() -> None:
    """The end of work that nobody waits for in particular."""


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it exists, asyncio's own elsewhere."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _be_nice(niceness: int) -> None:
    """Lower this thread's priority, where priorities are per thread (Linux), so that training goes first."""
    if niceness and sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + niceness))


def _stop(engine: Engine) -> None:
    engine._loop.call_soon_threadsafe(engine._loop.stop)
    engine._thread.join(_STOP_TIMEOUT_S)


def _exit() -> None:
    global _stopped
    try:
        for hook in reversed(_exit_hooks):
            hook()
    finally:
        with _lock:
            _stopped = True
        if _engine is not None:
            _stop(_engine)


def _forget_in_child() -> None:
    """A forked child has the parent's memory but none of its threads."""
    global _engine, _lock
    _engine = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
# The only hook that runs before concurrent.futures refuses new work; private, but the same in CPython 3.9 to 3.14.
getattr(threading, "_register_atexit", atexit.register)(_exit)
