# Everything a newcomer needs. `make help` explains itself.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: help setup demo test lint types unit lock clean
.DEFAULT_GOAL := help

help:  ## show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	python3 -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

setup: $(STAMP)  ## make .venv from requirements.lock

demo: setup  ## tune a shipped training script on this machine's CPU, with proof (under 6 minutes)
	$(VENV)/bin/hotlap tune --budget 270s $(PY) examples/digits_classifier.py

test: setup lint types unit  ## everything CI runs: lint, types, tests

lint: setup  ## ruff
	$(VENV)/bin/ruff check src tests benchmarks examples
	$(VENV)/bin/ruff format --check src

types: setup  ## mypy --strict
	$(VENV)/bin/mypy

unit: setup  ## pytest
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal

lock: setup  ## write requirements.lock anew from what is installed
	$(PY) -m pip freeze --exclude-editable | grep -v '^hotlap' | sed 's|^\(torch==[0-9.]*\)+cpu|\1|' > requirements.lock

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
