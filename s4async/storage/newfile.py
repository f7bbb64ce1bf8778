"""A file that appears at its path all at once: temporary, ``fsync``, ``rename``, ``fsync`` of the folder. Blocking.

The temporary is ``.<name>.<machine><random>.s4tmp`` beside its target, locked while its process lives. An object that
must not be replaced is linked instead of renamed. Whatever happens in between, the target is the old object or the new
one, and a temporary without a living owner is removed by the next upload into that folder. A final symbolic link is
followed, as ``open`` would. A replaced object's mode, and its owner where allowed, are kept; a new one has the mode
that ``open`` would give it.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import platform
import re
import secrets
import stat
import time
import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from s4async.errors import AccessDeniedError, PreconditionError, StorageError
from s4async.storage.base import TEMPORARY_SUFFIX, as_bytes
from s4async.storage.files import (
    FOLDER_FLAGS,
    MAX_CALL_NBYTES,
    NO_SUPPORT,
    check_plain,
    file_errors,
    sync_file,
    sync_folder,
)

__all__ = ["NewFile"]

MAX_CALL_BUFFERS = min(1024, os.sysconf("SC_IOV_MAX"))
FOREIGN_DEBRIS_AGE_S = 3600  # a living upload writes far more often
CREATE_ATTEMPTS = 100  # each is lost only to somebody who removes the empty folder or takes the new file for debris
NAME_NBYTES = 255  # of one path segment, on every common file system

_TEMPORARY = re.compile(r"\..*\.([0-9a-f]{8})[0-9a-f]{16}" + re.escape(TEMPORARY_SUFFIX), re.DOTALL)


class NewFile:
    """A file that appears at ``path`` all at once. Used by one thread at a time; every method may block."""

    def __init__(self, path: str, if_absent: bool) -> None:
        self.path = path
        self._if_absent = if_absent
        self._target = path
        self._temporary = ""
        self._fd = -1
        self._pid = os.getpid()

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def create(self) -> None:
        """Make missing folders and the temporary file, and remove what dead processes left in the folder."""
        with file_errors("writing", self.path):
            self._target = os.path.realpath(self.path) if os.path.islink(self.path) else self.path
            existing = _existing_file(self._target, keep=self._if_absent)
            folder, name = os.path.split(self._target)
            _remove_debris(folder)
            for _ in range(CREATE_ATTEMPTS):
                with suppress(FileNotFoundError):  # a delete removed a folder on the way because it was empty
                    _make_folders(folder)
                    if self._create_locked(folder, name, 0o666 if existing is None else 0o600):
                        break
            else:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
            if existing is not None:
                _take_over(self._fd, existing)

    def _create_locked(self, folder: str, name: str, mode: int) -> bool:
        ending = f".{_machine()}{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        short = os.fsencode(name)[: NAME_NBYTES - 1 - len(ending)].decode("utf-8", "ignore")
        temporary = os.path.join(folder, f".{short}{ending}")
        try:
            self._fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            return False
        self._temporary = temporary
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, *NO_SUPPORT):  # then nobody can take it for debris either
                return True
            if not isinstance(error, BlockingIOError):
                raise
        else:
            if os.fstat(self._fd).st_nlink:
                return True
        self.discard()  # another upload removed it as debris before it was locked
        return False

    def write(self, buffers: Sequence[memoryview]) -> None:
        """Append the buffers, all of them."""
        pending = deque(view for view in map(as_bytes, buffers) if view.nbytes)
        with file_errors("writing", self.path):
            while pending:
                written = os.writev(self._fd, _batch(pending))
                if not written:
                    raise OSError(errno.EIO, "the system wrote nothing")
                while written:
                    view = pending.popleft()
                    if view.nbytes > written:
                        pending.appendleft(view[written:])
                    written -= min(written, view.nbytes)

    def complete(self) -> os.stat_result:
        """Make the bytes durable, then visible, then the name durable. If only the last step fails, the new object is
        in place and may not survive a power cut."""
        with file_errors("writing", self.path):
            sync_file(self._fd)
            status = os.fstat(self._fd)
            folder_fd = os.open(os.path.dirname(self._target), FOLDER_FLAGS)  # before the rename: it may be refused
            try:
                if self._if_absent:
                    self._link()
                else:
                    os.rename(self._temporary, self._target)
                    self._temporary = ""
                sync_folder(folder_fd)
            finally:
                os.close(folder_fd)
        return status

    def _link(self) -> None:
        try:
            os.link(self._temporary, self._target)
        except FileExistsError as error:
            if not os.path.samestat(os.stat(self._target), os.fstat(self._fd)):  # NFS may repeat a link that worked
                raise PreconditionError(f"writing {self.path}: the object exists already; it is unchanged") from error
        except OSError as error:
            if error.errno not in (errno.EPERM, *NO_SUPPORT):
                raise
            raise StorageError(
                f"writing {self.path}: {error.strerror}; this file system has no hard links, and without them an "
                "existing object could be overwritten: choose a folder on another file system"
            ) from error

    def discard(self) -> None:
        """Remove the temporary and let go of it; nothing to do for the temporary after ``complete``."""
        fd, self._fd = self._fd, -1
        temporary, self._temporary = self._temporary, ""
        if temporary and os.getpid() == self._pid:  # a forked child must not remove its parent's file
            with suppress(OSError):  # whatever stays is removed by the next upload into the folder
                os.unlink(temporary)
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)


def _batch(pending: deque[memoryview]) -> list[memoryview]:
    """The leading buffers, as many as one call takes."""
    batch: list[memoryview] = []
    room = MAX_CALL_NBYTES
    for view in islice(pending, MAX_CALL_BUFFERS):
        batch.append(view[:room])
        room -= batch[-1].nbytes
        if not room:
            break
    return batch


def _existing_file(target: str, *, keep: bool) -> os.stat_result | None:
    """The file that is going to be replaced, if any. Raises if it must not be. ``keep``: it is not going to be."""
    try:
        status = os.stat(target)
    except (FileNotFoundError, NotADirectoryError):  # for the latter, making the folder says which parent it is
        return None
    check_plain(status, "writing", target)
    if keep:
        return None
    if not os.access(target, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise AccessDeniedError(
            f"writing {target}: the existing object is read-only for user {os.geteuid()}, so it is kept; "
            "allow writing (chmod u+w) or choose another name"
        )
    return status


def _take_over(fd: int, existing: os.stat_result) -> None:
    for owner in ((-1, existing.st_gid), (existing.st_uid, -1)):
        with suppress(OSError):  # only root may give files away; then it stays ours
            os.fchown(fd, *owner)
    mode = stat.S_IMODE(existing.st_mode) & 0o777
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:  # file systems without modes refuse a change
        os.fchmod(fd, mode)


def _make_folders(folder: str) -> None:
    missing = []
    while not _is_folder(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for made in reversed(missing):
        try:
            os.mkdir(made)
        except FileExistsError as error:  # another upload was faster, or a link is in the way
            if os.path.islink(made):
                raise NotADirectoryError(errno.ENOTDIR, f"{made} leads nowhere") from error
        sync_folder(os.path.dirname(made))


def _is_folder(path: str) -> bool:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a folder")
    return True


def _remove_debris(folder: str) -> None:
    """Remove temporaries whose process is dead. What cannot be examined or removed stays."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _TEMPORARY.fullmatch(entry.name)
            if match:
                with suppress(OSError):
                    _remove_if_stale(entry.path, local=match[1] == _machine())


def _remove_if_stale(path: str, local: bool) -> None:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        # Locks of other machines are not seen on every network file system, so there age has to speak too.
        if stat.S_ISREG(status.st_mode) and (local or time.time() - status.st_mtime > FOREIGN_DEBRIS_AGE_S):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(fd)


@functools.cache
def _machine() -> str:
    """Eight hexadecimal digits for this machine since it was started; file locks work among processes that share it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return f"{zlib.crc32(file.read()):08x}"
    except OSError:
        return f"{zlib.crc32(platform.node().encode()):08x}"
