# Needs Python 3.11 or newer and make; everything else goes into .venv, in the versions of constraints.txt.
#
#   make swarm ARGS="--binding tls"     more options for the scenario
#   make test ARGS="-k picker -n 0"     more options for pytest
#   make test PYTHON=python3.12         another interpreter than python3

PYTHON ?= python3
ARGS ?=
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --quiet --disable-pip-version-check --no-input install --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help swarm test lint bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

swarm: $(VENV)/.installed ## run the content swarm of 8 peers against its bounds
	@$(RUN) -m stress.content_swarm --peers 8 $(ARGS)

test: $(VENV)/.installed-test ## run the tests
	@ulimit -Sn $$(ulimit -Hn) 2>/dev/null; $(RUN) -m pytest -n auto $(ARGS)

lint: $(VENV)/.installed-lint ## check style and types
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check
	@$(RUN) -m mypy

bench: $(VENV)/.installed ## measure the hot paths
	@$(RUN) -m bench $(ARGS)

clean: ## remove .venv, caches and build products; runs/ stays
	@rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
	@find fleet stress bench tests -type d -name __pycache__ -prune -exec rm -rf {} +

# One stamp for each set of packages: set-up runs when what they ask for has changed, else never.
$(VENV)/.installed: pyproject.toml constraints.txt | $(RUN)
	@echo "installing into $(VENV)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-%: pyproject.toml constraints.txt | $(RUN)
	@echo "installing into $(VENV) (with what '$*' needs)"
	@$(PIP) --editable '.[$*]'
	@touch $@

$(RUN):
	@command -v "$(PYTHON)" >/dev/null || \
	    { echo "error: no $(PYTHON) on this machine: install Python 3.11 or newer, or name one with PYTHON=" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "error: $$("$(PYTHON)" --version 2>&1) is too old: name Python 3.11 or newer with PYTHON=" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "error: $(PYTHON) has no venv module: install it (python3-venv, where Python is packaged in parts)" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)
