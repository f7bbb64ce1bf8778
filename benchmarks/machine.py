"""What a result was measured on, and where results are kept: machine, versions, commit; one JSON line a run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["RESULTS", "append", "machine"]

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "torch", "crc32c", "zstandard", "backports.zstd", "zipnn")


def machine() -> dict[str, object]:
    """Processor, cores, memory (bytes), system, versions of what takes part, and the commit, ``+`` if edited since."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": _commit(),
    }


def append(path: Path, record: Mapping[str, object]) -> None:
    """Add one line to a results file, made with its folder on first use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, sort_keys=True) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    def git(*arguments: str) -> str:
        folder = Path(__file__).parent
        done = subprocess.run(("git", *arguments), cwd=folder, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
