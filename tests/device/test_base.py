"""Where samples are taken: the same on every device."""

from __future__ import annotations

import pytest

from s4async.device.base import SAMPLE_RUN, SAMPLE_RUNS, sample_starts

WHOLE = SAMPLE_RUNS * SAMPLE_RUN


@pytest.mark.parametrize("count", [0, 1, WHOLE])
def test_small_data_is_sampled_whole(count: int) -> None:
    assert not sample_starts(count)


@pytest.mark.parametrize("count", [WHOLE + 1, 10_000, 1 << 20, (1 << 40) + 7])
def test_runs_are_apart_and_reach_the_end(count: int) -> None:
    starts = sample_starts(count)
    assert len(starts) == SAMPLE_RUNS
    assert 0 <= starts[0] < SAMPLE_RUNS  # the rest of the division, at most
    assert starts[-1] + SAMPLE_RUN == count
    assert starts.step >= SAMPLE_RUN
