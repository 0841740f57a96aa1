# ottla: `make demo` shows it, `make test` checks it; both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint unit interop peers bench generate lock clean help java

help: ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/ottla/records/kernel/*.p*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ottla needs Python 3.11 or newer (Debian: apt-get install python3.11 python3.11-venv); set PYTHON=..."; exit 1; }
	@echo "setting up .venv with what pyproject.toml names; the first time takes a minute or two"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,spark]'
	@touch $@

java: # says what is missing; never fails, because most of ottla needs no Java
	@command -v java >/dev/null || \
	  echo "note: no Java found; what needs Spark or Apache Kafka is left out (Debian: apt-get install openjdk-17-jdk-headless)"

demo: $(READY) java ## the main job, from nothing
	@$(BIN)/python tools/demo.py

test: lint unit ## all that needs nothing but Python

lint: $(READY) java
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

unit: $(READY)
	@$(BIN)/pytest -n 2 --dist loadgroup

interop: $(READY) java ## other people's clients and suites (Go, Maven, a JVM)
	@$(BIN)/pytest -n 2 --dist loadfile -m 'interop and not peer' tests/interop || test $$? -eq 5

peers: $(READY) java ## the tests of interop that ask Apache Kafka alone, so that what is asked of ottla is what Kafka does
	@$(BIN)/pytest -m peer tests/interop

bench: $(READY) ## side-by-side benchmarks, written to docs/BENCHMARKS.md
	@$(BIN)/python -m bench

generate: $(READY) ## message modules from Apache Kafka's definitions, pages of docs/ from the code
	@$(BIN)/python tools/generate_messages.py
	@$(BIN)/python tools/protocol_coverage.py
	@$(BIN)/python tools/generate_api_docs.py
	@$(BIN)/python tools/generate_config_docs.py
	@$(BIN)/python tools/generate_event_docs.py

lock: $(READY) ## pin the test environment anew
	@$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean: ## remove what make made
	@rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache src/ottla/records/kernel/*.so
