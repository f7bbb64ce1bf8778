"""How many bytes each kind of tensor takes in a checkpoint, from its manifest."""

from __future__ import annotations

from dataclasses import dataclass

import s4async

__all__ = ["Share", "shares"]

CLASSES = (  # name, how a path begins, how it ends
    ("weights (bfloat16)", "model/", ""),
    ("masters (float32)", "masters/", ""),
    ("exp_avg (float32)", "optimizer/", "/exp_avg"),
    ("exp_avg_sq (float32)", "optimizer/", "/exp_avg_sq"),
)
REST = "all else, manifest included"


@dataclass(frozen=True, slots=True)
class Share:
    """One row of the table."""

    name: str
    raw_bytes: int
    stored_bytes: int


def shares(seen: s4async.Inspection) -> list[Share]:
    """A row per class, the rest, and the total; they add up to the whole object."""
    rows, raw_left, stored_left = [], seen.raw_bytes, seen.stored_bytes
    for name, begin, end in CLASSES:
        entries = [entry for entry in seen.entries if entry.name.startswith(begin) and entry.name.endswith(end)]
        raw, stored = sum(entry.raw_bytes for entry in entries), sum(entry.stored_bytes for entry in entries)
        rows.append(Share(name, raw, stored))
        raw_left, stored_left = raw_left - raw, stored_left - stored
    return [*rows, Share(REST, raw_left, stored_left), Share("total", seen.raw_bytes, seen.stored_bytes)]
