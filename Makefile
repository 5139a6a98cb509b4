# Commands for developers. `make help` lists them. CI runs `.ci/run`, which runs `make test`.
#
# `demo`, `package`, `chaos`, `paper` and `bench` pass ARGS="..." to their programs.
# CARGO_TARGET_DIR sets the target folder.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test package check-package chaos paper check fmt lint doc bench sqlx-prepare sqlx-check clean

ARGS ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)
# cargo may be installed but not in PATH, for example in a shell opened before rustup ran.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
# .sqlx is committed, so that a build needs no database.
OFFLINE := SQLX_OFFLINE=true
# Time limit of the tests, including the build.
TEST_LIMIT := 85m

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## Print and install missing Debian packages
	@ops/setup.sh

demo: ## Crawl 203 sites with 30 agents in an emulated WAN; ARGS="--matrix FILE" for measured round trips, --keep to look at the dashboard
	@ops/setup.sh --for demo
	@# This build is faster than those of `make bench` and `make package`, because it contains no
	@# experiments and is only partly optimised.
	@echo "building (some minutes the first time)"; \
	$(OFFLINE) cargo build --profile quick --workspace --no-default-features; \
	built=$$SECONDS; \
	$(TARGET)/quick/lab demo $(ARGS); \
	echo "built in $$((built / 60)) min $$((built % 60)) s, ran in $$(((SECONDS - built) / 60)) min $$(((SECONDS - built) % 60)) s"

test: setup ## Build and run every test, on a private Postgres
	@# At a terminal, --foreground lets Ctrl-C reach the tests. Without --foreground, the time
	@# limit ends all processes of the tests.
	@foreground=; if [ -t 0 ]; then foreground=--foreground; fi; \
	timeout $$foreground --kill-after=60 $(TEST_LIMIT) ops/test.sh

package: ## Build static binaries as .tar.gz and .deb, for amd64 and arm64, into target/package; ARGS="--arch amd64" for one architecture
	ops/package.sh $(ARGS)

check-package: ## Install the packages in Debian 11 and 12, crawl with them, and remove them; needs root and make package, takes three minutes
	ops/check-package.sh

# The recovery from each kind of kill is timed in a separate run, which has no other faults. In this
# run, a crawl takes ten seconds, which keeps every slot busy until the last fault.
chaos: setup ## Inject 1,000 faults while 10,000 sites are crawled, with three seeds; if run as root, with real packets
	$(OFFLINE) cargo build --release --workspace
	old=$$(ops/chaos/old-agent.sh) && old="--old-agent $$old" || old=; \
	for seed in 1 2 3; do $(TARGET)/release/lab chaos --seed $$seed $$old $(ARGS) || exit 1; done; \
	for kill in agent_kill scheduler_kill; do \
		$(TARGET)/release/lab chaos --real-times --sites 1200 --faults 20 --interval 10s --request-interval 2s --only $$kill || exit 1; \
	done

check: fmt lint doc ## All checks except tests: format, lint, documentation

fmt:
	cargo fmt --all --check

lint: ## Run clippy, and check the core's purity, circles of imports, the style and the pages
	$(OFFLINE) cargo clippy --workspace --all-targets -- -D warnings
	ops/lint/core.sh --self-test
	ops/lint/core.sh
	ops/lint/circles.py --self-test
	ops/lint/circles.py
	ops/lint/style.sh --self-test
	ops/lint/style.sh
	ops/lint/docs.sh --self-test
	ops/lint/docs.sh

doc:
	$(OFFLINE) RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

paper: setup ## Repeat the paper's experiments, and print how long that takes; ARGS="--quick" for one seed and the base cells of its layout
	$(OFFLINE) cargo build --release --workspace
	$(TARGET)/release/lab paper $(ARGS)

bench: ## Measure every figure with a target, and print both; ARGS="--only NAME" for one section
	@# Benchmarks use the build profile of deployments (docs/operate/install.md).
	$(OFFLINE) cargo build --profile dist --workspace
	$(TARGET)/dist/lab demo --strict
	$(TARGET)/dist/lab bench $(ARGS)

sqlx-prepare: setup ## Write .sqlx from the migrations and the queries
	ops/sqlx-prepare.sh

sqlx-check: setup ## Fail if .sqlx does not match the migrations and the queries
	ops/sqlx-prepare.sh --check

clean: ## Remove all build results
	cargo clean
