# make demo, make test: each does all the set-up it needs. `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

.PHONY: help demo cluster-demo test test-all test-browser test-wheel test-oldest docs docs-links theory simtest lint format bench lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: .venv/installed  ## Hopper learned twice, by Stellaris and by a synchronous baseline (results/quickstart/)
	$(BIN)/python -m experiments quickstart

cluster-demo: .venv/installed  ## CartPole learned twice on a Ray cluster of two nodes on this machine (results/cluster/)
	$(BIN)/python -m experiments cluster

# Most of the tests' time is compiling: what one worker, or an earlier run, has compiled is not compiled again.
test test-all test-browser test-oldest: export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.pytest_cache/jax
test test-all test-browser test-oldest: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
test test-all test-browser test-oldest: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES = 0
# A test's program runs once or twice, so optimising it takes longer than it saves; tests that run long turn it on again.
# XLA's newer emitters of kernels take longer to compile as well. Programs are compiled as users compile them by test-oldest,
# by test-wheel, and in the notebooks of docs.
test test-all: export JAX_DISABLE_MOST_OPTIMIZATIONS = 1
test test-all: export XLA_FLAGS ?= --xla_cpu_use_fusion_emitters=false
test: .venv/installed lint  ## formatter, linter, type checker, then the tests that catch most mistakes (4 to 8 minutes)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: .venv/installed lint  ## the same with every test and doctest, which is what CI runs (50 minutes)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# It needs Debian's Chromium: apt-get install chromium chromium-driver fonts-dejavu-core
test-browser: .venv/browser  ## the report's page, and the site if it is built, in headless Chromium (Debian's packages)
	$(BIN)/python -m pytest tests/browser

test-wheel: .venv/installed  ## the wheel in empty environments: its import, and the README's blocks with the extras they name (2 minutes)
	$(BIN)/python -m tests.wheel

# Warnings are no errors there, and jaxtyping checks no shapes: its oldest version cannot check what a conftest imports.
test-oldest: build/oldest/installed  ## pure functions, runtime and systems on the oldest packages that pyproject.toml admits (4 minutes)
	build/oldest/bin/python -m pytest -n 2 --dist worksteal -m "not slow" -o addopts= -W default -q \
	  tests/_core tests/aggregation tests/algorithms tests/corrections tests/runtime tests/systems \
	  tests/test_di[as]*.py tests/test_import.py tests/test_losses*.py tests/test_numerics.py tests/test_oracles.py \
	  tests/test_pacing.py tests/test_returns*.py tests/test_types.py

# From nothing every time, so that no page is older than the code. SPHINXOPTS='-D nb_execution_mode=off' leaves the notebooks
# unexecuted while you write.
SPHINX := $(BIN)/python -m sphinx -W -n --keep-going -E $(SPHINXOPTS)
docs: .venv/docs  ## the site, with its notebooks executed; every link and reference must lead somewhere (docs/_build/html/, 5 minutes)
	$(SPHINX) -q -b html docs docs/_build/html

docs-links: .venv/docs  ## whether the addresses outside the site still answer (needs the network)
	$(SPHINX) -q -D nb_execution_mode=off -b linkcheck docs docs/_build/links

theory: .venv/installed  ## the papers' bounds, verified and broken (results/theory_checks/, minutes)
	$(BIN)/python -m theory_checks --plot

simtest: .venv/installed  ## 2,000 random systems on faulty platforms, looked at after every event (minutes)
	$(BIN)/python -m experiments simtest --seeds 2000

lint: .venv/installed  ## formatter, linter and type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed  ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/installed  ## speed, as ratios against a limit or a peer measured in the same run
	$(BIN)/python -m experiments benchmarks losses
	$(BIN)/python -m experiments benchmarks training
	$(BIN)/python -m experiments benchmarks overhead
	$(BIN)/python -m experiments benchmarks platform

LOCK := uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
  --no-emit-package stellaris-rl --custom-compile-command 'make lock' pyproject.toml

lock:  ## resolve pyproject.toml anew into requirements.lock and those of the browser and the site (needs uv)
	$(LOCK) --extra dev -o requirements.lock
	$(LOCK) --extra browser -c requirements.lock -o requirements-browser.lock
	$(LOCK) --extra docs -c requirements.lock -o requirements-docs.lock

clean:  ## remove the environments and the caches (results stay)
	rm -rf .venv build docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamp is written last, so that an installation that was cut off is taken up again.
.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("stellaris needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# What drives the browser is installed for its tests alone, and Sphinx for the site alone.
.venv/browser: .venv/installed requirements-browser.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes -r requirements-browser.lock
	@touch $@

.venv/docs: .venv/installed requirements-docs.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes -r requirements-docs.lock
	@touch $@

# What the extras name is there in its oldest version, and what only the tests need in its newest that fits.
build/oldest/installed: pyproject.toml
	test -x build/oldest/bin/python || $(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install --disable-pip-version-check --quiet uv
	rm -f build/oldest/*.txt
	cd build/oldest && bin/uv pip compile --quiet --python bin/python --resolution lowest-direct \
	  --extra dask --extra experiments --extra lab --extra ray --extra replay --extra tensorboard -o oldest.txt ../../pyproject.toml
	cd build/oldest && bin/uv pip compile --quiet --python bin/python \
	  --extra dev -c oldest.txt -o requirements.txt ../../pyproject.toml
	build/oldest/bin/uv pip install --quiet --python build/oldest/bin/python --requirements build/oldest/requirements.txt
	@touch $@
