"""Hooks for profilers and logs: named spans around the stages of a save and a restore, free when nobody listens.

``use(hook)`` installs a function from a span's name to a context manager: ``torch.cuda.nvtx.range`` for Nsight Systems,
``torch.profiler.record_function`` for torch's profiler; ``None`` removes it. Spans run on the thread that works. Log
records go to the logger ``s4async``: one line per finished save at INFO, failures at ERROR. Without a handler of the
application's they go nowhere, not to stderr: a failure is raised to its caller, and told only once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

__all__ = ["LOG", "Hook", "span", "use"]

LOG = logging.getLogger("s4async")
LOG.addHandler(logging.NullHandler())

Hook = Callable[[str], AbstractContextManager[object]]
_NOTHING: AbstractContextManager[object] = nullcontext()  # has no state: one serves everybody
_hook: Hook | None = None


def use(hook: Hook | None) -> None:
    """Call ``hook(name)`` around every stage from now on; ``None`` stops that."""
    global _hook
    _hook = hook


def span(name: str) -> AbstractContextManager[object]:
    """The hook's context manager for one stage, or nothing: then it costs a comparison."""
    return _NOTHING if _hook is None else _hook(f"s4async.{name}")
