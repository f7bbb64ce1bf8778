"""``python -m benchmarks NAME [options]``: run one benchmark; without a name, list them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

SUPPORT = {"__init__", "__main__", "coders", "machine", "states"}  # modules that others use


def names() -> list[str]:
    """Benchmarks in this package."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SUPPORT)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that ``argv`` names; 2 if there is none of that name."""
    if not argv or argv[0] not in names():
        print(f"usage: python -m benchmarks NAME [options]\nNAME: {', '.join(names())}", file=sys.stderr)
        return 2
    import_module(f"benchmarks.{argv[0]}").main(list(argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
