"""s4async: asynchronous, losslessly compressed checkpoints for PyTorch. The public names, nothing else."""

from s4async import errors
from s4async.api import (
    inspect,
    load,
    load_async,
    load_checkpoint,
    save,
    save_async,
    save_checkpoint,
    verify,
    wait_all,
)
from s4async.checkpointer import Checkpointer
from s4async.format.object import FORMAT_VERSION
from s4async.handle import CheckpointInfo, LoadHandle, Progress, SaveHandle, SaveReport
from s4async.inspection import Entry, Inspection
from s4async.options import Options
from s4async.state import LoadReport
from s4async.version import __version__

__all__ = [
    "FORMAT_VERSION",
    "CheckpointInfo",
    "Checkpointer",
    "Entry",
    "Inspection",
    "LoadHandle",
    "LoadReport",
    "Options",
    "Progress",
    "SaveHandle",
    "SaveReport",
    "__version__",
    "errors",
    "inspect",
    "load",
    "load_async",
    "load_checkpoint",
    "save",
    "save_async",
    "save_checkpoint",
    "verify",
    "wait_all",
]
