"""Writing one file: all or nothing whatever fails, wherever the process dies, and whoever looks on."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from s4async.errors import AccessDeniedError, PreconditionError, StorageError
from s4async.storage import newfile
from s4async.storage.newfile import NewFile

DATA = b"0123456789" * 1000


def write(path: Path | str, data: bytes = DATA, *, if_absent: bool = False) -> os.stat_result:
    file = NewFile(str(path), if_absent)
    try:
        file.create()
        file.write([memoryview(data)[:100], memoryview(data)[100:]])
        return file.complete()
    finally:
        file.discard()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def child(code: str, *args: object) -> str:
    """Run ``code`` in a fresh interpreter and give its output."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


CRASHES = """
import fcntl, os, sys
from s4async.storage.newfile import NewFile
from s4async.errors import PreconditionError
root = sys.argv[1]
CALLS = [(os, name) for name in
         "open mkdir writev fsync fstat rename link unlink close fchmod fchown scandir".split()] + [(fcntl, "flock")]

def die_at(n, after):
    count = 0
    def wrap(module, name):
        call = getattr(module, name)
        def wrapped(*args, **kwargs):
            nonlocal count
            count += 1
            if count == n and not after:
                os._exit(9)
            result = call(*args, **kwargs)
            if count == n:
                os._exit(9)
            return result
        setattr(module, name, wrapped)
    for module, name in CALLS:
        wrap(module, name)

def write(path, data, if_absent):
    file = NewFile(path, if_absent)
    try:
        file.create()
        file.write([memoryview(data)])
        return file.complete()
    finally:
        file.discard()

def look(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None

def temporaries(folder):
    return [name for name in os.listdir(folder) if name.endswith(".s4tmp")] if os.path.isdir(folder) else []

total = 0
for if_absent, old in ((False, None), (False, b"old" * 1000), (True, None), (True, b"old" * 1000)):
    seen = set()
    for after in (False, True):
        for n in range(1, 1000):
            folder = f"{root}/{if_absent}-{old is None}-{after}-{n}/deep"
            path = folder + "/x.s4"
            if old is not None:
                os.makedirs(folder)
                with open(path, "wb") as file:
                    file.write(old)
            pid = os.fork()
            if not pid:
                die_at(n, after)
                try:
                    write(path, b"new" * 2000, if_absent)
                except PreconditionError:
                    pass
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code in (0, 9), code
            found = look(path)
            allowed = {old} if if_absent and old else {old, b"new" * 2000}
            assert found in allowed, (if_absent, n, after, found and found[:10])
            assert code or found == (b"new" * 2000 if not (if_absent and old) else old)
            seen.add((found, bool(temporaries(folder))))
            write(folder + "/y.s4", b"next", False)
            assert temporaries(folder) == [], (if_absent, n, after)
            assert look(path) == found
            total += 1
            if code == 0:
                break
    assert len(seen) >= 3 - (if_absent and old is not None), seen
print(total)
"""


def test_death_at_every_system_call(tmp_path: Path) -> None:
    assert int(child(CRASHES, tmp_path)) > 80


def test_killed_uploads_leave_nothing_after_the_next_one(tmp_path: Path) -> None:
    code = """
    import os, sys
    from s4async.storage.newfile import NewFile
    for i in range(3):
        file = NewFile(f"{sys.argv[1]}/{i}.s4", False)
        file.create()
        file.write([memoryview(bytes(1000))])
    os._exit(0)
    """
    child(code, tmp_path)
    assert len(names(tmp_path)) == 3
    write(tmp_path / "next.s4")
    assert names(tmp_path) == ["next.s4"]


FAILING = [
    ("open", errno.EACCES),
    ("open", errno.EROFS),
    ("open", errno.ENOSPC),
    ("open", errno.EMFILE),
    ("mkdir", errno.EACCES),
    ("mkdir", errno.ENOSPC),
    ("writev", errno.ENOSPC),
    ("writev", errno.EDQUOT),
    ("writev", errno.EFBIG),
    ("writev", errno.EIO),
    ("fsync", errno.EIO),
    ("fsync", errno.ENOSPC),
    ("fsync", errno.EDQUOT),
    ("rename", errno.EACCES),
    ("rename", errno.ENOSPC),
    ("rename", errno.EXDEV),
    ("link", errno.ENOSPC),
    ("link", errno.EPERM),
    ("fchmod", errno.EPERM),
]


