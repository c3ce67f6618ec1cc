# Every task of this repository. CI (.ci/run) calls the same targets.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
TIME ?= 10m
# The test rig compiles an NVML library, makes certificates and reads /proc; rules, dashboards and the status
# page are tried on a real Prometheus, a real Alertmanager and a real browser, the Dockerfile in a bare tree.
DEBIAN := chromium gcc libc6-dev libcjson-dev mmdebstrap openssl procps prometheus prometheus-alertmanager
PIP := $(BIN)/python -m pip install --quiet
# Where packages come from is the machine's business, and no part of a public log.
WITHOUT_HOSTS := sed -E "s,https?://[^ ']+,URL,g; s/host='[^']*'/host=.../g"
LOCK := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet
PROTO := exporter/sources/podresources/podresources.proto

.DEFAULT_GOAL := help
.PHONY: help install demo run test test-needs check lint fmt generate docs sync rules dashboards screenshots golden lock \
	rig faults simulate deploy-check cluster-needs cluster-build cluster-test recordings bench clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

install: $(VENV)/.installed ## Make .venv with the locked dependencies and this package

$(VENV)/.installed: requirements-dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes --requirement requirements-dev.txt 2>&1 | $(WITHOUT_HOSTS)
	@$(PIP) --no-deps --no-build-isolation --editable . 2>&1 | $(WITHOUT_HOSTS)
	@touch $@

demo: install ## Serve a recorded scenario on port 9836; ARGS adds flags
	$(BIN)/kubegpu-exporter demo $(ARGS)

run: install ## Serve the metrics of this machine; ARGS adds flags
	$(BIN)/kubegpu-exporter run $(ARGS)

test-needs:
	@missing=$$(for package in $(DEBIAN); do \
		dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || echo $$package; done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "Not installed, and tests that need it are skipped:" $$missing >&2; exit 0; fi; \
	log=$$(mktemp); \
	if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $$missing; } \
		>"$$log" 2>&1; then echo "These Debian packages could not be installed:" $$missing "(see $$log)" >&2; exit 1; fi

test: install test-needs ## Run the tests; ARGS goes to pytest
	$(BIN)/python -m pytest $(ARGS)

check: install ## Every check that changes nothing: lint, format, types, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

lint: install ## Lint only
	$(BIN)/ruff check

fmt: install ## Format, and correct what can be corrected
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

generate: install ## Generate the kubelet API's messages from their .proto
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. $(PROTO)

docs: install ## Write the references of metrics, settings and findings
	@mkdir -p docs
	$(BIN)/python -m exporter.reference metrics > docs/metrics.md
	$(BIN)/python -m exporter.reference settings > docs/settings.md
	$(BIN)/python -m exporter.reference findings > docs/findings.md
	$(BIN)/python -m tests.cases_table
	$(BIN)/python -m deploy.sync

sync: install ## Copy rules, dashboards and settings to where they are deployed from
	$(BIN)/python -m deploy.sync

rules: install ## Write the alert and recording rules from alerts/config.yaml
	$(BIN)/python -m alerts.src

dashboards: install ## Write the dashboards' JSON from dashboards/src
	$(BIN)/python -m dashboards.src

screenshots: install test-needs ## Write the pictures of docs/images that README shows
	$(BIN)/python -m tests.browser.pictures

golden: install ## Show where the expositions of tests/scenarios differ from what they expect
	$(BIN)/python -m pytest tests/scenarios -vv $(ARGS)

lock: install ## Pin every dependency by hash from the bounds in pyproject.toml
	$(LOCK) --output-file requirements.txt
	$(LOCK) --group dev --constraint requirements.txt --output-file requirements-dev.txt
	@! grep -nE '://|^-' requirements.txt requirements-dev.txt

rig: install test-needs ## Hold a busy node without a GPU, and print the command that watches it; needs root
	$(BIN)/python -m tests.rig

faults: install test-needs ## Break each source in turn, print what is promised and seen, and write docs/reliability.md
	$(BIN)/python -m tests.faults $(ARGS)

simulate: install ## Compare findings with the truth of simulated nodes over fresh seeds, for TIME
	$(BIN)/python -m tests.simulation --for $(TIME) $(ARGS)

deploy-check: install test-needs ## Render, lint and validate all that is deployed
	$(BIN)/python -m pytest tests/deploy tests/deploy/check_everything.py $(ARGS)

CLUSTER := containerd containernetworking-plugins etcd-server iproute2 runc
cluster-needs: DEBIAN += $(CLUSTER)
cluster-needs: test-needs

cluster-build: install cluster-needs ## Build the kubelet and the API server that the cluster's tests run: minutes, once
	$(BIN)/python -m tests.cluster.build

cluster-test: cluster-build ## Run the agent as a pod on a real kubelet; needs root and the machine for itself
	$(BIN)/python -m pytest -m cluster tests/cluster $(ARGS)

recordings: cluster-build ## Record the stories of tests/recordings/cluster anew
	$(BIN)/python -m tests.cluster.record $(ARGS)

bench: DEBIAN += psmisc
bench: install test-needs ## Measure against the budgets, beside peers, and write docs/benchmarks.md; needs root
	$(BIN)/python -m tests.bench $(ARGS)

clean: ## Remove what the other targets made, .venv too
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
