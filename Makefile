# Everything runs in .venv, made here with the standard library's venv and pip. Exact versions: constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt
LOWEST_INSTALL = $(LOWEST)/bin/pip install --quiet --constraint constraints-lowest.txt
SKYRL := .venv-skyrl
SKYRL_INSTALL := $(SKYRL)/bin/pip install --quiet --constraint tests/skyrl/constraints.txt
INTEGRATIONS := .venv-integrations
INTEGRATIONS_INSTALL := $(INTEGRATIONS)/bin/pip install --quiet --constraint constraints.txt
FRAMEWORKS := huggingface lightning equinox flax keras frameworks
LOWEST := .venv-lowest
LOWEST_TESTS := tests/test_bad_input.py tests/test_edges.py tests/test_finite.py tests/test_golden.py \
	tests/test_gradients.py tests/test_jax.py tests/test_logits.py tests/test_parity.py tests/test_precision.py tests/test_properties.py \
	tests/test_torch.py tests/pipeline tests/execution --ignore=tests/execution/test_examples_elsewhere.py --ignore=tests/pipeline/test_notebook.py
MATHEMATICS := tests/test_compilers.py tests/test_gradients.py tests/test_parity.py tests/test_precision.py tests/testing
WORKERS ?= 2
CASES ?= 20000
KILLS ?= 60
FAULTS ?= 10000
MINUTES ?= 60
SEED ?= 0

# A worker per core already; more threads would only fight.
export OMP_NUM_THREADS ?= 1
export JAX_PLATFORMS ?= cpu

.PHONY: demo test test-slow campaign coverage test-lowest test-servers test-integrations check bench bench-tiny docs \
	notebooks pictures release constraints clean

# A small model learns pig latin under three terms; the last line says where the report is.
demo: $(VENV)/.demo
	$(BIN)/penalties train

# With COVERAGE=1 the tests record what they run, and `make coverage` adds it up.
ifdef COVERAGE
RECORD = COVERAGE_FILE=.coverage.$@
RECORD_KERNELS = $(RECORD).kernels
RECORD_MATHEMATICS = $(RECORD).mathematics
RECORD_KERAS = $(RECORD).keras
RECORDING = --cov --cov-report=
endif

# Each worker starts with neighbouring tests, which share what JAX compiles. Kernels run by Triton's interpreter, which
# Triton chooses when it is imported.
test: $(VENV)/.dev
	$(RECORD) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(RECORDING)
	TRITON_INTERPRET=1 $(RECORD_KERNELS) $(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(RECORDING) tests/kernels

# What waits, starts clusters, browsers or compilers, or injects faults: one test after another, since some of them
# count processes and measure memory. Only the mathematics, which does neither, is shared out.
test-slow: $(VENV)/.dev
	$(RECORD_MATHEMATICS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow $(RECORDING) $(MATHEMATICS)
	$(RECORD) $(BIN)/python -m pytest -m slow --durations=20 $(RECORDING) $(MATHEMATICS:%=--ignore=%)
	TRITON_INTERPRET=1 $(RECORD_KERNELS) $(BIN)/python -m pytest -m slow $(RECORDING) tests/kernels

# By hand, for hours: faults in every way to run a term, training with terms that fail, the fuzzers with many more cases
# than in the tests, and many more commands that are killed.
campaign: $(VENV)/.dev
	$(BIN)/python -m tests.slow.campaign --faults $(FAULTS) --seed $(SEED)
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --seed $(SEED)
	PENALTIES_FUZZ_CASES=$(CASES) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --timeout 0 tests/fuzz
	PENALTIES_KILLS=$(KILLS) $(BIN)/python -m pytest tests/slow/test_kill_resume.py

coverage: $(VENV)/.dev
	$(BIN)/coverage combine --keep --quiet .coverage.test*
	$(BIN)/coverage report --fail-under=95

# The lowest versions that pyproject.toml allows, in a separate environment: mathematics, pipelines and executors.
test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) -m "not slow" $(LOWEST_TESTS)

# A server that others wrote, in a separate environment: it needs other versions of the SDK and of transformers.
# The SDK leaves its connections open. And PostgreSQL, started for the tests that read from it.
test-servers: $(SKYRL)/.ready $(VENV)/.dev
	PENALTIES_POSTGRESQL=1 $(BIN)/python -m pytest tests/postgresql
	$(SKYRL)/bin/python -m pytest --confcutdir=tests/skyrl -W "ignore:unclosed:ResourceWarning" tests/skyrl

# Other people's trainers, as they are, in a separate environment: the versions are those of constraints.txt.
# A process has one backend of Keras: JAX, and then PyTorch.
test-integrations: $(INTEGRATIONS)/.ready
	$(RECORD) $(INTEGRATIONS)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(RECORDING) $(FRAMEWORKS:%=tests/integrations/%)
	$(INTEGRATIONS)/bin/python -m benchmarks --tiny lightning
	KERAS_BACKEND=torch $(RECORD_KERAS) $(INTEGRATIONS)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(RECORDING) tests/integrations/keras

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	PYTHONPATH=src $(BIN)/pyright --pythonpath $(BIN)/python --verifytypes penalties --ignoreexternal
	PYTHONPATH=tools $(BIN)/lint-imports
	$(BIN)/deptry .

# Speed, against plain code and limits: on a quiet machine.
bench: $(VENV)/.dev $(INTEGRATIONS)/.ready
	$(BIN)/python -m benchmarks
	$(INTEGRATIONS)/bin/python -m benchmarks lightning

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

# What would be published: built, checked, and tried in a separate environment outside this folder.
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
	rm -rf $(INTEGRATIONS)
	$(MAKE) $(INTEGRATIONS)/.ready
	$(INTEGRATIONS)/bin/pip freeze --all --exclude-editable | sed 's/+cpu$$//' | grep -v -i -x -F -f constraints.txt >> constraints.txt

clean:
	rm -rf $(VENV) $(LOWEST) $(SKYRL) $(INTEGRATIONS) site build dist .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis
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

$(INTEGRATIONS)/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS_INSTALL) --upgrade pip
	$(INTEGRATIONS_INSTALL) torch
	$(INTEGRATIONS_INSTALL) --group build --group test-integrations
	$(INTEGRATIONS_INSTALL) --no-build-isolation --editable ".[torch,jax,optax,state,huggingface]"
	touch $@

$(SKYRL)/.ready: tests/skyrl/constraints.txt pyproject.toml
	$(PYTHON) -m venv $(SKYRL)
	$(SKYRL_INSTALL) --upgrade pip
	$(SKYRL_INSTALL) torch
	$(SKYRL_INSTALL) "skyrl[tinker,jax]" tinker pytest pytest-timeout --group build
	$(SKYRL_INSTALL) --no-build-isolation --editable ".[train,tinker]"
	touch $@
