# Everything a newcomer needs. `make help` explains itself.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: help setup demo test browser lint types unit zoo-check lock clean
.DEFAULT_GOAL := help
APT := -o Acquire::Retries=0 -o Acquire::http::Timeout=10

help:  ## show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	python3 -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install -q --disable-pip-version-check --no-deps apache-otava==0.8.0  # it pins other numpy and scipy
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

setup: $(STAMP)  ## make .venv from requirements.lock

demo: setup  ## tune a shipped training script on this machine's CPU, with proof (under 6 minutes)
	$(VENV)/bin/hotlap tune --budget 270s $(PY) examples/digits_classifier.py

test: setup browser lint  ## everything CI runs: lint, types, tests
	@$(MAKE) --no-print-directory -j 2 types unit

lint: setup  ## ruff
	$(VENV)/bin/ruff check src tests benchmarks examples
	$(VENV)/bin/ruff format --check src

types: setup  ## mypy --strict
	$(VENV)/bin/mypy

unit: setup  ## pytest
	$(PY) -m compileall -q src  # once: processes start by the hundred, and some machines have Python keep no bytecode
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal

zoo-check: setup  ## naive and hand-tuned scripts of the zoo compute the same, on this machine's CPU
	OMP_NUM_THREADS=1 $(PY) benchmarks/zoo.py check

browser:  ## install the browser that the report page is tested in (Debian, as root); its tests are skipped without it
	@command -v chromedriver >/dev/null && command -v chromium >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && timeout 60 apt-get $(APT) update -qq && \
	    DEBIAN_FRONTEND=noninteractive timeout 240 apt-get $(APT) install -y -qq --no-install-recommends \
	    chromium chromium-driver >/dev/null; } || \
	  echo "no browser was installed; the tests that need one are skipped"

lock: setup  ## write requirements.lock anew from what is installed
	$(PY) -m pip freeze --exclude-editable | grep -v '^hotlap\|^apache-otava' | sed 's|^\(torch==[0-9.]*\)+cpu|\1|' > requirements.lock

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
