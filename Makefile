# The commands of a developer. Each installs the missing programs that it needs; `make help` lists them.
CARGO ?= cargo
CONFIG ?= config/quickstart.yaml

.PHONY: help run demo test lint docs package bench micro instructions soak failures fuzz fmt test-tools lint-tools docs-tools bench-tools fuzz-tools

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: ## run the gateway with CONFIG (default: config/quickstart.yaml)
	$(CARGO) run --release -- run --config $(CONFIG)

demo: ## a throttled pretend vendor and a gateway before it
	$(CARGO) run --release -- demo

# One commit has one result: the cases of properties follow from this number. `make test PROPTEST_RNG_SEED=7` tries others.
test: export PROPTEST_RNG_SEED ?= 1
# Tests spend three quarters of their time in waits, so there are twice as many of them at a time as there are cores.
test: export RUST_TEST_THREADS ?= $(shell expr $$(nproc) \* 2)
test: test-tools ## every test, with a real redis-server and real clients
	$(CARGO) test --workspace --lib --bins --tests --examples
	$(CARGO) test --workspace --doc
	$(CARGO) test -p paceway-limit --all-features --doc middleware
	$(CARGO) package --workspace --allow-dirty --no-verify --quiet

lint: lint-tools ## format, sentences, clippy, oldest Rust, licences and advisories
	@deploy/tools/prose
	luac5.1 -p $$(git ls-files 'crates/*.lua')
	luacheck --quiet $$(git ls-files 'crates/*.lua')
	$(CARGO) fmt --all --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	$(CARGO) fmt --check --manifest-path benches/cost/Cargo.toml
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p paceway-limit --no-default-features -- -D warnings
	$(CARGO) clippy -p paceway-limit -- -D warnings
	$(CARGO) clippy -p paceway-limit --all-features --all-targets -- -D warnings
	$(CARGO) clippy --all-targets --locked --manifest-path benches/cost/Cargo.toml --target-dir target/cost -- -D warnings
	@deploy/tools/msrv.sh
	@deploy/tools/deny.sh

docs: docs-tools ## the documentation site in target/book; fails on links that lead nowhere, of all pages of the repository
	@deploy/tools/links.py
	mdbook build docs
	@deploy/tools/links.py --site target/book

package: ## static binary, .deb, image, Helm chart and list of components, in target/package; PARTS="deb chart" only these
	@deploy/package/all.sh

bench: bench-tools ## the cost of a request, compared with nginx and haproxy; ROUNDS, DURATION, ONLY="cpu redis" set what and how long
	@benches/run.sh bench

micro: ## the cost of a decision and of finding a route (criterion)
	$(CARGO) bench --profile profiling --bench decide --bench route -- --noplot \
	  --warm-up-time 0.5 --measurement-time 2 --sample-size 20

instructions: instructions-tools ## instructions per request against benches/instructions.txt; RECORD=1 records them
	@benches/run.sh gate $(if $(RECORD),record)

soak: ## mixed traffic of good and bad clients for SECONDS (default: 600); fails when memory, files or tasks grow
	$(CARGO) bench --bench soak -- $(SECONDS)

failures: test-tools ## faults of the store under each policy; writes the table of docs/failures.md
	@deploy/tools/failures.sh

fuzz: fuzz-tools ## look for inputs that break promises; RUNS a target (default: 20 seconds), TARGETS (default: all)
	@deploy/tools/fuzz.sh $(RUNS) $(TARGETS)

fmt: ## format everything
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml
	$(CARGO) fmt --manifest-path benches/cost/Cargo.toml

test-tools:
	@deploy/tools/install.sh redis-server:redis-server faketime:faketime promtool:prometheus \
	  curl:curl h2load:nghttp2-client python3:python3 nginx:nginx-light caddy:caddy \
	  pg_ctlcluster:postgresql setpriv:util-linux mariadbd:mariadb-server chromium:chromium \
	  chromedriver:chromium-driver haproxy:haproxy
	@deploy/tools/clients.sh

fuzz-tools:
	@deploy/tools/install.sh c++:g++

# Not optimized: it builds in a minute on two cores, and checks in a few seconds.
lint-tools:
	@deploy/tools/install.sh luac5.1:lua5.1 luacheck:lua-check
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked --debug cargo-deny@0.20.2

# Not optimized, and without the parts that serve and watch: it builds in 70 s on two cores, and the site in 3 s.
docs-tools:
	@deploy/tools/install.sh python3:python3
	@mdbook --version 2>/dev/null | grep -qx 'mdbook v0.5.4' || \
	  $(CARGO) install --locked --debug --no-default-features --features search mdbook@0.5.4

bench-tools: instructions-tools
	@deploy/tools/install.sh redis-server:redis-server wrk:wrk h2load:nghttp2-client openssl:openssl nginx:nginx-light \
	  haproxy:haproxy /usr/lib/nginx/modules/ngx_http_lua_module.so:libnginx-mod-http-lua

instructions-tools:
	@deploy/tools/install.sh valgrind:valgrind
