# make setup | demo | test | test-all | lint | clean; PYTHON=python3.12 make … chooses another Python.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
# A process to a core; tests that share what is slow to make are told to run in one (xdist_group).
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadgroup

.PHONY: setup demo test test-all lint clean

setup: $(READY)

# Made anew only when the pinned packages or the project's metadata change.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	@echo "installing the pinned packages into .venv (a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) install -r requirements.lock
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

# The embedded data set, three seeds side by side; some three minutes on two cores, data, evaluations and plots with them.
demo: setup
	$(BIN)/offline-rl train experiment=demo

test: lint
	$(PYTEST) -m "not slow"

# Also what takes minutes: compiled equals eager for every algorithm, long runs.
test-all: lint
	$(PYTEST)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
