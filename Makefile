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

# EXPOSE is a folder of config/expose: loadbalancer, ingress or gateway; none means config/default. PROVISION is provision,
# clusterapi or clusterapi-inplace, which install the provisioner beside; none means no provisioner.
export IMG URL EXPOSE PROVISION KUBECTL VERSION

# One setting for all: what one target compiles, the next one finds in Go's cache, in a clone elsewhere too. The race detector needs cgo.
export CGO_ENABLED := $(if $(RACE),1,0)
export GOFLAGS     += -trimpath

# Tools are Go tools with versions of their own: hack/tools/<tool>.mod. Their dependencies stay out of go.mod.
tool = go tool -modfile=hack/tools/$(1).mod $(1)

# What a release consists of is built by a module of its own, whose dependencies stay out of go.mod, too.
release = cd hack/release && go run .

# Long tests: failures, restarts and upgrades of whole systems, and every field of every kind in turn. "make test" leaves them out.
long := ^TestLong_
longpackages = $$(grep -rl --include='*_test.go' '^func TestLong_' agent api cmd controllers internal test | xargs -n 1 dirname | sort -u | sed 's|^|./|')

# "make e2e" and "make test-long" write transcripts of their stories here: assets of a release.
stories := dist/stories

# What clusters with real nodes consist of.
nodeprograms := etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl

# "make lint" vets, and no test needs debugging symbols.
# e2e has claims about time and waits a third of its own: the other packages run beside it, with a lower priority, on what it leaves. They wait as
# much, so four of them run at once.
# Their linkers and API servers live for seconds: with garbage collected less often they take a sixth less of the processors, and
# some 150 MB more each, which e2e has too many programs for.
gotest = go test -vet=off -ldflags='-s -w' -timeout 30m $(if $(RACE),-race) $(TESTFLAGS)
# Those that take longest begin first.
slow = ./test/policy ./internal/server ./agent/apply ./agent/plan
mosttests = GOGC=400 nice $(gotest) -p 4 -skip '$(long)' $(slow) $$(go list ./... | grep -v /test/e2e$$) & others=$$!; \
	$(gotest) -skip '$(long)' ./test/e2e; failed=$$?; (cd test/drain && $(gotest) ./...) || failed=1; wait $$others && exit $$failed

.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/manager, bin/drover-provisioner, bin/drover-agent, bin/drover-host-agent and bin/kubectl-drover, which is also what completes its arguments.
	go build -ldflags "$(LDFLAGS)" -o bin/manager .
	go build -ldflags "$(LDFLAGS)" -o bin/drover-agent ./agent
	go build -ldflags "$(LDFLAGS)" -o bin/ ./cmd/drover-provisioner ./cmd/drover-host-agent ./cmd/kubectl-drover
	ln -sf kubectl-drover bin/kubectl_complete-drover

.PHONY: test
test: ## Run all tests but the long ones; the first time, build a Kubernetes control plane for them (minutes). RACE=1 for the race detector.
	go run ./hack/labctl build
	$(if $(filter ./...,$(PKGS)),$(mosttests),$(gotest) $(PKGS))

.PHONY: test-long
test-long: ## Run the long tests: whole systems that fail, restart and are upgraded. CI runs them after "make test".
	go run ./hack/labctl build
	-go run ./hack/labctl gitops # tests without what it builds skip
	DROVER_GITOPS_TRANSCRIPTS=$(CURDIR)/$(stories) $(gotest) -run '$(long)' $(longpackages)

.PHONY: test-release
test-release: ## Test what a release consists of: images, installer, chart, plugin; the first time, compile Helm (minutes).
	cd hack/release && $(gotest) ./...

.PHONY: test-helm
test-helm: ## Install, upgrade and remove the chart with the command helm; the first time, compile it (minutes).
	cd hack/release && DROVER_TEST_HELM=1 $(gotest) -run '^TestHelm' -v .

.PHONY: test-versions
test-versions: ## Test hub and members on the oldest Kubernetes beside the newest; the first time, build the oldest control plane (minutes).
	assets=$$(go run ./hack/labctl path --oldest) && KUBEBUILDER_ASSETS=$$assets $(gotest) ./api/v1 ./test/policy ./internal/registration ./internal/tenancy
	DROVER_TEST_VERSIONS=1 $(gotest) ./test/versions -v

.PHONY: test-chaos
test-chaos: ## Break managers, agents and links at random, and check that all heals: make test-chaos SEED=7 DURATION=10m
	go run ./test/chaos $(if $(SEED),-seed $(SEED)) -duration $(or $(DURATION),3m)

.PHONY: test-nodes test-demo
test-nodes: ## Bring up clusters with real nodes (kubelets, containers), cut and kill them, and check that nothing is left. Takes root on Linux.
	go run ./hack/labctl build $(nodeprograms)
	DROVER_TEST_NODES=1 $(gotest) ./test/lab/nodes -v
test-demo: ## Run "make demo" with real nodes in a copy of the sources, do what it says to try, and check that nothing is left. Takes root on Linux.
	DROVER_TEST_DEMO=1 $(gotest) -count=1 -run '^TestTheDemoOnRealNodes$$' ./hack/demo -v