@pytest.mark.parametrize(("call", "code"), FAILING, ids=[f"{call}-{errno.errorcode[code]}" for call, code in FAILING])
def test_a_failing_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    path = tmp_path / "deep" / "x.s4" if call == "mkdir" else tmp_path / "x.s4"
    if call not in ("mkdir", "link"):
        path.write_bytes(b"old")
        path.chmod(0o640)
    before = names(tmp_path)

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code), args[0])

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StorageError) as caught:
            write(path, if_absent=call == "link")
    message = str(caught.value)
    assert message.startswith(f"writing {path}: ")
    assert os.strerror(code) in message
    assert "; " in message  # a remedy
    assert isinstance(caught.value.__cause__, OSError)
    assert isinstance(caught.value, AccessDeniedError) == (code in (errno.EACCES, errno.EROFS) or call == "fchmod")
    assert names(tmp_path) == before
    assert call in ("mkdir", "link") or path.read_bytes() == b"old"
    write(path)  # the next one works
    assert path.read_bytes() == DATA


def test_a_failing_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, failures = os.fsync, [errno.EIO]

    def fail_once(fd: int) -> None:
        if failures:
            raise OSError(failures.pop(), "Input/output error")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(StorageError, match="EIO.*system log"):
        write(tmp_path / "x.s4")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_synced_for_lack_of_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def files_only(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", files_only)
    write(tmp_path / "x.s4")
    assert (tmp_path / "x.s4").read_bytes() == DATA


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: writev(fd, [b"".join(buffers[:3])[:1001]]))
    write(tmp_path / "x.s4")
    assert (tmp_path / "x.s4").read_bytes() == DATA
    monkeypatch.setattr(os, "writev", lambda fd, buffers: 0)
    with pytest.raises(StorageError, match="wrote nothing"):
        write(tmp_path / "y.s4")


def test_calls_are_cut_to_what_the_system_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    writev = os.writev

    def spy(fd: int, buffers: list[memoryview]) -> int:
        sizes.append((len(buffers), sum(map(len, buffers))))
        return writev(fd, buffers)

    monkeypatch.setattr(os, "writev", spy)
    monkeypatch.setattr(newfile, "MAX_CALL_NBYTES", 1000)
    monkeypatch.setattr(newfile, "MAX_CALL_BUFFERS", 4)
    file = NewFile(str(tmp_path / "x.s4"), False)
    file.create()
    pieces = [DATA[:2500], b"", *(DATA[i : i + 10] for i in range(0, 100, 10))]
    file.write([memoryview(piece) for piece in pieces])
    file.complete()
    file.discard()
    assert (tmp_path / "x.s4").read_bytes() == b"".join(pieces)
    assert max(count for count, _ in sizes) == 4
    assert max(nbytes for _, nbytes in sizes) == 1000


NOBODY = """
import os, sys
from s4async.errors import AccessDeniedError, PreconditionError
from s4async.storage.newfile import NewFile
from s4async.storage.files import OpenFile, remove_file, scan_folder, stat_file
root = sys.argv[1]
os.getuid() or os.setuid(65534)

def must(call, *parts):
    try:
        call()
    except AccessDeniedError as error:
        for part in parts:
            assert part in str(error), (part, str(error))
        return
    raise AssertionError("nothing raised")

def write(path):
    file = NewFile(path, False)
    try:
        file.create()
        file.write([memoryview(b"new")])
        file.complete()
    finally:
        file.discard()

uid = f"user {os.getuid()}"
must(lambda: write(root + "/read-only/x.s4"), "writing", root + "/read-only/x.s4", "Permission denied", uid)
must(lambda: write(root + "/read-only/deep/x.s4"), "writing", root + "/read-only/deep/x.s4", "Permission denied")
must(lambda: write(root + "/closed/x.s4"), root + "/closed/x.s4", "EACCES")
must(lambda: write(root + "/open/protected.s4"), root + "/open/protected.s4", "read-only", "chmod u+w")
must(lambda: OpenFile(root + "/open/secret.s4").open(), "reading", root + "/open/secret.s4", uid)
must(lambda: stat_file(root + "/closed/x.s4"), "reading", root + "/closed/x.s4")
must(lambda: scan_folder(root, "closed", ""), "listing", root + "/closed")
must(lambda: remove_file(root + "/read-only/old.s4", root), "deleting", root + "/read-only/old.s4")
try:
    file = NewFile(root + "/open/protected.s4", True)
    file.create()
    file.complete()
except PreconditionError as error:
    file.discard()
    assert "exists already" in str(error)
write(root + "/open/x.s4")
print(sorted(os.listdir(root + "/open")), sorted(os.listdir(root + "/read-only")))
"""


