# Every target does its own set-up: see scripts/bootstrap.
BIN := .venv/bin
JOBS ?= $(shell nproc)
# Where kube-apiserver and etcd are, if anywhere; tests against the real ones need them.
KUBEBUILDER_ASSETS ?= $(shell tests/envtest/binaries/build --find)
export KUBEBUILDER_ASSETS

.PHONY: help setup demo test fuzz lint wheel-test bench docs clean

help:
	@echo "make demo        a NetworkPolicy at work in a lab cluster of network namespaces on this machine"
	@echo "make test        all tests: unit, property, contract, conformance, end to end with real packets"
	@echo "make fuzz        random clusters against what policies mean: in theory, and by real packets"
	@echo "make lint        ruff, mypy --strict, import-linter"
	@echo "make wheel-test  the tests once more, against the built and installed wheel"
	@echo "make bench       the benchmarks; takes more than half an hour"
	@echo "make docs        the documents as a site, in build/site"
	@echo "make clean       remove .venv, caches and whatever a crashed lab left"

setup:
	@scripts/bootstrap

demo: setup
	@$(BIN)/npc lab demo

test: setup
	@[ -n "$(KUBEBUILDER_ASSETS)" ] || echo "==> no kube-apiserver and etcd: tests against them are skipped" \
		"(KUBEBUILDER_ASSETS names their folder; tests/envtest/binaries/build makes one)"
	@[ -n "$$(tests/telemetry/otelcol/build --find)" ] || echo "==> no OpenTelemetry Collector: tests against it" \
		"are skipped (tests/telemetry/otelcol/build makes one)"
	@[ -n "$$(tests/deploy/binaries/build --find)" ] || echo "==> no helm: tests of the chart are skipped" \
		"(tests/deploy/binaries/build makes one)"
	$(BIN)/pytest -n $(JOBS) --dist worksteal

fuzz: setup
	$(BIN)/pytest -n $(JOBS) --hypothesis-profile=fuzz --timeout 0 -rP tests/property/npc tests/e2e/fuzz

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docs/reconciler/examples/*.py
	$(BIN)/lint-imports

wheel-test: setup
	scripts/wheel-test

bench: setup
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit; done

# Not --quiet: that would hide from mkdocs the warnings that strict fails on.
docs: setup
	@$(BIN)/python -m pip install --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:
	@[ ! -x $(BIN)/npc ] || $(BIN)/npc lab clean
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
