"""``s4async inspect FILE``: what a checkpoint holds, from its manifest alone."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json

import s4async

HELP = "show what a checkpoint holds; reads its manifest only"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="FILE", help="path or URL of an object or a store")
    parser.add_argument("--step", type=int, help="the step to show, in a store")
    parser.add_argument("--keys", default="*", metavar="GLOB", help="only leaves with such names")
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")


def run(options: argparse.Namespace) -> int:
    if options.step is None:
        seen = s4async.inspect(options.place)
    else:
        with s4async.Checkpointer(options.place) as store:
            seen = store.inspect(options.step)
    entries = [entry for entry in seen.entries if fnmatch.fnmatchcase(entry.name, options.keys)]
    if options.json:
        print(json.dumps(dataclasses.asdict(dataclasses.replace(seen, entries=tuple(entries)))))
        return 0
    step = "" if seen.step is None else f", step {seen.step}"
    print(f"{seen.url}{step}")
    print(f"format {seen.format_version}, {', '.join(_shown(f'{k} {v}') for k, v in seen.info.items())}")
    if seen.metadata:
        print(f"metadata {json.dumps(seen.metadata)}")
    share = seen.stored_bytes / seen.raw_bytes if seen.raw_bytes else 0.0
    print(f"{seen.raw_bytes:,} bytes raw, {seen.stored_bytes:,} stored ({share:.1%}), {seen.frames} frames")
    print(f"restorable without a GPU: {'yes' if seen.cpu_readable else 'no'}")
    _table(entries)
    return 0


def _table(entries: list[s4async.Entry]) -> None:
    rows = [("name", "kind", "dtype", "shape", "raw", "stored", "planes")]
    for entry in entries:
        shape = "x".join(map(str, entry.shape)) if entry.dtype else ""
        sizes = (f"{entry.raw_bytes:,}", f"{entry.stored_bytes:,}") if entry.codecs else ("", "")
        rows.append((_shown(entry.name), entry.kind, entry.dtype, shape, *sizes, entry.codecs))
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        cells = [
            cell.rjust(width) if 4 <= i <= 5 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _shown(text: str) -> str:
    """The text without what would move the cursor or colour the terminal: it comes out of the file."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