def test_without_permission(open_folder: Path) -> None:
    for name in ("read-only", "closed", "open"):
        (open_folder / name).mkdir()
    (open_folder / "read-only" / "old.s4").write_bytes(b"old")
    for name, mode in (("protected.s4", 0o444), ("secret.s4", 0o200)):
        (open_folder / "open" / name).write_bytes(b"old")
        (open_folder / "open" / name).chmod(mode)
    for name, mode in (("read-only", 0o555), ("closed", 0o000), ("open", 0o777)):
        (open_folder / name).chmod(mode)
    try:
        assert child(NOBODY, open_folder).strip() == "['protected.s4', 'secret.s4', 'x.s4'] ['old.s4']"
    finally:
        for name in ("read-only", "closed"):
            (open_folder / name).chmod(0o755)


def test_a_file_size_limit(tmp_path: Path) -> None:
    write(tmp_path / "x.s4", b"old")
    code = """
    import os, resource, signal, sys
    from s4async.errors import StorageError
    from s4async.storage.newfile import NewFile
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    file = NewFile(sys.argv[1], False)
    try:
        file.create()
        file.write([memoryview(bytes(3 << 20))])
    except StorageError as error:
        print(error)
    finally:
        file.discard()
    """
    out = child(code, tmp_path / "x.s4")
    assert out.startswith(f"writing {tmp_path}/x.s4: File too large (EFBIG); free some space")
    assert names(tmp_path) == ["x.s4"]
    assert (tmp_path / "x.s4").read_bytes() == b"old"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(tiny_disk: Path) -> None:
    write(tiny_disk / "x.s4", b"old")
    for _ in range(3):
        with pytest.raises(StorageError, match=r"writing .*/x.s4: No space left on device \(ENOSPC\); free some space"):
            write(tiny_disk / "x.s4", bytes(2 << 20))
    assert names(tiny_disk) == ["x.s4"]
    assert (tiny_disk / "x.s4").read_bytes() == b"old"
    write(tiny_disk / "x.s4", bytes(900_000))  # the failed ones have given their space back


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_parent_that_is_a_file(tmp_path: Path, if_absent: bool) -> None:
    (tmp_path / "blocker").write_bytes(b"kept")
    for path in (tmp_path / "blocker" / "ck", tmp_path / "blocker" / "deep" / "ck"):
        with pytest.raises(StorageError, match=rf"writing {path}: .*blocker.*; a parent of this path is a file"):
            write(path, if_absent=if_absent)
    assert (tmp_path / "blocker").read_bytes() == b"kept"


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_path_that_is_a_folder(tmp_path: Path, if_absent: bool) -> None:
    (tmp_path / "x.s4").mkdir()
    with pytest.raises(
        StorageError, match=rf"writing {tmp_path}/x.s4: Is a directory \(EISDIR\); a folder has this name"
    ):
        write(tmp_path / "x.s4", if_absent=if_absent)
    assert names(tmp_path) == ["x.s4"]


@pytest.mark.parametrize("kind", ["pipe", "socket", "null", "full"])
def test_what_is_no_plain_file_is_never_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.symlink_to(f"/dev/{kind}")
    before = path.lstat()
    with pytest.raises(StorageError, match=r"device, pipe or socket.*pass the open file instead"):
        write(path)
    assert os.path.samestat(path.lstat(), before)
    assert names(tmp_path) == ["odd"]


