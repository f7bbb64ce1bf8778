"""The error tree: three branches, picklable, foreign errors mapped with their cause."""

import copy
import inspect
import pickle

import pytest

from s4async import errors
from s4async.errors import (
    IntegrityError,
    OperationalError,
    S4AsyncError,
    StateMismatchError,
    StorageError,
    UsageError,
    map_errors,
    single_error,
)

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, S4AsyncError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_in_one_branch_listed_and_picklable(kind: type[S4AsyncError]) -> None:
    branches = [branch for branch in (UsageError, OperationalError, IntegrityError) if issubclass(kind, branch)]
    assert len(branches) == (0 if kind is S4AsyncError else 1)
    assert kind.__name__ in errors.__all__
    assert kind.__doc__
    error = kind("what, where, remedy")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == "what, where, remedy"


def test_what_errors_carry_survives_pickling() -> None:
    mismatch = pickle.loads(pickle.dumps(StateMismatchError("x", ["a"], ["b"], ["c"])))
    assert (mismatch.missing, mismatch.unexpected, mismatch.mismatched) == (("a",), ("b",), ("c",))
    assert pickle.loads(pickle.dumps(StorageError("x", retryable=True))).retryable is True


def test_usage_errors_are_value_errors_and_absence_is_a_lookup_error() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(errors.CheckpointNotFoundError, LookupError)


def test_foreign_errors_are_mapped_with_their_cause() -> None:
    cause = FileNotFoundError("gone")
    with (
        pytest.raises(StorageError, match="reading x: gone") as caught,
        map_errors({OSError: StorageError}, "reading x"),
    ):
        raise cause
    assert caught.value.__cause__ is cause


def test_own_and_unlisted_errors_pass() -> None:
    with pytest.raises(errors.FormatError), map_errors({Exception: StorageError}, "reading"):
        raise errors.FormatError("rule")
    with pytest.raises(KeyError), map_errors({OSError: StorageError}, "reading"):
        raise KeyError("x")


def test_a_group_is_reduced_to_its_first_error_of_ours() -> None:
    first = StorageError("disk")
    group = BaseExceptionGroup("g", [ValueError("other"), BaseExceptionGroup("h", [first, KeyError("k")])])
    assert single_error(group) is first
    assert first.__notes__ == ["also failed: ValueError: other", "also failed: KeyError: 'k'"]
    assert single_error(first) is first
