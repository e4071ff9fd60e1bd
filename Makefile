# `make help` lists the commands.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export FRAZIL_HOME ?= $(CURDIR)/.frazil
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup demo demo-cdc up down clean test test-all test-fast check format faults matrix conformance chaos recovery bench bench-steps bench-peers docs

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 12); \
	sys.exit(0 if ok else "Python 3.11 or 3.12 is needed, found " + sys.version.split()[0] + \
	".\nNext: install python3.11, or make PYTHON=/path/to/python3.11 …")'
	@echo "setup: creating $(VENV) and installing requirements.txt (about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -r requirements.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

setup: $(STAMP) ## create .venv and install the packages

FLIGHTS ?= 336776

demo: $(STAMP) ## start the stack, ingest 336,776 real flights, show the table (FLIGHTS=…)
	@$(BIN)/python -m frazil_demo --flights $(FLIGHTS)

demo-cdc: $(STAMP) ## capture a table of PostgreSQL by Debezium, merge its changes, compare (needs PostgreSQL)
	@$(BIN)/python -m frazil_demo.cdc

up: $(STAMP) ## start the embedded stack
	@$(BIN)/frazil stack up

down: ## stop the embedded stack
	@if test -x $(BIN)/frazil; then $(BIN)/frazil stack down; exit; fi; \
	pid="$$(cat "$$FRAZIL_HOME/stack/supervisord.pid" 2>/dev/null || true)"; \
	if test -n "$$pid" && kill -0 "$$pid" 2>/dev/null; then \
		echo "down: the stack in $$FRAZIL_HOME runs (supervisor $$pid), but $(VENV) is missing."; \
		echo "Next: \`make setup\`, then \`make down\`"; exit 1; \
	fi >&2

