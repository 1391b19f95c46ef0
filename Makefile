# Everything a developer does. `make` lists it; CI runs `make test` and nothing else.

PYTHON ?= python3
BIN := .venv/bin
export STEPWELL_PYTHON := $(CURDIR)/$(BIN)/python
NODE_MODULES := clients/typescript/node_modules/.package-lock.json
PEERS_MODULES := requirements/peers.npm/node_modules/.package-lock.json
NO_MUTANTS := --ignore tests/mutants  # source lines to plant bugs in: `make mutants` looks for them
STUBS := clients/python/stepwell/v1 clients/go/stepwellv1 clients/typescript/src/gen

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

# ---- set up

.PHONY: setup
setup: $(BIN)/.installed ## Make .venv and install what the lock says

$(BIN)/.installed: requirements/dev.lock clients/python/pyproject.toml server/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Stepwell needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "installing into .venv, which takes about a minute the first time"
	@$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --config-settings editable_mode=compat -e clients/python -e server  # so that mypy and editors find the types
	@touch $@

$(NODE_MODULES): clients/typescript/package-lock.json
	cd clients/typescript && npm ci --silent

.PHONY: lock
lock: setup ## Resolve requirements/dev.in anew into dev.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock" \
	  --no-emit-package stepwell --no-emit-package stepwell-server requirements/dev.in -o requirements/dev.lock

# ---- run

.PHONY: run
run: setup ## Start a server on 127.0.0.1:7350 with an SQLite file (ARGS="--flag ...")
	@echo "then, in another terminal:  $(BIN)/stepwell info    or    grpcurl -plaintext 127.0.0.1:7350 list"
	@exec $(BIN)/stepwell server $(ARGS)

# ---- test

.PHONY: test
test: setup ## Everything that CI runs, and a table of its tiers
	@$(BIN)/python scripts/tiers lint types verify-proto verify-gen \
	  test-python test-serializable test-older-postgresql test-typescript test-go test-java

.PHONY: quick
quick: setup ## The loop while you work: lint, types and the fast tests on SQLite
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 3 --sqlite-only -m "not slow" --ignore tests/e2e $(NO_MUTANTS)

.PHONY: test-python
test-python: setup ## The server and the Python SDK, on SQLite and PostgreSQL
	$(BIN)/pytest -q -n 3 --retry-failed $(NO_MUTANTS)

.PHONY: test-serializable
test-serializable: setup ## The storage and engine suites on databases whose default is SERIALIZABLE
	STEPWELL_TEST_ISOLATION=serializable $(BIN)/pytest -q -n 3 --retry-failed --postgresql-only tests/storage tests/engine -m "not slow"

.PHONY: test-older-postgresql
test-older-postgresql: setup ## The storage suite with its plans on a PostgreSQL of 15 to 17, if one is installed
	scripts/with-postgresql "$(BIN)/pytest -q -n 2 --retry-failed --postgresql-only tests/storage"

.PHONY: mutants
mutants: setup ## Plant bugs one by one and see each caught by its test
	$(BIN)/pytest -q tests/mutants
	$(BIN)/python tests/mutants/run.py

.PHONY: mutants-chaos
mutants-chaos: setup ## Plant bugs one by one and count the chaos runs until each is caught (ARGS="--help")
	$(BIN)/python tests/mutants/chaos.py $(ARGS)

.PHONY: chaos
chaos: setup ## Break everything and check every promise (SCENARIO=name SEED=n SHORT=1; ARGS="--list" shows them)
	$(BIN)/python -m tests.chaos $(or $(SCENARIO),all) $(if $(SEED),--seed $(SEED)) $(if $(SHORT),--short) $(ARGS)

.PHONY: test-typescript
test-typescript: setup ## The TypeScript stubs against a real server
	scripts/with-toolchain npm "$(MAKE) $(NODE_MODULES) && cd clients/typescript && npm test --silent"

.PHONY: test-go
test-go: setup ## The Go stubs against a real server
	scripts/with-toolchain go "cd clients/go && go vet ./... && go test -count=1 ./..."

.PHONY: test-java
test-java: setup ## The Java stubs against a real server
	scripts/with-toolchain mvn "cd clients/java && mvn --batch-mode --no-transfer-progress verify"

.PHONY: bench
bench: setup ## Measure this machine: tasks per second, rest, and what idle streams cost
	$(BIN)/python -m bench.tasks
	$(BIN)/python -m bench.idle
	$(BIN)/python -m bench.idle_streams

.PHONY: bench-workflows
bench-workflows: setup ## Workflows per second, latency and processor time, on both databases (ARGS="--help")
	$(BIN)/python -m bench.workflows $(ARGS)

.PHONY: bench-anatomy
bench-anatomy: setup ## What one workflow is made of: statements, messages, and its timeline (ARGS="--help")
	$(BIN)/python -m bench.anatomy $(ARGS)

.PHONY: bench-peers
bench-peers: setup peers ## The same interleaved with the peers: the ratios to quote (ARGS="--help")
	$(BIN)/python -m bench.workflows --peers --json bench/peers.json $(ARGS)

.PHONY: bench-publish
bench-publish: setup ## Write the last run of bench-peers into docs/performance.md
	$(BIN)/python -m bench.publish bench/peers.json

.PHONY: peers
peers: .venv-peers/.installed $(PEERS_MODULES)

.venv-peers/.installed: requirements/peers.lock
	@$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/peers.lock
	@touch $@

$(PEERS_MODULES): requirements/peers.npm/package-lock.json
	cd requirements/peers.npm && npm ci --silent

.PHONY: lock-peers
lock-peers: setup ## Resolve requirements/peers.in and peers.npm/package.json anew into their locks
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock-peers" \
	  requirements/peers.in -o requirements/peers.lock
	cd requirements/peers.npm && npm update --silent --package-lock-only

# ---- check and generate

.PHONY: fmt
fmt: setup ## Format Python and proto files
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .
	$(BIN)/buf format -w

.PHONY: lint
lint: setup ## Style and floors (fix: make fmt)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet . || { echo "fix: make fmt"; exit 1; }
	$(BIN)/lint-imports --quiet 2>/dev/null || $(BIN)/lint-imports

.PHONY: types
types: setup ## Types, strictly
	$(BIN)/mypy

.PHONY: gen
gen: setup $(NODE_MODULES) ## Regenerate every client's stubs from proto/
	rm -rf $(STUBS)
	$(BIN)/buf generate 2>/dev/null || $(BIN)/buf generate

.PHONY: verify-gen
verify-gen: setup ## Fail when the committed stubs are stale (fix: make gen)
	scripts/with-toolchain npm "scripts/with-toolchain go '$(MAKE) gen && scripts/unchanged $(STUBS)'"

.PHONY: verify-proto
verify-proto: setup ## Lint the contract; from the first release tag on, refuse breaking changes
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code >/dev/null || { echo "fix: make fmt"; exit 1; }
	@tag=$$(git describe --tags --abbrev=0 2>/dev/null); \
	  if [ -n "$$tag" ]; then $(BIN)/buf breaking --against ".git#tag=$$tag"; else echo "no release yet: nothing to break"; fi

.PHONY: verify-migrations
verify-migrations: setup ## Compare the migrated schema with schema.py, on both databases
	$(BIN)/pytest -q tests/storage/test_migrate.py

.PHONY: clean
clean: ## Remove everything that make installed or built; databases stay
	rm -rf .venv clients/typescript/node_modules clients/typescript/dist clients/java/target
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
