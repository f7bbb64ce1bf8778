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

    A step is *in a save* if any part of it ran between the call and the commit.
    """

    stall_s: float
    stall_max_s: float
    blocking_s: float
    blocking_max_s: float
    durable_s: float
    blocking_durable_s: float
    step_s: float
    step_in_save_s: float
    steps_in_save: int
    added_s: float  # what the steps in one save take longer than outside, together

    @property
    def stall_ratio(self) -> float:
        """How many times longer ``torch.save`` keeps the loop."""
        return self.blocking_s / self.stall_s

    @property
    def inflation(self) -> float:
        """How much longer a step takes in a save, as a share."""
        return self.step_in_save_s / self.step_s - 1


def steps_in(save: AsyncSave, steps: list[Step]) -> list[Step]:
    """The steps of which any part ran while ``save`` was on its way."""
    return [step for step in steps if step.start_s < save.done_s and save.start_s < step.end_s]


def figures(timeline: Timeline, warm_up: int) -> Figures:
    """The figures, without the first ``warm_up`` steps, in which libraries make their plans and caches fill."""
    steps = [step for step in timeline.steps if step.number > warm_up]
    meanwhile = [steps_in(save, steps) for save in timeline.saves]
    numbers = {step.number for some in meanwhile for step in some}
    inside = [step.duration_s for step in steps if step.number in numbers]
    outside = [step.duration_s for step in steps if step.number not in numbers]
    stalls = [save.stall_s for save in timeline.saves]
    blocking = [save.stall_s for save in timeline.blocking]
    return Figures(
        stall_s=median(stalls),
        stall_max_s=max(stalls),
        blocking_s=median(blocking),
        blocking_max_s=max(blocking),
        durable_s=median(save.done_s - save.start_s for save in timeline.saves),
        blocking_durable_s=median(save.durable_s for save in timeline.blocking),
        step_s=median(outside),
        step_in_save_s=median(inside) if inside else median(outside),
        steps_in_save=len(inside),
        added_s=median(sum(step.duration_s - median(outside) for step in some) for some in meanwhile),
    )
