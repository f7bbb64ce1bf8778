"""``python -m tests.fuzz SECONDS [TARGET ...]``: coverage-guided fuzzing of the reader with atheris.

Each target runs in its own process for its share of the time; an input that breaks a rule is left in ``fuzz-findings/``
and can be replayed with ``python -m tests.fuzz replay TARGET FILE``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

FINDINGS = Path("fuzz-findings")


def main(argv: list[str]) -> int:
    if argv and argv[0] == "replay":
        _one(argv[1])(Path(argv[2]).read_bytes())
        return 0
    if argv and argv[0] == "run":
        return _fuzz(argv[1], int(argv[2]))
    from tests.fuzz.mutators import MUTATORS

    try:
        import atheris  # noqa: F401 - only to tell early
    except ImportError:
        print("atheris is missing: `make fuzz` installs it (Linux on x86-64; pip install s4async[fuzz])")
        return 1
    seconds = int(argv[0]) if argv else 60
    targets = argv[1:] or list(MUTATORS)
    status = 0
    for target in targets:
        command = [sys.executable, "-m", "tests.fuzz", "run", target, str(max(1, seconds // len(targets)))]
        status |= subprocess.run(command, check=False).returncode
    return status


def _one(target: str):  # type: ignore[no-untyped-def]
    """What one input does: its bytes choose a seed object and drive the target's mutator."""
    from tests.fuzz.mutators import MUTATORS
    from tests.fuzz.oracle import RECORD, SEEDS, check

    names = sorted(SEEDS)

    def run(data: bytes) -> None:
        name = names[data[0] % len(names)] if data else names[0]
        seed = RECORD if target == "record" else SEEDS[name]
        check(target, name, MUTATORS[target](seed, Random(data)))

    return run


def _fuzz(target: str, seconds: int) -> int:
    import atheris

    with atheris.instrument_imports(include=["s4async"]):
        run = _one(target)
    FINDINGS.mkdir(exist_ok=True)
    options = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4096", "-max_len=4096"]
    atheris.Setup([target, *options, f"-artifact_prefix={FINDINGS}{os.sep}{target}-"], run)
    print(f"target {target}: {seconds} s", flush=True)
    atheris.Fuzz()
    return 0


sys.exit(main(sys.argv[1:]))