.PHONY: e2e e2e-clusterapi conformance
e2e: ## Live through an operator's stories on real nodes, with manager and agents as pods, and write down what was typed. Takes root on Linux.
	go run ./hack/labctl check && go run ./hack/labctl build $(nodeprograms)
	$(MAKE) images
	DROVER_E2E=1 DROVER_E2E_TRANSCRIPT=$(stories)/operator.md $(gotest) -count=1 ./test/e2e/nodes -v
	@echo "what was typed, and what it printed: $(stories)/operator.md"
e2e-clusterapi: ## Make, grow, mend and change a cluster of Hosts with Cluster API and the true kubeadm. Takes root on Linux, and haproxy.
	hack/e2e-clusterapi.sh $(nodeprograms)
conformance: ## Run Kubernetes' own end-to-end tests directly, through the hub, through a second manager and at the agent; writes docs/conformance.md. Takes root on Linux.
	go run ./hack/labctl check && go run ./hack/labctl build $(nodeprograms)
	go build -o dist/conformance ./test/conformance && dist/conformance -page docs/conformance.md $(CONFORMANCE)

.PHONY: test-rights
test-rights: ## Compare what people may do in a member with a model, after each of many random changes: make test-rights SEED=7 ROUNDS=1000
	go test ./controllers -run '^TestRights$$' -v -timeout 0 -seed $(or $(SEED),0) -rounds $(or $(ROUNDS),1000)

.PHONY: test-plans
test-plans: ## Kill managers and agents at random while plans run, and watch the nodes: make test-plans SEED=7 ROUNDS=20
	go test ./test/e2e -run '^TestLong_APlanOfAFleet$$/killed' -v -timeout 0 -seed $(or $(SEED),0) -rounds $(or $(ROUNDS),10)

.PHONY: test-rules
test-rules: ## Test the alerts; the first time, build promtool for it (minutes).
	$(call tool,promtool) check rules config/prometheus/rules.yaml
	$(call tool,promtool) test rules config/prometheus/rules_test.yaml

.PHONY: lint
lint: ## Run golangci-lint and go vet.
	$(call tool,golangci-lint) run $(PKGS)
	go vet $(PKGS)

.PHONY: generate
generate: ## Generate deep copies, CRDs, the ClusterRoles and the PrometheusRule.
	hack/generate.sh

.PHONY: verify
verify: ## Check that generated files, go.mod, config/ and the architecture are as they should be.
	hack/verify.sh

.PHONY: demo demo-down
demo: ## Bring up a hub and a member on this machine, as root on Linux with real nodes: make demo [NODES=real|simulated]
	go run ./hack/demo up $(NODES)
demo-down: ## Stop what "make demo" started and remove it.
	go run ./hack/demo down

.PHONY: bench bench-tunnel
bench: ## Measure the hub and the agent on real control planes, against the goals.
	go run ./test/bench/hub
bench-tunnel: ## Measure the tunnel beside remotedialer and a direct connection.
	cd test/bench/tunnel && go run .

.PHONY: bench-fleet bench-tenancy
bench-fleet: ## Measure one manager, then two, with many simulated members, in steps up to N (1000): make bench-fleet N=10000
	go run ./test/bench/fleet -n $(or $(N),1000)
bench-tenancy: ## Measure a binding from the hub to the member, beside a direct write into the member.
	go run ./test/bench/tenancy

.PHONY: bench-plans drill
bench-plans: ## Measure Plans: what the agent adds to a node, and what a fleet costs the hub.
	go run ./test/bench/plans
drill: ## Take a hub's etcd back to a backup with 100 simulated members, check that nothing runs that should not, and write docs/bench/restore.md.
	DROVER_DRILL_PAGE=$(CURDIR)/docs/bench/restore.md $(gotest) -count=1 -run '^TestARestoreWith100Members$$' ./test/e2e -v

.PHONY: install
install: ## Install only the CRDs into the cluster that kubectl points at.
	hack/deploy.sh install

.PHONY: uninstall
uninstall: ## Remove the CRDs. Refuses while objects would be stranded; FORCE=1 deletes them first.
	hack/deploy.sh uninstall

.PHONY: deploy
deploy: ## Install the hub: make deploy IMG=registry/drover:v1 URL=https://hub.example.com
	hack/deploy.sh deploy

.PHONY: undeploy
undeploy: ## Remove the hub, with its provisioner: PROVISION. Refuses while objects would be stranded; FORCE=1 deletes them first.
	hack/deploy.sh undeploy

.PHONY: build-installer
build-installer: ## Write all that a hub needs into dist/install.yaml: make build-installer IMG=registry/drover:v1 [URL=https://…]
	hack/deploy.sh installer

.PHONY: chart
chart: ## Write the Helm chart, made of the manifests, into dist/chart.
	$(release) chart

.PHONY: release
release: images build-installer chart ## Write all that a release has into dist/, and upload nothing: make release VERSION=v0.1.0 IMG=registry/drover:v0.1.0
	$(release) plugins
	$(release) checksums

.PHONY: images
images: ## Build OCI images for linux/amd64 and arm64 into dist/images, without a container engine.
	$(release) images

.PHONY: docker-build docker-push docker-buildx
docker-build: ## Build the image with docker: make docker-build IMG=registry/drover:v1 (CONTAINER_TOOL=podman)
	hack/docker.sh build
docker-push: ## Push the image that docker-build has built.
	hack/docker.sh push
docker-buildx: ## Build the image for PLATFORMS with docker's buildx, and push it.
	hack/docker.sh buildx
