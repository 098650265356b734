# The commands of a developer. Each installs what it needs and is missing; `make help` lists them.
CARGO ?= cargo
CONFIG ?= config/quickstart.yaml

.PHONY: help run demo test lint bench fuzz fmt tools test-tools lint-tools bench-tools

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: ## run the gateway with CONFIG (default: config/quickstart.yaml)
	$(CARGO) run --release -- run --config $(CONFIG)

demo: ## a throttled pretend vendor and a gateway before it
	$(CARGO) run --release -- demo

test: test-tools ## every test, with a real redis-server and real clients
	$(CARGO) test --lib --bins --tests --examples
	$(CARGO) test --doc

lint: lint-tools ## format, clippy, licences and advisories
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	$(CARGO) clippy --all-targets -- -D warnings
	@deploy/tools/deny.sh

bench: bench-tools ## speed and cost of a request; writes nothing
	@benches/run.sh

fuzz: ## look for inputs that break promises; RUNS a target (default: 20 seconds), TARGETS (default: all)
	@deploy/tools/fuzz.sh $(RUNS) $(TARGETS)

fmt: ## format everything
	$(CARGO) fmt
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

test-tools:
	@deploy/tools/install.sh redis-server:redis-server faketime:faketime promtool:prometheus curl:curl h2load:nghttp2-client
	@deploy/tools/clients.sh

lint-tools:
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny@0.20.2

bench-tools:
	@deploy/tools/install.sh redis-server:redis-server wrk:wrk valgrind:valgrind nginx:nginx-light
