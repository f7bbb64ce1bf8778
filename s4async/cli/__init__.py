"""The command line: ``s4async inspect FILE`` and ``s4async verify FILE``. Public functions only; no logic of its own.

Exit codes: 0 fine, 1 the checkpoint is damaged or cannot be read, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from s4async.cli import inspect, verify
from s4async.errors import S4AsyncError
from s4async.version import __version__

__all__ = ["main"]

_COMMANDS = {"inspect": inspect, "verify": verify}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors go to stderr as ``error: <what, where, remedy>``."""
    parser = argparse.ArgumentParser(prog="s4async", description="Look at and check s4async checkpoints.")
    parser.add_argument("--version", action="version", version=f"s4async {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        module.arguments(commands.add_parser(name, help=module.HELP, description=module.HELP))
    options = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may have letters that the terminal lacks
    try:
        status = int(_COMMANDS[options.command].run(options))
        sys.stdout.flush()  # here a closed pipe can be told, at exit no more
        return status
    except S4AsyncError as error:
        print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n  ", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `s4async inspect ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to flush goes nowhere
        return 0
    except KeyboardInterrupt:
        return 130
