# make demo: set up, then train a federation. make test: set up, then run the tests.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test lint check evidence format clean

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

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist
