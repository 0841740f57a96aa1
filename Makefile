# `make demo` shows ottla, `make test` checks it; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint unit interop peers bench generate lock clean help java

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/ottla/*/kernel/*.p*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ottla needs Python 3.11 or newer (Debian: apt-get install python3.11 python3.11-venv); set PYTHON=..."; exit 1; }
	@echo "setting up .venv with the dependencies of pyproject.toml; the first time takes a minute or two"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,spark]'
	@touch $@

java: # prints a note if the JDK is missing; never fails. Spark needs none: pip installs a Java for it
	@command -v javac >/dev/null || \
	  echo "note: no JDK found; tests that run Apache Kafka are skipped (Debian: apt-get install openjdk-17-jdk-headless)"

demo: $(READY) ## run a broker, transactions and a Spark pipeline, and check that each order counts once
	@$(BIN)/python tools/demo.py

test: lint unit ## run linters, type checks and tests

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

unit: $(READY)
	@$(BIN)/pytest -n 2 --dist loadgroup

interop: $(READY) java ## run other clients, their test suites and Apache Kafka against ottla (JVM, Maven, Go)
	@$(BIN)/pytest -n 2 --dist loadfile -m 'interop and not peer' tests/interop || test $$? -eq 5

peers: $(READY) java ## run the tests against Apache Kafka alone, to check the facts that other tests rely on
	@$(BIN)/pytest -m peer tests/interop

bench: $(READY) ## run the benchmarks side by side with peers and write docs/BENCHMARKS.md
	@$(BIN)/python -m bench

generate: $(READY) ## generate message modules from Apache Kafka's definitions, and pages of docs/ from the code
	@$(BIN)/python tools/generate_messages.py
	@$(BIN)/python tools/protocol_coverage.py
	@$(BIN)/python tools/generate_api_docs.py
	@$(BIN)/python tools/generate_config_docs.py
	@$(BIN)/python tools/generate_event_docs.py
	@$(BIN)/python tools/generate_spark_options.py

lock: $(READY) ## pin the installed versions of the test environment
	@$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean: ## remove the virtual environment, caches and build output
	@rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache src/ottla/*/kernel/*.so
