# Every target first makes the virtual environment that it needs. PYTHON chooses the interpreter it is made with.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
DOCS := $(VENV)/.docs
DIST := $(VENV)/.dist
INTEGRATION := .venv-integration
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
PYTEST_ARGS ?=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo agents test test-integration crash fuzz check format bench bench-quality clean system system-integration screenshots vendor docs dist

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 19

$(CORE): pyproject.toml
	@echo "Creating a virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing forkwise and its dependencies"
	@$(BIN)/python $(PIP_INSTALL) --no-compile --editable .
	@touch $@

$(DEV): $(CORE)
	@echo "Installing the development tools"
	@$(BIN)/python scripts/install-group dev
	@touch $@

$(INTEGRATION)/.installed: pyproject.toml
	@echo "Creating a virtual environment in $(INTEGRATION)"
	@test -x $(INTEGRATION)/bin/python || $(PYTHON) -m venv $(INTEGRATION)
	@echo "Installing forkwise and what the integration tests need"
	@$(INTEGRATION)/bin/python scripts/install-group integration
	@touch $@

system:
	@scripts/system-packages

system-integration:
	@scripts/system-packages --integration

venv: $(DEV)  ## create .venv with the development tools

demo: $(CORE)  ## try four fixes side by side, commit the one that passes the tests, undo it
	@echo "Running the demo"
	@$(BIN)/python -m tools.demo

agents: $(DEV)  ## run real coding agents, installed from npm and PyPI, against a scripted model (AGENTS='claude pi' for some)
	@$(BIN)/python -m tools.agents $(AGENTS)

test: system $(DEV) $(DOCS)  ## run the tests, the same way every time (PYTEST_ARGS='-k name' for some)
	@$(BIN)/python scripts/run-tests $(PYTEST_ARGS)

test-integration:  ## run the long tests, the kills, and what needs large components: the local model, other languages
	@$(MAKE) --no-print-directory --jobs=2 system-integration $(INTEGRATION)/.installed
	-@$(INTEGRATION)/bin/forkwise model fetch --quiet  # without the weights, the tests themselves skip or fail
	@$(INTEGRATION)/bin/python scripts/run-tests --integration $(PYTEST_ARGS)

crash: system $(DEV)  ## kill commits, forks and sandboxes, and cut the power, at many more moments than make test
	FORKWISE_FULL=1 $(BIN)/python -m pytest -m crash --timeout 3600 $(PYTEST_ARGS)

fuzz: system $(DEV)  ## run the property tests with random examples, and many more of them
	FORKWISE_FULL=1 FORKWISE_FUZZ=1 $(BIN)/python -m pytest -m hypothesis --timeout 3600 $(PYTEST_ARGS)

check: $(DEV)  ## check style, format, types, imports and documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory docs

format: $(DEV)  ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: system $(DEV)  ## measure against the raw system calls and against peers (BENCH_ARGS=--json)
	$(BIN)/python -m bench $(BENCH_ARGS)

bench-quality: system $(INTEGRATION)/.installed  ## measure how often patterns and judges choose the right attempt (BENCH_ARGS=--json)
	-@$(INTEGRATION)/bin/forkwise model fetch --quiet  # without the weights, the local model is left out
	$(INTEGRATION)/bin/python -m bench.quality $(BENCH_ARGS)

$(DOCS): $(DEV)
	@echo "Installing the tools for the documentation site"
	@$(BIN)/python scripts/install-group docs
	@touch $@

docs: $(DOCS)  ## build the documentation site in site/; fail at a broken link or an undocumented name
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

$(DIST): $(DEV)
	@echo "Installing the tools for building packages"
	@$(BIN)/python scripts/install-group dist
	@touch $@

dist: $(DIST)  ## build the wheel and the sdist in dist/, and try the wheel in a clean environment
	@$(BIN)/python -m tools.dist

screenshots: $(DEV) $(INTEGRATION)/.installed  ## redraw the pictures of panels and pages, those in docs/images and those that tests compare
	PYDANTIC_AI_NO_BANNER=1 $(BIN)/python -m tools.screenshots docs/images
	$(BIN)/python -m tools.screenshots.report_page docs/images
	$(INTEGRATION)/bin/python -m tools.screenshots.web_page docs/images
	FORKWISE_RECORD_PICTURES=1 $(INTEGRATION)/bin/python -m pytest -q -m integration tests/web/test_pictures.py

vendor:  ## fetch the files of other projects that the web page needs again, and check their hashes
	@scripts/vendor

clean:  ## remove everything that make created
	rm -rf $(VENV) $(INTEGRATION) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
