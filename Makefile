# One way to do each chore. Every target makes the environment it needs in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
DIST_STAMP := $(VENV)/.installed-dist
PYTEST_ARGS ?=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo test check format bench clean system weights screenshots docs dist

help:  ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

venv: $(STAMP)  ## the environment, in .venv

system:
	@scripts/system-packages

# Where they cannot be had, the tests that need them say so themselves.
weights: $(STAMP)
	-@$(BIN)/forkwise model fetch --quiet

demo: $(STAMP)  ## try four fixes side by side, commit the one that passes the tests, undo it
	@$(BIN)/python -m tools.demo

test: system weights  ## all tests (PYTEST_ARGS='-k name' for some)
	@$(BIN)/python scripts/run-tests $(PYTEST_ARGS)

check: $(STAMP)  ## lint, format, types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory docs

format: $(STAMP)  ## put the sources into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: system $(STAMP)  ## figures against the raw floor and the peers (BENCH_ARGS=--json)
	$(BIN)/python -m bench $(BENCH_ARGS)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python scripts/install-group docs
	@touch $@

docs: $(DOCS_STAMP)  ## the documentation site, in site/; a broken link or an undocumented name is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict

$(DIST_STAMP): $(STAMP)
	$(BIN)/python scripts/install-group dist
	@touch $@

dist: $(DIST_STAMP)  ## the wheel and the sdist, in dist/, checked and tried in a clean environment
	@$(BIN)/python -m tools.dist

screenshots: $(STAMP)  ## draw the pictures of the panels in docs/images anew
	PYDANTIC_AI_NO_BANNER=1 $(BIN)/python -m tools.screenshots docs/images

clean:  ## remove what was made here
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
