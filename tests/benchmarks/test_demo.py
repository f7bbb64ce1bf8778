"""The demo: its witness sees every difference, its figures are what they say, and the whole of it runs, tiny."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.demo.timeline import AsyncSave, BlockingSave, Step, Timeline, figures
from benchmarks.demo.witness import differences, digests

ROOT = Path(__file__).resolve().parents[2]


def state() -> dict[str, object]:
    return {"a": torch.arange(6.0).reshape(2, 3), "b": {"c": [1, 2.5, torch.tensor(-0.0)], "d": (None, "x")}}


def test_the_witness_of_equal_states_is_equal() -> None:
    assert differences(digests(state()), digests(state())) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/a", torch.arange(6.0).reshape(3, 2)),
        ("/a", torch.arange(6.0).reshape(3, 2).t()),
        ("/a", torch.arange(6.0).reshape(2, 3).nextafter(torch.tensor(9.0))),
        ("/a", torch.arange(6).reshape(2, 3)),
        ("/a", None),
        ("/b", {"c": [1, 2.5, torch.tensor(0.0)], "d": (None, "x")}),
        ("/b", {"c": [True, 2.5, torch.tensor(-0.0)], "d": (None, "x")}),
        ("/b", {"c": (1, 2.5, torch.tensor(-0.0)), "d": (None, "x")}),
        ("/b", {"c": [1, 2.5, torch.tensor(-0.0)]}),
    ],
)
def test_the_witness_sees_a_difference(path: str, value: object) -> None:
    other = {**state(), path[1:]: value}
    found = differences(digests(state()), digests(other))
    assert found
    assert all(name.startswith(path) for name in found)


def test_figures() -> None:
    """Ten steps of 1 s; the save after step 4 covers steps 5 and 6, which take 2 s; torch.save follows step 8."""
    timeline, now = Timeline(), 0.0
    for number in range(1, 11):
        length = 2.0 if number in {5, 6} else 1.0
        timeline.steps.append(Step(number, now, now + length))
        now += length
        if number == 4:
            timeline.saves.append(AsyncSave(4, now, stall_s=0.5, done_s=now + 0.5 + 3.0))
            now += 0.5
        if number == 8:
            timeline.blocking.append(BlockingSave(8, stall_s=5.0, durable_s=6.0))
            now += 6.0
    found = figures(timeline, warm_up=1)
    assert (found.stall_s, found.blocking_s, found.stall_ratio) == (0.5, 5.0, 10.0)
    assert (found.durable_s, found.blocking_durable_s) == (3.5, 6.0)
    assert (found.step_s, found.steps, found.inflation, found.added_s) == (1.0, 2, 1.0, 2.0)


@pytest.mark.slow
def test_the_demo_runs_and_every_claim_holds(tmp_path: Path) -> None:
    folder = tmp_path / "output"
    command = [sys.executable, "-m", "benchmarks.demo", "--folder", str(folder), "--steps", "6", "--every", "3"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((folder / "results.json").read_text())
    assert all(claim["holds"] for claim in results["claims"])
    assert (folder / "step_times.png").stat().st_size > 10_000
    total = results["bytes"][-1]
    assert 0 < total["stored_bytes"] < 0.85 * total["raw_bytes"]
