# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Each target is one line or one script in hack/, so that a person, CI and an editor run the same thing.

SHELL   := /bin/bash -o pipefail
VERSION ?= $(shell git describe --tags --dirty 2>/dev/null || echo v0.1.0-dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
IMG     ?=
URL     ?=
KUBECTL ?= kubectl
# RACE=1 builds the tests with the race detector. TESTFLAGS go to "go test", PKGS says of which packages.
RACE      ?=
TESTFLAGS ?=
PKGS      ?= ./...

export IMG URL KUBECTL VERSION

# One setting for all: what one target compiles, the next one finds in Go's cache, in a clone elsewhere too. The race detector needs cgo.
export CGO_ENABLED := $(if $(RACE),1,0)
export GOFLAGS     += -trimpath

# Tools are Go tools with versions of their own: hack/tools/<tool>.mod. Their dependencies stay out of go.mod.
tool = go tool -modfile=hack/tools/$(1).mod $(1)

# "make lint" vets, and no test needs debugging symbols. e2e has claims about time, so nothing runs beside it.
# The other packages' linkers and API servers live for seconds: with garbage collected less often they take a sixth less of the processors, and
# some 150 MB more each, which e2e has too many programs for.
gotest = go test -vet=off -ldflags='-s -w' $(if $(RACE),-race) $(TESTFLAGS)

.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/manager, bin/drover-agent and bin/kubectl-drover, which is also what completes its arguments.
	go build -ldflags "$(LDFLAGS)" -o bin/manager .
	go build -ldflags "$(LDFLAGS)" -o bin/drover-agent ./agent
	go build -ldflags "$(LDFLAGS)" -o bin/kubectl-drover ./cmd/kubectl-drover
	ln -sf kubectl-drover bin/kubectl_complete-drover

.PHONY: test
test: ## Run all tests; the first time, build a Kubernetes control plane for them (minutes). RACE=1 for the race detector.
	go run ./hack/labctl build
	GOGC=400 $(gotest) $(if $(filter ./...,$(PKGS)),$$(go list ./... | grep -v /test/e2e$$),$(PKGS))
	$(if $(filter ./...,$(PKGS)),$(gotest) -timeout 30m ./test/e2e)
	$(if $(filter ./...,$(PKGS)),cd test/drain && $(gotest) ./...)

.PHONY: test-chaos
test-chaos: ## Break managers, agents and links at random, and check that all heals: make test-chaos SEED=7 DURATION=10m
	go run ./test/chaos $(if $(SEED),-seed $(SEED)) -duration $(or $(DURATION),3m)

.PHONY: test-rights
test-rights: ## Compare what people may do in a member with a model, after each of many random changes: make test-rights SEED=7 ROUNDS=1000
	go test ./controllers -run '^TestRights$$' -v -timeout 0 -seed $(or $(SEED),0) -rounds $(or $(ROUNDS),1000)

.PHONY: test-plans
test-plans: ## Kill managers and agents at random while plans run, and watch the nodes: make test-plans SEED=7 ROUNDS=20
	go test ./test/e2e -run '^TestAPlanOfAFleet$$/killed' -v -timeout 0 -seed $(or $(SEED),0) -rounds $(or $(ROUNDS),10)

.PHONY: test-rules
test-rules: ## Test the alerts; the first time, build promtool for it (minutes).
	$(call tool,promtool) check rules config/prometheus/rules.yaml
	$(call tool,promtool) test rules config/prometheus/rules_test.yaml

.PHONY: lint
lint: ## Run golangci-lint and go vet.
	$(call tool,golangci-lint) run $(PKGS)
	go vet $(PKGS)

.PHONY: generate
generate: ## Generate deep copies, CRDs, the manager's ClusterRole and the PrometheusRule.
	hack/generate.sh

.PHONY: verify
verify: ## Check that generated files, go.mod, config/ and the architecture are as they should be.
	hack/verify.sh

.PHONY: demo
demo: ## Bring up a hub and a member on this machine, with the member imported.
	go run ./hack/demo up

.PHONY: demo-down
demo-down: ## Stop what "make demo" started and remove it.
	go run ./hack/demo down

.PHONY: bench
bench: ## Measure the hub and the agent on real control planes, against the goals.
	go run ./test/bench/hub

.PHONY: bench-tunnel
bench-tunnel: ## Measure the tunnel beside remotedialer and a direct connection.
	cd test/bench/tunnel && go run .

.PHONY: bench-fleet
bench-fleet: ## Measure one manager, then two, with many simulated members, in steps up to N (1000): make bench-fleet N=10000
	go run ./test/bench/fleet -n $(or $(N),1000)

.PHONY: bench-tenancy
bench-tenancy: ## Measure a binding from the hub to the member, beside a direct write into the member.
	go run ./test/bench/tenancy

.PHONY: bench-plans
bench-plans: ## Measure Plans: what the agent adds to a node, and what a fleet costs the hub.
	go run ./test/bench/plans

.PHONY: install
install: ## Install only the CRDs into the cluster that kubectl points at.
	hack/deploy.sh install

.PHONY: uninstall
uninstall: ## Remove the CRDs. Refuses while there are Clusters; FORCE=1 deletes those first.
	hack/deploy.sh uninstall

.PHONY: deploy
deploy: ## Install the hub: make deploy IMG=registry/drover:v1 URL=https://hub.example.com
	hack/deploy.sh deploy

.PHONY: undeploy
undeploy: ## Remove the hub. Refuses while there are Clusters; FORCE=1 deletes those first.
	hack/deploy.sh undeploy

.PHONY: docker-build
docker-build: ## Build the image, with both programs: make docker-build IMG=registry/drover:v1
	hack/docker-build.sh
