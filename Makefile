# Every target but `help` and `clean` makes the environment first, so each works from a bare checkout.
# PYTHON is the interpreter that .venv is made from (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.reink-setup

.DEFAULT_GOAL := help
.PHONY: help setup demo test long opdb fuzz check lint type format shots golden bench docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The page is tried in a real browser: the system's, since Playwright's own are not among Python's packages. Where there
# is none and none can be installed, the tests of the page are skipped, and say so.
setup: $(STAMP)  ## make .venv with reink and its pinned development tools, and a browser if it may
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; \
	  timeout 60 apt-get -qq -o Acquire::Retries=0 update && \
	  timeout 300 apt-get -qq install -y --no-install-recommends chromium >/dev/null && exit 0; \
	fi; \
	echo "no chromium: the tests of the page in a browser will be skipped"

# setuptools comes first and builds reink itself: an isolated build would resolve setuptools unpinned.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt setuptools
	$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

demo: setup  ## compile a small decoder and show what became of its writes
	$(BIN)/python examples/decoder/demo.py

test: setup  ## run the test suite (two workers)
	$(BIN)/pytest -n 2

long: setup  ## run the test suite in its long modes: more examples, more random programs
	REINK_LONG=1 $(BIN)/pytest -n 2

opdb: setup  ## every operator of PyTorch's own database against eager; renews docs/operators.md
	$(BIN)/python docs/operators.py

# MINUTES for each of the two, e.g. `make fuzz MINUTES=1`.
MINUTES ?= 5
fuzz: setup  ## random programs against eager: the passes with injected faults, then torch.compile
	$(BIN)/reink fuzz --minutes $(MINUTES) --seed $(shell date +%s) --inject 2
	$(BIN)/reink fuzz --minutes $(MINUTES) --seed $(shell date +%s) --against reink

check: lint type test  ## lint, type and test: green before every commit

lint: setup  ## ruff: rules and layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup  ## mypy, strict
	$(BIN)/mypy

format: setup  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

shots: setup  ## take the pictures of the README anew
	PYTHONPATH=examples $(BIN)/python docs/screenshots.py

golden: setup  ## rewrite tests/golden from what the code prints now; review the diff as code
	$(BIN)/pytest -n 2 --update-golden

bench: setup  ## ratios against stock PyTorch, measured in the same run
	$(BIN)/python benchmarks/run.py

docs: setup  ## run the examples of the pages and renew the output shown below them
	$(BIN)/python docs/build.py

clean:  ## remove caches and build output; .venv stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
