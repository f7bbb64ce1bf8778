"""Benchmarks: one module per question, each with ``main(argv)``; run one as ``python -m benchmarks NAME``.

Every benchmark asserts bit equality before it reports a number, measures what it compares side by side in one run,
prints a table, and appends one JSON line with machine, versions and commit to ``benchmarks/results/NAME.jsonl``.
"""