def test_the_folder_vanishes(tmp_path: Path) -> None:
    file = NewFile(str(tmp_path / "deep" / "x.s4"), False)
    file.create()
    file.write([memoryview(DATA)])
    (tmp_path / "deep").rename(tmp_path / "moved")
    with pytest.raises(StorageError, match=r"writing .*/deep/x.s4: No such file or directory \(ENOENT\); .*vanished"):
        file.complete()
    file.discard()
    assert not (tmp_path / "deep").exists()
    write(tmp_path / "deep" / "x.s4")
    write(tmp_path / "moved" / "y.s4")
    assert names(tmp_path / "moved") == ["y.s4"]


def test_names_as_long_as_they_may_be(tmp_path: Path) -> None:
    for name in ("x" * 255, "é" * 127, "🙂" * 63, "x" + "é" * 127):
        write(tmp_path / name)
        assert names(tmp_path) == [name]
        (tmp_path / name).unlink()
    with pytest.raises(StorageError, match=r"ENAMETOOLONG\); choose a shorter name"):
        write(tmp_path / ("x" * 256))
    with pytest.raises(StorageError, match=r"ENAMETOOLONG\); choose a shorter name"):
        write(tmp_path / ("x" * 256) / "y")


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "real.s4").write_bytes(b"old")
    (tmp_path / "latest.s4").symlink_to("data/real.s4")
    (tmp_path / "chain.s4").symlink_to("latest.s4")
    (tmp_path / "dangling.s4").symlink_to("new/fresh.s4")
    write(tmp_path / "chain.s4", b"new")
    assert (tmp_path / "chain.s4").is_symlink()
    assert (tmp_path / "latest.s4").is_symlink()
    assert (tmp_path / "data" / "real.s4").read_bytes() == b"new"
    write(tmp_path / "dangling.s4", b"first", if_absent=True)
    assert (tmp_path / "new" / "fresh.s4").read_bytes() == b"first"
    with pytest.raises(PreconditionError):
        write(tmp_path / "dangling.s4", if_absent=True)
    assert names(tmp_path / "data") == ["real.s4"]


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop.s4").symlink_to("loop.s4")
    (tmp_path / "folder").symlink_to("gone")
    with pytest.raises(StorageError, match=r"ELOOP\); its symbolic links lead in a circle"):
        write(tmp_path / "loop.s4")
    with pytest.raises(StorageError, match=r"folder leads nowhere"):
        write(tmp_path / "folder" / "x.s4")
    assert names(tmp_path) == ["folder", "loop.s4"]


def test_modes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.s4"
    old = os.umask(0o027)
    try:
        write(path)
        assert path.stat().st_mode & 0o7777 == 0o640
        assert path.parent.stat().st_mode & 0o777 == 0o750
        for mode in (0o600, 0o644, 0o666, 0o755):
            path.chmod(mode)
            write(path)
            assert path.stat().st_mode & 0o7777 == mode
    finally:
        os.umask(old)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_replaced_object_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "x.s4"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


def test_if_absent_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="no hard links.*another file system"):
        write(tmp_path / "x.s4", if_absent=True)
    assert names(tmp_path) == []
    write(tmp_path / "x.s4")


def test_a_link_that_worked_but_is_reported_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    write(tmp_path / "x.s4", if_absent=True)
    assert names(tmp_path) == ["x.s4"]


