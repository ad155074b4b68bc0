# One command per job; each makes .venv and installs first if that has not been done.
#   make quickstart    train the tiny counting model and print what it learned
#   make test          all tests that CI runs
#   make check         ruff, pyright and vulture: the one check command before a commit

PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
RUN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: venv install quickstart test test-oldest check fuzz docs clean

venv: $(RUN)/python

$(RUN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mmgrpo needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

install: $(INSTALLED)

$(INSTALLED): pyproject.toml | $(RUN)/python
	$(RUN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

quickstart: install
	$(RUN)/mmgrpo train examples/quickstart.yaml --require-improvement

test: install
	$(RUN)/python -m pytest -m "not fuzz"

# The oldest transformers that is supported, in an environment of its own.
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest

$(OLDEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --editable ".[dev]" "transformers==5.17.*"
	touch $@

check: install
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/pyright
	$(RUN)/vulture

fuzz: install
	$(RUN)/python -m pytest -m fuzz

docs: install
	$(RUN)/python -m mmgrpo.config.show > docs/configuration.md

clean:
	rm -rf $(VENV) $(OLDEST) .pytest_cache .ruff_cache .hypothesis dist build