# Removes FRAZIL_HOME only if `frazil stack up` created it.
clean: down ## stop the stack and delete its data (.frazil); .venv stays
	@refuse() { echo "clean: FRAZIL_HOME=$$FRAZIL_HOME $$1; nothing was removed."; \
		echo "Next: remove the folder yourself, or set FRAZIL_HOME to the home of a stack"; \
		exit 1; } >&2; \
	if test -d "$$FRAZIL_HOME"; then \
		home="$$(cd -- "$$FRAZIL_HOME" && pwd -P)"; \
		for kept in "$${HOME:-/}" "$(CURDIR)"; do \
			case "$$(cd -- "$$kept" && pwd -P)/" in \
				"$${home%/}"/*) refuse "is $$kept or a parent of it";; \
			esac; \
		done; \
		test -f "$$home/stack/lock" || test -f "$$home/jars/fetched.json" || \
			refuse "is not the home of a stack"; \
		rm -rf -- "$$home"; \
	fi
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Each worker starts its own stack: two workers need two cores and 8 GiB.
WORKERS ?= 2
SAMPLE := --sample
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# One more than cores: some of these tests wait for processes.
FAST_WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 1)

# Of tests marked `storm` it runs a few instances, of those on a stack the ones marked `core` and one in sixteen
# of the others, chosen by a seed; none marked `long`. The seed is a checksum of the Python files: a second run of
# the same files, also on another machine, has the same tests. TEST_SEED=… chooses others.
# Temporary files are in memory where 8 GiB are free: on a disk SQLite waits milliseconds per commit.
TEST_SEED ?= $(shell find dags include plugins spark_jobs tests -name '*.py' | LC_ALL=C sort | \
	xargs cat | cksum | cut -d' ' -f1)

test: $(STAMP) ## tests without a stack, core tests on one, a sample of the others (`make test-all`: all)
	@free="$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print $$4}' || true)"; \
	if test "$${free:-0}" -ge 8388608; then \
		TMPDIR="$$(mktemp -d /dev/shm/frazil-test-XXXXXX)"; export TMPDIR; trap 'rm -rf "$$TMPDIR"' EXIT; \
	fi; \
	seed=$(TEST_SEED); $(BIN)/python -m pytest $(SHARED) $(SAMPLE) \
		--randomly-seed=$$seed --hypothesis-seed=$$seed --durations=60 --durations-min=2

test-all: SAMPLE := --sample --all-stacks
test-all: test ## all tests but most instances of storms (`make faults` runs these)

test-fast: $(STAMP) ## unit, airflow and project tests, without a JVM and without those marked slow
	@$(BIN)/python -m pytest -n $(FAST_WORKERS) --dist loadfile -m "not slow" --hypothesis-profile=fast \
		tests/unit tests/airflow tests/project

faults: $(STAMP) ## the failure catalogue (docs/faults.md), each case with its inputs; all seeds and kill points
	@$(BIN)/python -m pytest tests/faults $$($(BIN)/python tests/faults/cases.py) \
		tests/spark/test_drills.py tests/spark/test_quality_parity.py tests/spark/test_random_values.py \
		tests/spark/test_compare.py tests/spark/test_fast_path_files.py tests/spark/test_late_records.py \
		tests/spark/test_state_tables.py tests/spark/test_change_event_states.py tests/spark/test_interrupted_merges.py \
		tests/spark/test_seeded_changes.py tests/spark/test_state_maintenance.py \
		tests/e2e/test_stack.py $(SHARED)

matrix: $(STAMP) ## each type × partition × operation × format, 10,000 random records per format; prints figures (SEED=…)
	@seed=$(SEED); test "$$seed" != 0 || seed=$$((RANDOM * 32768 + RANDOM)); echo "matrix: make matrix SEED=$$seed"; \
	FRAZIL_FUZZ_SEED="$$seed" $(BIN)/python -m pytest tests/spark/test_value_matrix.py tests/spark/test_random_streams.py \
		tests/spark/test_random_values.py tests/spark/test_random_payloads.py -n $(WORKERS) --dist worksteal

CELL ?=

conformance: $(STAMP) ## one scenario on each broker, catalog, store and engine; resumes (CELL="mtls rest_s3" runs these)
	@PYTHONPATH=tests CELL="$(CELL)" $(BIN)/python -m conformance

KILLS ?= 3
OUTAGE_MINUTES ?= 10
SEED ?= 0
MINUTES ?= 30

chaos: $(STAMP) ## runs with random kills, rollbacks and server failures, then audits (SEED=0 is random, MINUTES=…)
	@PYTHONPATH=tests $(BIN)/python -m faults.chaos --seed $(SEED) --minutes $(MINUTES)

bench: $(STAMP) ## measure ingest against a minimal Spark job; prints JSON
	@$(BIN)/python tests/bench/run_bench.py

bench-steps: $(STAMP) ## measure formats, dead letters, replay and rollback against their limits
	@$(BIN)/python tests/bench/steps.py

recovery: $(STAMP) ## measure recovery after kills and a catalog outage (KILLS=…, OUTAGE_MINUTES=…)
	@KILLS=$(KILLS) OUTAGE_MINUTES=$(OUTAGE_MINUTES) $(BIN)/python tests/bench/recovery.py

RECORDS ?= 1000000
ROUNDS ?= 5

bench-peers: $(STAMP) ## compare with Spark, Flink, Kafka Connect, Python; writes docs/benchmarks.md (RECORDS=…, ROUNDS=…)
	@PYTHONPATH=tests $(BIN)/python tests/bench/peers.py $(RECORDS) $(ROUNDS) docs/benchmarks.md

check: $(STAMP) ## ruff, mypy, rules of imports and sizes, names that tests import
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy include/frazil include/frazil_airflow include/frazil_cli include/frazil_demo include/frazil_stack spark_jobs
	@$(BIN)/python -m pytest -q -p no:randomly tests/project/test_import_arrows.py tests/project/test_file_sizes.py \
		tests/project/test_imported_names.py

format: $(STAMP) ## format the code with ruff
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(STAMP) ## generate docs/streams.md from the models
	@$(BIN)/python -m frazil.streams.reference > docs/streams.md
