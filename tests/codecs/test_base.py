"""The registry: lazy, one of each, and clear about what it does not have."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from s4async.codecs import base
from s4async.codecs.base import find, readable, register
from s4async.device.base import Bytes
from s4async.errors import UnsupportedError, UsageError


class Backwards:
    """A codec for these tests."""

    id = "backwards"

    def params(self, histogram: object) -> bytes:
        return b""

    def encode(self, chunk: Bytes, params: bytes) -> bytes:
        return chunk[::-1].tobytes()

    def decode(self, data: Bytes, params: bytes, chunk: Bytes) -> None:
        np.copyto(chunk, data[::-1])


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_classes", dict(base._classes))
    monkeypatch.setattr(base, "_codecs", dict(base._codecs))


def test_find_gives_the_one_codec() -> None:
    assert find("zstd", "cpu") is find("zstd", "cpu")
    assert find("zstd", "cpu").id == "zstd"


def test_an_unknown_codec_is_named_with_what_there_is() -> None:
    with pytest.raises(UnsupportedError, match=r"'ans6'.*'cpu'.*zstd \(cpu\)"):
        find("ans6", "cpu")
    with pytest.raises(UnsupportedError, match=r"'zstd'.*'abacus'"):
        find("zstd", "abacus")


def test_readable_without_loading() -> None:
    register("later", "cpu", "s4async_no_such_module:Codec")
    assert readable("later", "cpu")
    assert readable("zstd", "cpu")
    assert not readable("zstd", "abacus")


def test_a_registered_codec_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backwards_codec", sys.modules[__name__])
    register("backwards", "cpu", "backwards_codec:Backwards")
    register("backwards", "cpu", "backwards_codec:Backwards")  # the same again is no conflict
    assert find("backwards", "cpu").encode(np.arange(3, dtype=np.uint8), b"") == b"\2\1\0"


@pytest.mark.parametrize("taken", ["zstd", "raw", "constant"])
def test_a_taken_id_stays_what_it_is(taken: str) -> None:
    with pytest.raises(UsageError, match=f"'{taken}'.*choose another id"):
        register(taken, "cpu", "elsewhere:Codec")


def test_a_missing_library_is_named() -> None:
    register("needy", "cpu", "s4async_no_such_module:Codec")
    with pytest.raises(UnsupportedError, match=r"'needy'.*missing library.*s4async_no_such_module"):
        find("needy", "cpu")


def test_the_registry_loads_no_codec() -> None:
    code = "import sys, s4async.codecs.base; sys.exit('zstandard' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
