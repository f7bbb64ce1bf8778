"""Options: one frozen record; every default has its reason. The only module that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from s4async.errors import OptionsError

__all__ = ["ON_OVERLAP", "Options"]

KIB, MIB = 1 << 10, 1 << 20
_KINDS: dict[str, Callable[[str], object]] = {"str": str, "int": int, "float": float}
ON_OVERLAP = ("wait", "skip", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How saves and restores behave. Every field can be set by the environment as ``S4ASYNC_<FIELD>`` in capitals."""

    url: str = "s4async-checkpoints"
    """The default store: where ``save_async(state)`` goes when nothing is configured."""

    frame_bytes: int = 4 * MIB
    """Raw bytes of one frame. 4 MiB keeps planes in a core's share of the last-level cache, one DRAM pass instead of
    three, and is still 50 times the cost of the Python around it."""

    chunk_bytes: int = 1 * MIB
    """Raw bytes of one compression call inside a plane: long enough that threads seldom meet at Python's lock."""

    small_bytes: int = 256 * KIB
    """Regions below this share frames with their likes (same dtype, same last name); larger ones never do, because one
    table for several tensors costs 0.15 to 1.2 bits a value."""

    threads: int = 0
    """Encoding and decoding threads; 0 means min(4, cores). More is hostile inside a training job."""

    niceness: int = 5
    """Added to the niceness of those threads where the system has it per thread (Linux): training goes first."""

    window_bytes: int = 128 * MIB
    """Host bytes in flight between stages; the source of back-pressure. At least one frame always passes."""

    read_bytes: int = 8 * MIB
    """One ranged read of a restore, at least one frame."""

    on_overlap: str = "wait"
    """What a save does while another is running: ``wait`` for it, ``skip`` this one, or raise an ``error``."""

    exit_timeout_s: float = 300.0
    """How long interpreter exit waits for pending saves before it cancels them."""

    def __post_init__(self) -> None:
        for name in ("frame_bytes", "chunk_bytes", "window_bytes", "read_bytes"):
            if getattr(self, name) < 4 * KIB:
                raise OptionsError(f"{name}={getattr(self, name)}: expected at least {4 * KIB} bytes")
        for name in ("frame_bytes", "chunk_bytes"):
            if getattr(self, name) % 4096:
                raise OptionsError(f"{name}={getattr(self, name)}: expected a multiple of 4096")
        for name in ("small_bytes", "threads", "niceness", "exit_timeout_s"):
            if getattr(self, name) < 0:
                raise OptionsError(f"{name}={getattr(self, name)}: expected 0 or more")
        if self.on_overlap not in ON_OVERLAP:
            raise OptionsError(f"on_overlap={self.on_overlap!r}: expected one of {', '.join(ON_OVERLAP)}")

    @property
    def worker_threads(self) -> int:
        """``threads`` with 0 resolved for this machine."""
        return self.threads or min(4, os.cpu_count() or 1)

    @classmethod
    def given(cls, options: Options | None) -> Options:
        """What a caller passed, or those of the environment. Raises ``OptionsError`` for what is no ``Options``."""
        if options is not None and not isinstance(options, cls):
            raise OptionsError(f"options={options!r}: expected s4async.Options(...) or None")
        return options or cls.from_env()

    @classmethod
    def from_env(cls) -> Options:
        """Defaults overridden by ``S4ASYNC_URL``, ``S4ASYNC_THREADS`` and so on. Raises ``OptionsError``."""
        found: dict[str, Any] = {}
        for field in fields(cls):
            variable = f"S4ASYNC_{field.name.upper()}"
            text = os.environ.get(variable)
            if text is None:
                continue
            kind = _KINDS[str(field.type)]
            try:
                found[field.name] = kind(text)
            except ValueError:
                raise OptionsError(f"{variable}={text!r}: expected a value of type {field.type}") from None
        return cls(**found)
