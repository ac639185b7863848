# Everything runs in .venv, made here with the standard library's venv and pip. Exact versions: constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt
LOWEST_INSTALL = $(LOWEST)/bin/pip install --quiet --constraint constraints-lowest.txt
SKYRL := .venv-skyrl
SKYRL_INSTALL := $(SKYRL)/bin/pip install --quiet --constraint tests/skyrl/constraints.txt
LOWEST := .venv-lowest
LOWEST_TESTS := tests/test_bad_input.py tests/test_edges.py tests/test_finite.py tests/test_golden.py \
	tests/test_gradients.py tests/test_jax.py tests/test_parity.py tests/test_precision.py tests/test_properties.py \
	tests/test_torch.py tests/pipeline tests/execution --ignore=tests/execution/test_examples_elsewhere.py
WORKERS ?= 2

# A worker per core already; more threads would only fight.
export OMP_NUM_THREADS ?= 1
export JAX_PLATFORMS ?= cpu

.PHONY: demo test test-slow coverage test-lowest test-servers check bench bench-tiny docs notebooks pictures release \
	constraints clean

# A small model learns pig latin under three terms; the last line says where the report is.
demo: $(VENV)/.demo
	$(BIN)/penalties train

# With COVERAGE=1 both kinds of tests record what they run, and `make coverage` adds it up.
ifdef COVERAGE
RECORD = COVERAGE_FILE=.coverage.$@
RECORDING = --cov --cov-report=
endif

# Each worker starts with neighbouring tests, which share what JAX compiles.
test: $(VENV)/.dev
	$(RECORD) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(RECORDING)

# What waits, starts clusters, browsers or compilers, or injects faults: one test after another, since some of them
# count processes and measure memory.
test-slow: $(VENV)/.dev
	$(RECORD) $(BIN)/python -m pytest -m slow $(RECORDING)

coverage: $(VENV)/.dev
	$(BIN)/coverage combine --keep --quiet .coverage.test .coverage.test-slow
	$(BIN)/coverage report --fail-under=95

# The lowest versions that pyproject.toml allows, in an environment of its own: mathematics, pipelines and executors.
test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) -m "not slow" $(LOWEST_TESTS)

# A server that others wrote, in an environment of its own: it needs other versions of the SDK and of transformers.
# The SDK leaves its connections open.
test-servers: $(SKYRL)/.ready
	$(SKYRL)/bin/python -m pytest --confcutdir=tests/skyrl -W "ignore:unclosed:ResourceWarning" tests/skyrl

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	PYTHONPATH=src $(BIN)/pyright --pythonpath $(BIN)/python --verifytypes penalties --ignoreexternal
	PYTHONPATH=tools $(BIN)/lint-imports
	$(BIN)/deptry .

# Speed, against plain code and limits: on a quiet machine.
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# Every benchmark once: whether it still runs, not how fast.
bench-tiny: $(VENV)/.dev
	$(BIN)/python -m benchmarks --tiny

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The pages of the notebooks, and pictures of reports, which need Chromium: generated, and committed.
notebooks: $(VENV)/.dev
	$(BIN)/python -m docs._plots.notebooks

pictures: $(VENV)/.dev
	PENALTIES_PICTURES=1 $(BIN)/python -m pytest -n 0 tests/app/report/test_pictures.py

# What would be published: built, checked, and tried in an environment of its own outside this folder.
release: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/smoke.py dist

# After a change of dependencies: resolve again, look at the difference, commit it.
constraints:
	rm -rf $(VENV)
	sed -i '/^[a-z]/Id' constraints.txt && echo "torch==2.13.0" >> constraints.txt
	$(MAKE) $(VENV)/.dev $(VENV)/.release
	$(BIN)/pip freeze --all --exclude-editable | grep -v -i '^torch==' | sed 's/+cpu$$//' >> constraints.txt

clean:
	rm -rf $(VENV) $(LOWEST) $(SKYRL) site build dist .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.pip: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	touch $@

# torch first, alone: whatever depends on it then finds the pinned build and looks for no other.
$(VENV)/.torch: $(VENV)/.pip
	$(INSTALL) torch
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(INSTALL) --group build
	$(INSTALL) --no-build-isolation --editable ".[torch,train,cli]"
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(INSTALL) --no-build-isolation --editable ".[torch,train,cli,jax,process,ray]" --group test --group check --group docs
	touch $@

$(VENV)/.release: $(VENV)/.pip pyproject.toml
	$(INSTALL) --group build --group release
	touch $@

$(LOWEST)/.ready: constraints-lowest.txt pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST_INSTALL) --upgrade pip
	$(LOWEST_INSTALL) torch
	$(LOWEST_INSTALL) --group build --group test-lowest
	$(LOWEST_INSTALL) --no-build-isolation --editable ".[torch,jax,process,state]"
	touch $@

$(SKYRL)/.ready: tests/skyrl/constraints.txt pyproject.toml
	$(PYTHON) -m venv $(SKYRL)
	$(SKYRL_INSTALL) --upgrade pip
	$(SKYRL_INSTALL) torch
	$(SKYRL_INSTALL) "skyrl[tinker,jax]" tinker pytest pytest-timeout --group build
	$(SKYRL_INSTALL) --no-build-isolation --editable ".[train,tinker]"
	touch $@
