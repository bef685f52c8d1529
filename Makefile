# Two commands do all the set-up on a machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml setup.py $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
PYTEST := $(BIN)/python -X dev -W error::ResourceWarning -m pytest
# Tests wait for timers, disks and other processes much of their time, Apache's programs even more.
JOBS ?= 4
INTEROP_JOBS ?= 5
# What stays together, and what starts first, is said in tests/conftest.py.
SPREAD := --dist loadscope --no-loadscope-reorder
# Where an environment forbids Python to keep what it has compiled, every worker and every server that
# the tests start would compile all of it again.
export PYTHONDONTWRITEBYTECODE :=
TWINS := tests/property $(addprefix tests/unit/,protocol store broker net nameserver replication spark)

.PHONY: install demo test lint check bench peers interop campaign fuzz docs format clean

install: $(STAMP)

$(STAMP): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip "setuptools>=77" "Cython>=3.1,<4"
	$(BIN)/python -m pip install -q --no-build-isolation -e ".[all,dev]"
	touch $@

demo: install
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/pipeline_demo.py

# The compiled path first, then again, on the pure one, what has a compiled twin or stands on one.
test: install
	$(PYTEST) -n $(JOBS) $(SPREAD) tests --ignore tests/interop
	SKYLARK_PURE=1 $(PYTEST) -n $(JOBS) $(SPREAD) $(TWINS)

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

# Apache's programs and its clients in other languages, from their registries.
peers:
	$(PYTHON) tests/interop/fetch.py

interop: install peers
	$(PYTEST) -n $(INTEROP_JOBS) $(SPREAD) tests/interop

bench: install
	$(BIN)/python -m benchmarks

campaign: install
	$(BIN)/python -m tests.campaign.run $(CAMPAIGN)

fuzz: install
	$(BIN)/python tests/fuzz/run.py --seconds 60

docs: install
	$(BIN)/python docs/generate.py

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis
	find src -name '*.so' -delete
