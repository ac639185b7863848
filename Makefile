# Everything runs in .venv, made here with the standard library's venv and pip. Exact versions: constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt
SKYRL := .venv-skyrl
SKYRL_INSTALL := $(SKYRL)/bin/pip install --quiet --constraint tests/skyrl/constraints.txt
WORKERS ?= 2

# A worker per core already; more threads would only fight.
export OMP_NUM_THREADS ?= 1
export JAX_PLATFORMS ?= cpu

.PHONY: demo test test-slow test-servers check bench docs notebooks pictures release constraints clean

# A small model learns pig latin under three terms; the last line says where the report is.
demo: $(VENV)/.demo
	$(BIN)/penalties train

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" --cov --cov-report=term

# Faults, the soak and clusters: one after another, since they count processes and measure memory.
test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow tests

# A server that others wrote, in an environment of its own: it wants other versions of the SDK and of transformers.
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

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The pages of the notebooks, and pictures of reports, which need Chromium: made anew, and committed.
notebooks: $(VENV)/.dev
	$(BIN)/python -m docs._plots.notebooks

pictures: $(VENV)/.dev
	PENALTIES_PICTURES=1 $(BIN)/python -m pytest -n 0 tests/app/report/test_browser.py -k pictures

# What would be published: built, checked, and tried in an environment of its own outside this folder.
release: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/smoke.py dist

# After a change of dependencies: resolve anew, look at the difference, commit it.
constraints:
	rm -rf $(VENV)
	sed -i '/^[a-z]/Id' constraints.txt && echo "torch==2.13.0" >> constraints.txt
	$(MAKE) $(VENV)/.dev $(VENV)/.release
	$(BIN)/pip freeze --all --exclude-editable | grep -v -i '^torch==' | sed 's/+cpu$$//' >> constraints.txt

clean:
	rm -rf $(VENV) $(SKYRL) site build dist .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis
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

$(SKYRL)/.ready: tests/skyrl/constraints.txt pyproject.toml
	$(PYTHON) -m venv $(SKYRL)
	$(SKYRL_INSTALL) --upgrade pip
	$(SKYRL_INSTALL) torch
	$(SKYRL_INSTALL) "skyrl[tinker,jax]" tinker pytest pytest-timeout --group build
	$(SKYRL_INSTALL) --no-build-isolation --editable ".[train,tinker]"
	touch $@
