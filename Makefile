# make setup | demo | test | test-all | lint | clean; PYTHON=python3.12 make … selects another Python.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
# One process per core. Tests that share an expensive setup run in the same process (xdist_group).
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadgroup

.PHONY: setup demo test test-all lint clean

setup: $(READY)

# Installed again only if the pinned packages or the project's metadata change.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	@echo "installing the pinned packages into .venv (a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) install -r requirements.lock
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

# Trains three seeds in parallel on the embedded data set: about three minutes on two cores, with evaluations and plots.
demo: setup
	$(BIN)/offline-rl train experiment=demo

test: lint
	$(PYTEST) -m "not slow"

# Also runs the slow tests, such as compiled against eager updates of every algorithm, and long runs.
test-all: lint
	$(PYTEST)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
