"""Blocking operations on files: reading, listing, removing, making names durable, and what can go wrong.

No asyncio, no keys. Every ``OSError`` leaves as a ``StorageError`` that names the absolute path, what was being done
and the remedy. Everything but plain files (devices, pipes, sockets) is refused: they cannot be replaced or read at an
offset.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from s4async.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from s4async.storage.base import as_bytes, check_range

__all__ = [
    "FOLDER_FLAGS",
    "MAX_CALL_NBYTES",
    "NO_SUPPORT",
    "OpenFile",
    "check_plain",
    "file_errors",
    "remove_file",
    "scan_folder",
    "stat_file",
    "sync_file",
    "sync_folder",
]

MAX_CALL_NBYTES = 1 << 30  # macOS refuses more than 2^31 - 1 bytes in one call, Linux cuts there
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NO_SUPPORT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # the file system has no such operation

_SPACE = "free some space or raise the limit, then repeat"
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.EROFS: "the file system is mounted read-only: choose another folder",
    errno.ENOENT: "the folder or file vanished meanwhile: find out who removes it, then repeat",
    errno.EISDIR: "a folder has this name: name an object inside it, or choose another name",
    errno.ENOTDIR: "a parent of this path is a file, not a folder: choose another path",
    errno.ENAMETOOLONG: "choose a shorter name; most file systems allow 255 bytes a name",
    errno.ELOOP: "its symbolic links lead in a circle: remove one of them",
    errno.EIO: "the disk or network mount failed: look at the system log before trusting it again",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ESTALE: "the network file system lost the file: mount it again",
}


@contextmanager
def file_errors(doing: str, path: str) -> Iterator[None]:
    """Turn an ``OSError`` inside into the ``StorageError`` for ``doing`` (``"writing"``, ``"reading"``, ``"listing"``,
    ``"deleting"``) at ``path``."""
    try:
        yield
    except OSError as error:
        raise _storage_error(error, doing, path) from error


def _storage_error(error: OSError, doing: str, path: str) -> StorageError:
    code = error.errno or 0
    what = f"{doing} {path}: {error.strerror or error} ({errno.errorcode.get(code, 'no code')})"
    if code in (errno.EACCES, errno.EPERM):
        need = "read permission on it and" if doing in ("reading", "listing") else "read, write and"
        return AccessDeniedError(
            f"{what}; user {os.geteuid()} needs {need} search permission on the folder {os.path.dirname(path)}: "
            "grant it or choose another path"
        )
    if code == errno.EROFS:
        return AccessDeniedError(f"{what}; {_REMEDIES[code]}")
    if doing == "reading" and code in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return ObjectNotFoundError(f"{what}; there is no such object: check the path")
    return StorageError(f"{what}; {_REMEDIES.get(code, 'repair this, then repeat')}")


def check_plain(status: os.stat_result, doing: str, path: str) -> None:
    """Raise unless ``status`` is that of a plain file."""
    if stat.S_ISDIR(status.st_mode):
        raise _storage_error(IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)), doing, path)
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(
            f"{doing} {path}: it is a device, pipe or socket, expected a plain file; open it yourself and pass the "
            "open file instead of its path"
        )


def sync_file(fd: int) -> None:
    """Bytes to the medium. A failure is final: the system may have dropped the bytes, so it is never tried again."""
    if sys.platform == "darwin":  # there fsync stops at the drive's cache
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in NO_SUPPORT:
                raise
    os.fsync(fd)


def sync_folder(folder: str | int) -> None:
    """Names in a folder (a path or descriptor) to the medium, where the file system knows how."""
    fd = os.open(folder, FOLDER_FLAGS) if isinstance(folder, str) else folder
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_SUPPORT:
            raise
    finally:
        if isinstance(folder, str):
            os.close(fd)


class OpenFile:
    """A file being read. It stays the same one when its name is given to another or removed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.nbytes = 0
        self._fd = -1

    def open(self) -> None:
        with file_errors("reading", self.path):
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
            status = os.fstat(self._fd)
            check_plain(status, "reading", self.path)
            self.nbytes = status.st_size

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``start``. Several threads may do so at once."""
        check_range(self.path, start, buffer.nbytes, self.nbytes)
        view, done = as_bytes(buffer), 0
        with file_errors("reading", self.path):
            while done < view.nbytes:
                got = _read_at(self._fd, view[done : done + MAX_CALL_NBYTES], start + done)
                if not got:  # shortened in place after it was opened
                    check_range(self.path, start, view.nbytes, start + done)
                done += got

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def stat_file(path: str) -> os.stat_result:
    """Size and time of the object at ``path``. Raises ``ObjectNotFoundError``."""
    with file_errors("reading", path):
        status = os.stat(path)
        check_plain(status, "reading", path)
        return status


def scan_folder(root: str, folder: str, prefix: str) -> list[tuple[str, os.stat_result | None]]:
    """Names in ``folder`` below ``root`` that start with ``prefix``, in key order; none if there is no such folder.
    A folder's name ends in ``/`` and has no status. Left out: what is no plain file (links to folders too), and
    ``lost+found``, which only root may enter."""
    absent = (FileNotFoundError, NotADirectoryError) if folder else (FileNotFoundError,)
    found: list[tuple[str, os.stat_result | None]] = []
    path = os.path.join(root, folder)
    with file_errors("listing", path), suppress(*absent), os.scandir(path) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix):
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "lost+found":
                    found.append((entry.name + "/", None))
                continue
            try:
                status = entry.stat()
            except OSError:
                if entry.is_symlink() or not os.path.lexists(entry.path):  # leads nowhere, or removed meanwhile
                    continue
                raise
            if stat.S_ISREG(status.st_mode):
                found.append((entry.name, status))
    found.sort(key=lambda item: item[0])
    return found


def remove_file(path: str, root: str) -> None:
    """Remove the object at ``path`` if there is one, and the folders below ``root`` that this leaves empty."""
    with file_errors("deleting", path):
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(os.lstat(path).st_mode):
                return
            os.unlink(path)
        folder = os.path.dirname(path)
        while len(folder) > len(root):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                break
            folder = os.path.dirname(folder)
        with suppress(FileNotFoundError, NotADirectoryError):
            sync_folder(folder)


if hasattr(os, "preadv"):

    def _read_at(fd: int, buffer: memoryview, offset: int) -> int:
        return os.preadv(fd, (buffer,), offset)

else:  # macOS before 11

    def _read_at(fd: int, buffer: memoryview, offset: int) -> int:
        data = os.pread(fd, buffer.nbytes, offset)
        buffer[: len(data)] = data
        return len(data)
