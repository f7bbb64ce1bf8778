"""The whole error tree: three branches, because there are three things a person can do.

``UsageError`` -- fix the call: nothing was written.  ``OperationalError`` -- repair the surroundings and repeat:
stored data is intact.  ``IntegrityError`` -- do not trust this checkpoint.  No other exception type leaves the public
API: each boundary (storage, device, codec) maps foreign errors with ``map_errors`` and keeps the cause chained.
Messages name what, where (key, frame, path), expected and actual, and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

__all__ = [
    "AccessDeniedError",
    "BudgetError",
    "ChainError",
    "CheckpointNotFoundError",
    "ClosedError",
    "CommitError",
    "CorruptionError",
    "DeviceError",
    "FormatError",
    "IntegrityError",
    "ObjectNotFoundError",
    "OperationalError",
    "OptionsError",
    "OverlapError",
    "PreconditionError",
    "S4AsyncError",
    "StateMismatchError",
    "StorageError",
    "UnsafeLoadError",
    "UnsupportedError",
    "UnsupportedStateError",
    "UsageError",
    "map_errors",
    "single_error",
]


class S4AsyncError(Exception):
    """Root of every error that s4async raises."""


class UsageError(S4AsyncError, ValueError):
    """The call must change; nothing was written."""


class OptionsError(UsageError):
    """An option or environment variable has a value outside its range."""


class UnsupportedStateError(UsageError):
    """A leaf of the state cannot be carried; the message names its path. Raised before anything is written."""


class UnsafeLoadError(UsageError):
    """The checkpoint holds pickled objects or unknown classes, and ``weights_only=True`` forbids building them."""


class OverlapError(UsageError):
    """A save was asked for with ``on_overlap="error"`` while an earlier one was still running."""


class StateMismatchError(UsageError):
    """Names, shapes or dtypes of ``into`` do not match the checkpoint; nothing in ``into`` was changed.

    ``missing``: asked for, not in the checkpoint. ``unexpected``: in the checkpoint, not asked for.
    ``mismatched``: present in both with another shape or dtype.
    """

    def __init__(
        self,
        message: str,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.mismatched = tuple(mismatched)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (str(self), self.missing, self.unexpected, self.mismatched)


class CheckpointNotFoundError(UsageError, LookupError):
    """There is no checkpoint at this path, or no such committed step in this store."""


class ClosedError(UsageError):
    """The object was closed, or the interpreter is exiting."""


class OperationalError(S4AsyncError):
    """The surroundings failed; stored data is intact. Repair them and repeat the call."""


class DeviceError(OperationalError):
    """A device call failed; the message names the call and its status."""


class BudgetError(DeviceError):
    """Something does not fit the memory that is available or allowed."""


class StorageError(OperationalError):
    """A storage call failed. ``retryable`` is decided by the storage that knows."""

    def __init__(self, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (str(self), self.retryable)


class ObjectNotFoundError(StorageError):
    """The named object does not exist."""


class AccessDeniedError(StorageError):
    """The storage refused the operation: permissions, read-only, or credentials."""


class PreconditionError(StorageError):
    """A conditional put found that the object exists already."""


class CommitError(OperationalError):
    """The bytes are stored but the checkpoint did not become visible; safe to repeat."""


class UnsupportedError(OperationalError):
    """This build is too old, or lacks an optional part, for what the data names (format version, codec, transform)."""


class IntegrityError(S4AsyncError):
    """Do not trust this checkpoint."""


class FormatError(IntegrityError):
    """The bytes break a rule of FORMAT.md; the message names the rule."""


class CorruptionError(IntegrityError):
    """A checksum differs; the message names object, frame, plane, expected and actual value."""


class ChainError(IntegrityError):
    """A base that a delta needs is missing, damaged, or the chain is circular or too deep."""


@contextmanager
def map_errors(
    table: Mapping[type[BaseException] | tuple[type[BaseException], ...], Callable[[str], S4AsyncError]], what: str
) -> Iterator[None]:
    """Translate foreign exceptions at a boundary, first match wins; the cause stays chained.

    ``what`` says what was being done, for example ``"reading /data/x.s4"``; the message is ``"<what>: <cause>"``.
    """
    try:
        yield
    except S4AsyncError:
        raise
    except BaseException as error:
        for kinds, make in table.items():
            if isinstance(error, kinds):
                raise make(f"{what}: {str(error) or type(error).__name__}") from error
        raise


def single_error(error: BaseException) -> BaseException:
    """Reduce an ``ExceptionGroup`` (from a task group) to its first ``S4AsyncError``; others become notes."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(_leaves(error))
    first = next((leaf for leaf in leaves if isinstance(leaf, S4AsyncError)), leaves[0])
    for leaf in leaves:
        if leaf is not first:
            first.add_note(f"also failed: {type(leaf).__name__}: {leaf}")
    return first


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