class TestDebris:
    def make(self, folder: Path, machine: str | None = None, *, age_s: float = 0.0) -> Path:
        path = folder / f".x.s4.{machine or newfile._machine()}{'0' * 16}.s4tmp"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    def test_of_this_machine_goes_at_once(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        write(tmp_path / "y.s4")
        assert names(tmp_path) == ["y.s4"]

    def test_of_another_machine_goes_when_it_is_old(self, tmp_path: Path) -> None:
        young = self.make(tmp_path, "0badcafe")
        self.make(tmp_path, "0badcaff", age_s=newfile.FOREIGN_DEBRIS_AGE_S + 60)
        write(tmp_path / "y.s4")
        assert names(tmp_path) == [young.name, "y.s4"]

    def test_of_a_living_process_stays(self, tmp_path: Path) -> None:
        code = """
        import sys
        from s4async.storage.newfile import NewFile
        file = NewFile(sys.argv[1], False)
        file.create()
        file.write([memoryview(b"slow")])
        print("ready", flush=True)
        sys.stdin.readline()
        file.complete()
        """
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "x.s4")]
        with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            ours = NewFile(str(tmp_path / "z.s4"), False)
            ours.create()
            write(tmp_path / "y.s4")
            assert len(names(tmp_path)) == 3
            process.communicate("go\n", timeout=30)
        ours.complete()
        ours.discard()
        assert names(tmp_path) == ["x.s4", "y.s4", "z.s4"]
        assert (tmp_path / "x.s4").read_bytes() == b"slow"

    def test_what_only_looks_like_it_stays(self, tmp_path: Path) -> None:
        name = self.make(tmp_path).name
        (tmp_path / name).rename(tmp_path / "kept")
        (tmp_path / name).symlink_to("kept")
        os.mkfifo(tmp_path / name.replace("0.s4tmp", "1.s4tmp"))
        (tmp_path / name.replace("0.s4tmp", "2.s4tmp")).mkdir()
        (tmp_path / ".x.s4.short.s4tmp").touch()
        (tmp_path / "notes.s4tmp").touch()
        before = names(tmp_path)
        write(tmp_path / "y.s4")
        assert names(tmp_path) == sorted([*before, "y.s4"])

    def test_a_new_file_taken_for_debris_is_made_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        flock, rounds = fcntl.flock, []

        def slow(fd: int, operation: int) -> None:
            rounds.append(fd)
            if len(rounds) == 1:  # somebody else removed it, and is done
                os.unlink(next(tmp_path.glob(".*.s4tmp")))
            if len(rounds) == 2:  # somebody else holds it, and is about to remove it
                raise BlockingIOError(errno.EWOULDBLOCK, "busy")
            flock(fd, operation)

        monkeypatch.setattr(fcntl, "flock", slow)
        write(tmp_path / "y.s4")
        assert len(rounds) == 3
        assert names(tmp_path) == ["y.s4"]

    def test_without_locks_it_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(fd: int, operation: int) -> None:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(fcntl, "flock", refuse)
        stale = self.make(tmp_path)
        write(tmp_path / "y.s4")
        assert names(tmp_path) == [stale.name, "y.s4"]

    def test_a_forked_child_leaves_its_parents_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = NewFile(str(tmp_path / "x.s4"), False)
        file.create()
        twin = NewFile(str(tmp_path / "x.s4"), False)
        twin._temporary, twin._pid = file._temporary, -1
        twin.discard()
        file.write([memoryview(DATA)])
        file.complete()
        file.discard()
        assert (tmp_path / "x.s4").read_bytes() == DATA

    def test_folders_that_keep_vanishing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        open_ = os.open

        def gone(path: str, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            return open_(path, flags, mode)

        monkeypatch.setattr(os, "open", gone)
        with pytest.raises(StorageError, match=r"ENOENT\).*vanished"):
            write(tmp_path / "x.s4")


@pytest.mark.parametrize("if_absent", [False, True])
def test_bytes_are_durable_before_the_name_and_the_name_before_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, if_absent: bool
) -> None:
    steps = []

    def spied(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def spy(*args: object) -> object:
            place = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else str(args[-1])
            steps.append((name, "temporary" if place.endswith(".s4tmp") else place.removeprefix(str(tmp_path))))
            return call(*args)

        return spy

    for name in ("mkdir", "writev", "fsync", "rename", "link", "unlink"):
        monkeypatch.setattr(os, name, spied(name, getattr(os, name)))
    write(tmp_path / "a" / "b" / "x.s4", if_absent=if_absent)
    moved, then = (("link", "/a/b/x.s4"), [("unlink", "temporary")]) if if_absent else (("rename", "/a/b/x.s4"), [])
    assert steps == [
        ("mkdir", "/a"),
        ("fsync", ""),
        ("mkdir", "/a/b"),
        ("fsync", "/a"),
        ("writev", "temporary"),
        ("fsync", "temporary"),
        moved,
        ("fsync", "/a/b"),
        *then,
    ]
