"""What the reference run records, and the figures that come of it. Times in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

__all__ = ["AsyncSave", "BlockingSave", "Figures", "Step", "Timeline", "figures", "steps_in"]


@dataclass(slots=True)
class Step:
    """One training step without the saving call that may follow it."""

    number: int
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(slots=True)
class AsyncSave:
    """One ``save_async``. ``start_s``: the call; ``stall_s``: how long it took; ``done_s``: durable and visible."""

    step: int
    start_s: float
    stall_s: float
    done_s: float = 0.0
    encode_s: float = 0.0
    raw_bytes: int = 0
    stored_bytes: int = 0


@dataclass(slots=True)
class BlockingSave:
    """One ``torch.save``. ``stall_s``: until it returned; ``durable_s``: until its bytes were flushed to disk too."""

    step: int
    stall_s: float
    durable_s: float


@dataclass(slots=True)
class Timeline:
    """Everything measured in one process, on one clock."""

    steps: list[Step] = field(default_factory=list)
    saves: list[AsyncSave] = field(default_factory=list)
    blocking: list[BlockingSave] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Figures:
    """The table's figures, medians unless they say otherwise: a machine has other things to do now and then.

    A step is *in a save* if any part of it ran between the call and the commit; what it would have taken is the median
    of the ``NEIGHBOURS`` nearest steps that are in none.
    """

    stall_s: float
    stall_first_s: float  # the first save of the process: threads start, buffers are new
    stall_longest_s: float  # of the others
    durable_s: float
    blocking_s: float
    blocking_first_s: float
    blocking_longest_s: float
    blocking_durable_s: float
    step_s: float  # outside saves
    steps: float  # in one save
    inflation: float  # how much longer they take together, as a share
    added_s: float  # the same in seconds

    @property
    def stall_ratio(self) -> float:
        """How many times longer ``torch.save`` keeps the loop."""
        return self.blocking_s / self.stall_s


NEIGHBOURS = 12


def steps_in(save: AsyncSave, steps: list[Step]) -> list[Step]:
    """The steps of which any part ran while ``save`` was on its way."""
    return [step for step in steps if step.start_s < save.done_s and save.start_s < step.end_s]


def figures(timeline: Timeline, warm_up: int) -> Figures:
    """The figures, without the first ``warm_up`` steps, in which libraries make their plans and caches fill."""
    steps = [step for step in timeline.steps if step.number > warm_up]
    in_saves = {step.number for save in timeline.saves for step in steps_in(save, steps)}
    outside = [step for step in steps if step.number not in in_saves]
    stalls = [save.stall_s for save in timeline.saves]
    blocking = [save.stall_s for save in timeline.blocking]
    taken: list[tuple[int, float, float]] = []  # of each save: steps, what they took, what they would have taken
    for save in timeline.saves:
        inside = steps_in(save, steps)
        usual = _usual_s(save, outside)
        if inside:  # the last save may have no step after it
            taken.append((len(inside), sum(step.duration_s for step in inside), usual * len(inside)))
    return Figures(
        stall_s=median(stalls),
        stall_first_s=stalls[0],
        stall_longest_s=max(stalls[1:], default=stalls[0]),
        durable_s=median(save.done_s - save.start_s for save in timeline.saves),
        blocking_s=median(blocking),
        blocking_first_s=blocking[0],
        blocking_longest_s=max(blocking[1:], default=blocking[0]),
        blocking_durable_s=median(save.durable_s for save in timeline.blocking),
        step_s=median(step.duration_s for step in outside),
        steps=median(count for count, _, _ in taken),
        inflation=median(took / usual - 1 for _, took, usual in taken),
        added_s=median(took - usual for _, took, usual in taken),
    )


def _usual_s(save: AsyncSave, outside: list[Step]) -> float:
    """What a step takes around ``save``, were it not for it."""
    return median(
        step.duration_s for step in sorted(outside, key=lambda step: abs(step.number - save.step))[:NEIGHBOURS]
    )
