"""The tables that the demo ends with, as text."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.demo.classes import Share
from benchmarks.demo.timeline import Figures

__all__ = ["bytes_table", "stall_table", "verdicts"]

Row = Sequence[str]


def stall_table(figures: Figures) -> str:
    """What a save costs the training loop, ours beside torch.save."""
    f = figures
    rows = [
        ("", "s4async.save_async", "torch.save"),
        ("the loop stands still: median", _ms(f.stall_s), _ms(f.blocking_s)),
        ("                       first", _ms(f.stall_first_s), _ms(f.blocking_first_s)),
        ("                       longest later", _ms(f.stall_longest_s), _ms(f.blocking_longest_s)),
        ("steps meanwhile are slower by, in all", _ms(f.added_s), "-"),
        ("flushed to disk after", _ms(f.durable_s), _ms(f.blocking_durable_s)),
    ]
    told = (
        f"torch.save stalls the loop {f.stall_ratio:.1f} times as long. A step takes {_ms(f.step_s)}; while a save is"
        f" on its way\n({f.steps:.0f} steps) {f.inflation:.0%} longer, since training and compression share the cores."
    )
    return "\n".join([*_aligned(rows), "", told])


def bytes_table(shares: Sequence[Share]) -> str:
    """What is stored of what there was, by class."""
    rows = [("", "raw", "stored", "stored/raw")]
    for share in shares:
        ratio = share.stored_bytes / share.raw_bytes if share.raw_bytes else 0.0
        note = "  (roundings of the masters: a reference)" if share.raw_bytes and not share.stored_bytes else ""
        rows.append((share.name, _mb(share.raw_bytes), _mb(share.stored_bytes), f"{ratio:.1%}{note}"))
    return "\n".join(_aligned(rows))


def verdicts(results: Sequence[tuple[bool, str]]) -> str:
    """One line per claim."""
    return "\n".join(f"  {'yes' if true else 'NO '}  {text}" for true, text in results)


def _aligned(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[column].partition("  (")[0]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0])]
        for cell, width in zip(rest, widths[1:], strict=True):
            figure, mark, note = cell.partition("  (")
            cells.append(figure.rjust(width) + mark + note)
        lines.append("  " + "   ".join(cells).rstrip())
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.2f} MB"
