"""Spans and log lines."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import s4async
from s4async import trace


def test_spans_name_the_stages_of_a_save_and_a_load() -> None:
    seen: list[str] = []

    @contextmanager
    def hook(name: str) -> Iterator[None]:
        seen.append(name)
        yield

    trace.use(hook)
    try:
        file = io.BytesIO()
        s4async.save_async({"w": torch.arange(9.0)}, file).result()
        file.seek(0)
        s4async.load(file)
    finally:
        trace.use(None)
    assert sorted(set(seen)) == ["s4async.capture", "s4async.decode", "s4async.encode", "s4async.snapshot"]
    count = len(seen)
    s4async.save({}, io.BytesIO())
    assert len(seen) == count


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # of torch with a GPU
def test_torchs_own_ranges_are_hooks() -> None:
    trace.use(torch.profiler.record_function)
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            s4async.save_async({"w": torch.ones(4)}, io.BytesIO()).result()
    finally:
        trace.use(None)
    assert "s4async.snapshot" in {event.key for event in profile.key_averages()}


def test_one_line_for_a_save_and_one_for_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "s4async"):
        s4async.save({"w": torch.zeros(4096)}, io.BytesIO())
        with pytest.raises(s4async.errors.StorageError):
            s4async.save({"w": torch.zeros(4096)}, "/dev/full/x")
    assert [(record.levelname, "committed" in record.message) for record in caplog.records] == [
        ("INFO", True),
        ("ERROR", False),
    ]
    assert "16384 bytes as" in caplog.records[0].message
