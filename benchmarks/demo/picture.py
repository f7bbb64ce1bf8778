"""The picture: how long each turn of the training loop took, with the saves marked."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import matplotlib as mpl

from benchmarks.demo.timeline import Figures, Timeline, steps_in

__all__ = ["draw"]

QUIET, OURS, THEIRS = "#8a8f98", "#0b7a75", "#c8553d"


def draw(timeline: Timeline, figures: Figures, path: Path) -> None:
    """Write a PNG: one point per step, its height the step and the saving call after it, in milliseconds."""
    mpl.use("Agg")
    from matplotlib import pyplot

    ours = {save.step: save.stall_s for save in timeline.saves}
    theirs = {save.step: save.stall_s for save in timeline.blocking}
    beside = {step.number for save in timeline.saves for step in steps_in(save, timeline.steps)}
    turns = {
        step.number: 1e3 * (step.duration_s + ours.get(step.number, 0.0) + theirs.get(step.number, 0.0))
        for step in timeline.steps
    }
    top = _top(turns, set(ours), set(theirs))
    figure, axes = pyplot.subplots(figsize=(11, 5.2), layout="constrained")
    for step in ours:
        axes.axvline(step, color=OURS, alpha=0.15, linewidth=1)
    axes.plot(list(turns), list(turns.values()), color=QUIET, alpha=0.35, linewidth=0.8, zorder=1)
    for label, color, face, marker, numbers in (
        ("no save", QUIET, QUIET, "o", turns.keys() - beside - ours.keys() - theirs.keys()),
        ("then torch.save: the loop waits for it", THEIRS, THEIRS, "s", theirs.keys()),
        ("then s4async.save_async: the loop goes on", OURS, OURS, "^", ours.keys()),
        ("while that save is on its way", OURS, "white", "o", beside - ours.keys()),
    ):
        shown = [number for number in numbers if turns[number] <= top]
        heights = [turns[number] for number in shown]
        axes.scatter(shown, heights, s=26, c=face, edgecolors=color, marker=marker, label=label, zorder=2)
    beyond = sorted(number for number, turn in turns.items() if turn > top)
    if beyond:
        note = f"beyond the top: {len(beyond)} steps, up to {max(turns.values()):,.0f} ms"
        axes.text(
            0.995, 0.98, note, transform=axes.transAxes, ha="right", va="top", fontsize=8, backgroundcolor="white"
        )
    axes.set_ylim(0, top)
    axes.set_xlim(0, len(turns) + 1)
    axes.set_xlabel("training step")
    axes.set_ylabel("one turn of the loop: step and saving call (ms)")
    axes.set_title(
        f"A save stalls the loop for {figures.stall_s * 1e3:.0f} ms with s4async.save_async,"
        f" {figures.blocking_s * 1e3:.0f} ms with torch.save (medians, same run, same state)",
        loc="left",
        fontsize=11,
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _top(turns: dict[int, float], *kinds: set[int]) -> float:
    """The upper end of the axis: typical turns of every kind with room above; what other programs did may leave it."""
    typical = [median(turns[number] for number in numbers) for numbers in kinds]
    return max(3 * median(turns.values()), *(1.4 * height for height in typical))
