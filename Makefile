# make demo   the whole path on this machine: text in, a model that explains and changes its own words out
# make test   the tests
# Both make their own environment first (.venv, once) and can be interrupted and run again.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= runs/demo
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types clean

help:
	@sed -n '1,3p' Makefile | cut -c3-

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "vitrail needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 2; }
	@echo "Setting up $(VENV): about 120 packages, 2.6 GB with the CPU build of PyTorch, a few minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar off \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY)
	@$(BIN)/vitrail demo --out $(OUT) $(ARGS)

# One thread a process: several processes of several threads spend their time waiting for one another.
test: $(READY)
	@echo "Running the tests: about 15 minutes on two cores."
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs build dist
