"""How a process may end while a save is pending: the checkpoint is whole or absent, and the exit code is its own.

Normal exits, exceptions, ``sys.exit`` and ``os._exit`` are in ``tests/cases/test_async_exit.py``; here are signals,
threads, forks and the time limit.
"""

import signal
from pathlib import Path

import pytest

import s4async
from s4async.errors import CheckpointNotFoundError
from tests.cases.harness import assert_same, noise
from tests.children import Done, run_child

STATE = {"w": noise(3_000_000)}
SAVE = "handle = s4async.save_async({'w': noise(3_000_000)}, 'x.s4')\n"


def whole_or_absent(folder: Path) -> bool:
    """Whether the checkpoint is there, and then right; the next save leaves no debris."""
    try:
        assert_same(STATE, s4async.load(folder / "x.s4"))
        there = True
    except CheckpointNotFoundError:
        there = False
    s4async.save({"n": 1}, folder / "y.s4")
    assert {file.name for file in folder.iterdir()} <= {"x.s4", "y.s4"}
    return there


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_deadly_signal_leaves_a_whole_checkpoint_or_none(tmp_path: Path, number: signal.Signals) -> None:
    done = run_child(SAVE + f"os.kill(os.getpid(), {int(number)})", cwd=tmp_path)
    assert done.returncode == -number
    whole_or_absent(tmp_path)


def test_ctrl_c_while_the_script_goes_on_finishes_the_save(tmp_path: Path) -> None:
    done = run_child(SAVE + "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)", cwd=tmp_path)
    assert done.returncode in (1, -signal.SIGINT) and "KeyboardInterrupt" in done.stderr
    assert whole_or_absent(tmp_path)


def test_ctrl_c_in_a_blocking_save_undoes_it_and_frees_the_way() -> None:
    done = run_child("""
    file = GatedFile()
    def interrupt():
        assert file.entered.wait(20)
        os.kill(os.getpid(), signal.SIGINT)
        file.go.set()
    threading.Thread(target=interrupt).start()
    try:
        s4async.save({"n": 1}, file)
    except KeyboardInterrupt:
        print("stopped")
    s4async.save({"n": 2}, io.BytesIO())
    print("goes on")
    """)
    assert (done.returncode, done.stdout) == (0, "stopped\ngoes on\n")


@pytest.mark.parametrize("daemon", [True, False])
def test_a_save_begun_in_a_thread_is_finished(tmp_path: Path, daemon: bool) -> None:
    code = f"""
    def work():
        s4async.save_async({{'w': noise(3_000_000)}}, 'x.s4')
        begun.set()
    begun = threading.Event()
    threading.Thread(target=work, daemon={daemon}).start()
    assert begun.wait(20)
    """
    done = run_child(code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert whole_or_absent(tmp_path)


def test_a_save_from_an_exit_handler_works_or_is_refused_in_words(tmp_path: Path) -> None:
    done = run_child("atexit.register(lambda: s4async.save({'w': noise(3_000_000)}, 'x.s4'))", cwd=tmp_path)
    assert done.returncode == 0
    assert whole_or_absent(tmp_path) or "ClosedError" in done.stderr


def test_workers_of_a_data_loader_may_be_forked_meanwhile(tmp_path: Path) -> None:
    done = run_child(
        """
        import torch.utils.data
        file = GatedFile()
        handle = s4async.save_async({"n": 1}, file)
        assert file.entered.wait(20)
        loader = torch.utils.data.DataLoader(range(20), num_workers=2, multiprocessing_context="fork")
        assert sum(int(batch) for batch in loader) == 190
        file.go.set()
        handle.result(20)
        """,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


def in_time(done: Done) -> None:
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("s4async: save to <GatedFile>"), done.stderr
    assert "cancelled" in done.stderr


def test_exit_waits_no_longer_than_its_limit() -> None:
    in_time(
        run_child(
            """
            file = GatedFile()
            handle = s4async.save_async({"n": 1}, file)
            assert file.entered.wait(20)
            timer = threading.Timer(1.0, file.go.set)  # a write that has begun must end by itself
            timer.daemon = True
            timer.start()
            sys.exit(3)
            """,
            S4ASYNC_EXIT_TIMEOUT_S="0.2",
        )
    )


def test_ctrl_c_ends_the_wait_at_exit() -> None:
    in_time(
        run_child("""
        file = GatedFile()
        handle = s4async.save_async({"n": 1}, file)
        assert file.entered.wait(20)
        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            file.go.set()
        timer = threading.Timer(0.5, interrupt)
        timer.daemon = True
        timer.start()
        sys.exit(3)
        """)
    )


def test_a_failure_that_nobody_saw_is_one_line_at_exit() -> None:
    done = run_child("s4async.save_async({'n': 1}, FailingFile(3))\nsys.exit(5)")
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1 and "nobody looked" in done.stderr
