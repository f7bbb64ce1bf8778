# One verb, one command; `make` alone lists them. Every verb sets up first, which costs nothing when nothing changed.
#
#   PYTHON=python3.12     the interpreter of a new .venv (default: the first of Python 3.11 to 3.14 that is found)
#   PIP_ARGS="..."        options for pip, for example an index that has CPU builds of torch
#   PYTEST_ARGS="..."     options for pytest: make test PYTEST_ARGS="tests/format -k header"
#   JOBS=1                test processes (default: one per core, at most 8)
#   BENCH="codec"         which benchmarks `make bench` runs (default: all)
#   FUZZ_SECONDS=600      how long `make fuzz` runs (default: 60)

PY := .venv/bin/python
JOBS ?= auto
FUZZ_SECONDS ?= 60
export PYTHON PIP_ARGS
MAKEFLAGS += --no-builtin-rules

.DEFAULT_GOAL := help
.PHONY: help setup lint format test test-gpu bench demo docs vectors fuzz ci clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r verb what; do \
		printf '  make %-10s %s\n' "$$verb" "$$what"; done

setup: .venv/.done ## virtual environment with the package and what its verbs need

.venv/.done: pyproject.toml constraints.txt
	@.ci/setup $@ dev,demo

.venv/.done-%: .venv/.done
	@.ci/setup $@ $*

lint: setup ## format check, linter, type checker
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m mypy

format: setup ## rewrite the sources in the one format
	$(PY) -m ruff check --select I --fix
	$(PY) -m ruff format

test: setup ## everything that needs no GPU
	$(PY) -m pytest -m 'not gpu' -n $(JOBS) --maxprocesses 8 $(PYTEST_ARGS)

test-gpu: setup ## the tests that need a CUDA device
	@$(PY) -m pytest -m gpu $(PYTEST_ARGS) || { status=$$?; [ $$status -eq 5 ] || exit $$status; \
		echo "nothing ran: no test in this tree carries the marker 'gpu'"; }

bench: .venv/.done-bench ## the benchmarks at standard sizes
	@for name in $(or $(BENCH),$$($(PY) -c 'from benchmarks.__main__ import names; print(*names())')); do \
		echo "==> benchmarks $$name"; $(PY) -m benchmarks $$name || exit 1; done

demo: setup ## train, save meanwhile, die, restore, compare bit for bit, continue: one table, one picture
	@$(PY) -m benchmarks.demo

docs: setup ## run the code in the documents and check their links
	$(PY) -m pytest tests/test_docs.py $(PYTEST_ARGS)

vectors: setup ## write the golden files of tests/vectors anew; nothing else may
	$(PY) -m tests.vectors

fuzz: .venv/.done-fuzz ## feed damaged files to the reader
	$(PY) -m tests.fuzz $(FUZZ_SECONDS)

ci: lint test ## what .ci/run runs

clean: ## remove what these verbs made
	rm -rf .venv demo-output build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
