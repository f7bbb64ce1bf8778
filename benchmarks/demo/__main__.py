"""``python -m benchmarks.demo``: start the three processes, judge what they left, print it, write ``demo-output/``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch

import s4async
from benchmarks.demo.classes import Share, shares
from benchmarks.demo.picture import draw
from benchmarks.demo.roles import DEATH, Heir, Plan, Reference, read
from benchmarks.demo.table import bytes_table, stall_table, verdicts
from benchmarks.demo.timeline import Figures, figures
from benchmarks.machine import machine


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if every claim held, 1 if not, 2 if a process failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="where everything is left")
    parser.add_argument("--steps", type=int, default=128, help="training steps of the uninterrupted run")
    parser.add_argument("--every", type=int, default=16, help="steps between two saves")
    options = parser.parse_args(argv)
    began = time.perf_counter()
    plan = _plan(options.folder, options.steps, options.every)
    if not _run_all(plan):
        return 2
    told, found = read(plan, Reference), read(plan, Heir)
    measured = figures(told.timeline, warm_up=min(5, plan.every - 1))
    stored = shares(s4async.inspect(plan.store))
    claims = _claims(plan, told, found)
    picture = Path(plan.folder) / "step_times.png"
    draw(told.timeline, measured, picture)
    seconds = time.perf_counter() - began
    results = _write_results(plan, measured, stored, claims, found, seconds)
    print(f"\nWhat saving costs ({len(told.timeline.saves)} saves of each kind, in turn, in one run)\n")
    print(stall_table(measured))
    print(f"\nWhat is stored (the checkpoint of step {found.restored})\n")
    print(bytes_table(stored))
    print(f"\nWhat came back ({found.restore_s * 1e3:,.0f} ms to restore)\n")
    print(verdicts(claims))
    print(f"\n{seconds:.0f} s. Picture: {picture}   figures: {results}   checkpoints: {plan.store}")
    return 0 if all(true for true, _ in claims) else 1


def _plan(folder: Path, steps: int, every: int) -> Plan:
    """A fresh folder with a plan in it. The victim dies a little before half-way."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    saves = steps // every
    compute = "bfloat16" if _bfloat16_is_quick() else "float32"
    death = every * max(2, saves // 2)
    plan = Plan(str(folder), str(folder / "store"), steps, every, death, torch.get_num_threads(), compute)
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    return plan


def _bfloat16_is_quick() -> bool:
    """Whether this processor multiplies bfloat16 matrices at least as fast as float32 ones; not all do."""

    def seconds(dtype: torch.dtype) -> float:
        a, b = torch.ones(1024, 256, dtype=dtype), torch.ones(256, 1024, dtype=dtype)
        best = float("inf")
        for _ in range(10):
            start = time.perf_counter()
            a @ b
            best = min(best, time.perf_counter() - start)
        return best

    return seconds(torch.bfloat16) <= seconds(torch.float32)


def _run_all(plan: Plan) -> bool:
    """The three processes, in order; whether each ended as it should."""
    print(
        f"A transformer of 6.5 million parameters learns Python from Python's own sources: {plan.steps} steps,"
        f" {plan.compute} products, {plan.threads} threads.\nIt is saved every {plan.every} steps.\n"
    )
    reference_store = Path(plan.folder) / "reference-store"
    for role, store, code, what in (
        ("reference", str(reference_store), 0, "trains without interruption and measures save_async beside torch.save"),
        ("victim", plan.store, DEATH, f"trains the same, dies while it saves after step {plan.death}"),
        ("heir", plan.store, 0, "a fresh process: restores the newest checkpoint, compares, trains on to the end"),
    ):
        print(f"{role}: {what}", flush=True)
        start = time.perf_counter()
        done = _run(plan, role, store)
        if done != code:
            print(f"{role} ended with exit code {done}, expected {code}", file=sys.stderr)
            return False
        print(f"{role}: done in {time.perf_counter() - start:.1f} s, exit code {done} as it should", flush=True)
    shutil.rmtree(reference_store)
    (Path(plan.folder) / "torch-save.pt").unlink(missing_ok=True)
    return True


def _run(plan: Plan, role: str, store: str) -> int:
    environment = {**os.environ, "S4ASYNC_URL": store}
    command = [sys.executable, "-m", "benchmarks.demo.roles", role, str(Path(plan.folder) / "plan.json")]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


def _claims(plan: Plan, told: Reference, found: Heir) -> list[tuple[bool, str]]:
    """What the demo is about, each claim with whether it held."""
    whole = len(told.losses) == plan.steps and len(found.losses) == plan.steps - found.restored
    same = whole and found.losses == told.losses[found.restored :]
    first, last = (float.fromhex(loss) for loss in (told.losses[0], told.losses[-1]))
    before_death = found.restored in {plan.death - plan.every, plan.death}
    whole_store = before_death and len(found.steps) == found.restored // plan.every
    return [
        (whole_store, f"died in the save after step {plan.death}: {len(found.steps)} checkpoints visible, each whole"),
        (
            not found.different,
            f"checkpoint of step {found.restored}: {found.leaves} leaves, {found.tensors} of them tensors, equal bit"
            " for bit what the uninterrupted run had there" + _named(found.different),
        ),
        (same, f"the {len(found.losses)} losses from there on equal those of the uninterrupted run exactly"),
        (not found.end_different, f"so does all of the last state, loss {last!r}" + _named(found.end_different)),
        (last < first, f"and it did learn: {first:.2f} nats a byte at first, {last:.2f} at last"),
    ]


def _named(paths: list[str]) -> str:
    return f"; different: {', '.join(paths[:5])}{' ...' if len(paths) > 5 else ''}" if paths else ""


def _write_results(
    plan: Plan, measured: Figures, stored: list[Share], claims: list[tuple[bool, str]], found: Heir, seconds: float
) -> Path:
    path = Path(plan.folder) / "results.json"
    record = {
        "machine": machine(),
        "plan": msgspec.to_builtins(plan),
        "figures": {**asdict(measured), "stall_ratio": measured.stall_ratio},
        "bytes": [asdict(share) for share in stored],
        "claims": [{"holds": true, "claim": text} for true, text in claims],
        "restore_s": found.restore_s,
        "total_s": seconds,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
