# Set-up, service, tests: `make` alone prepares .venv and the models, every other target prepares what it needs.

PYTHON ?= python3.11
PORT ?= 8000
VENV := .venv
PY := $(VENV)/bin/python
REQUIREMENTS := requirements-web.txt requirements.txt requirements-otel.txt requirements-dev.txt constraints.txt
# Named by content: an edit installs anew, a checkout that only touches the files does not.
INSTALLED := $(VENV)/installed-$(shell cat $(REQUIREMENTS) | cksum | cut -d ' ' -f 1)

export PORT
export PYTHONUNBUFFERED := 1
# Without their bytecode, each of the processes that a test starts would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo serve test test-all check bench models
.DEFAULT_GOAL := setup

setup: models

demo: models
	@$(PY) manage.py demo

serve: models
	@$(PY) manage.py up

# One more process than cores: the acceptance tests, all of which run in one, often wait.
PYTEST := $(PY) -m pytest -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
test: models
	$(PYTEST)

# What `make test` leaves out, and property tests with more examples.
test-all: test
	$(PYTEST) -m "(long or hypothesis) and not faults" --hypothesis-profile=long
	$(PY) -m pytest -m faults

check: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) manage.py makemigrations --check --dry-run
	$(PY) -m pip check

bench: models
	$(PY) -m benchmarks.engine
	$(PY) -m benchmarks.service
	$(PY) -m benchmarks.web
	$(PY) -m benchmarks.peers

# Not a file target: the command compares what is there with models.toml in less than half a second.
models: $(INSTALLED)
	@$(PY) manage.py prepare_model

$(INSTALLED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "Quire needs Python 3.11, and '$(PYTHON)' is not that: install it, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv package (Debian: python3.11-venv)" >&2; exit 1; }
	@echo "Setting up $(VENV): a minute or two, once"
	@rm -f $(VENV)/installed-*
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --progress-bar on -r requirements-dev.txt -c constraints.txt
	@touch $@
