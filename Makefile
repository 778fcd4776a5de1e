# Set-up, service, tests: `make` alone prepares .venv and the models, every other target prepares what it needs.

# The interpreter to set up .venv with; without it, the one of .venv, else the newest suitable one on PATH.
PYTHON ?=
PORT ?= 8000
VENV := .venv
PY := $(VENV)/bin/python
# Named by content: an edit of a file installs again, a checkout that only changes its date does not.
cksum = $(shell { cat $(1); echo $(PYTHON); } | cksum | cut -d ' ' -f 1)
RUNS := requirements-setup.txt requirements-web.txt requirements.txt requirements-demo.txt constraints.txt
RUNTIME := $(VENV)/runtime-$(call cksum,$(RUNS))
TOOLS := $(VENV)/tools-$(call cksum,$(RUNS) requirements-otel.txt requirements-export.txt requirements-oidc.txt requirements-dev.txt)
PINS := $(VENV)/pins-$(call cksum,pyproject.toml $(RUNS) requirements-otel.txt requirements-export.txt requirements-oidc.txt requirements-dev.txt)

export PORT
export PYTHONUNBUFFERED := 1
# Write bytecode: otherwise each process that a test starts compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo serve test test-all test-ci check bench models tools
.DEFAULT_GOAL := setup

setup: models

# Prepares the models itself, which saves one start of Python.
demo: $(RUNTIME)
	@$(PY) manage.py demo

serve: models
	@$(PY) manage.py up

# One more process than cores: the acceptance tests, all of which run in one, often wait.
PYTEST := $(PY) -m pytest -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# A developer's look: one or two cases of each behaviour, in at most five minutes on two cores.
test: $(TOOLS) models
	$(PYTEST)

# What `make test` leaves out, and property tests with more examples.
test-all: test
	$(PYTEST) -m "(wide or long or hypothesis) and not faults" --hypothesis-profile=long
	$(PY) -m pytest -m faults

# What .ci/run runs: `make test`, all that is `wide`, and a sixteenth of the rest, which the
# commit chooses. Two processes run what waits (tests/scheduling.py), and one for each core computes.
test-ci: $(TOOLS) models
	$(PY) -m pytest -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2) -m "" --share=$(shell git rev-parse HEAD)

check: $(TOOLS) $(PINS)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) manage.py makemigrations --check --dry-run
	$(PY) -m pip check
	$(VENV)/bin/kubernetes-validate --strict --quiet deploy/kubernetes/base/[!k]*.yaml deploy/kubernetes/worker/worker.yaml

# Fails if a ratio is a tenth below the one that benchmarks/ratios.json has of this processor.
RATIOS := var/bench
bench: $(TOOLS) models
	$(PY) -m benchmarks.engine --json $(RATIOS)/engine.json
	$(PY) -m benchmarks.service --json $(RATIOS)/service.json
	$(PY) -m benchmarks.web --json $(RATIOS)/web.json
	$(PY) -m benchmarks.peers --json $(RATIOS)/peers.json
	$(PY) -m benchmarks.gate $(RATIOS)/*.json

tools: $(TOOLS)

# Not a file target: the command checks the prepared models against models.toml within half a second.
models: $(RUNTIME)
	@$(PY) manage.py prepare_model

SUITABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
CANDIDATES = $(or $(PYTHON),$(PY) python3.14 python3.13 python3.12 python3.11 python3)
define install
	@for python in $(CANDIDATES); do \
	  if "$$python" -c '$(SUITABLE)' >/dev/null 2>&1; then exec "$$python" -m installation $(VENV) $(1); fi; \
	done; \
	echo "Quire needs Python 3.11 to 3.14 with venv (Debian: python3-venv), but found none: tried $(CANDIDATES)." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1
endef

$(RUNTIME):
	@rm -f $(VENV)/runtime-*
	$(call install,requirements-demo.txt)
	@touch $@

$(TOOLS): | $(RUNTIME)
	@rm -f $(VENV)/tools-*
	$(call install,requirements-dev.txt)
	@touch $@

# Exit code 3: the package index did not answer, so the pins were not checked.
$(PINS): | $(TOOLS)
	@$(PY) -m installation.pins && touch $@ || [ $$? = 3 ]
