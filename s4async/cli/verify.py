"""``s4async verify FILE``: read every byte of a checkpoint and check it."""

from __future__ import annotations

import argparse

import s4async

HELP = "read every byte of a checkpoint (a file, or a store's newest or given step) and check it"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="FILE", help="path or URL of an object or a store")
    parser.add_argument("--step", type=int, help="the step to check, in a store")


def run(options: argparse.Namespace) -> int:
    if options.step is None:
        info = s4async.verify(options.place)
    else:
        with s4async.Checkpointer(options.place) as store:
            info = store.verify(options.step)
    print(f"ok: {info.url}: {info.stored_bytes:,} bytes stored, {info.raw_bytes:,} raw, every checksum right")
    return 0
