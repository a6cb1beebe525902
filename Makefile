# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Each target is one line or one script in hack/, so that users, CI and editors run the same commands.
SHELL   := /bin/bash -o pipefail
VERSION ?= $(shell git describe --tags --dirty 2>/dev/null || echo v0.1.0-dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
IMG     ?=
URL     ?=
KUBECTL ?= kubectl
# RACE=1 builds the tests with the race detector. TESTFLAGS are passed to "go test". PKGS selects the packages.
RACE      ?=
TESTFLAGS ?=
PKGS      ?= ./...

# EXPOSE is a folder of config/expose: loadbalancer, ingress or gateway. The default is config/default. PROVISION is
# provision, clusterapi or clusterapi-inplace, which also install the provisioner. The default is no provisioner.
# SIGN_IN=1 lets users sign in at the first URL.
export IMG URL EXPOSE PROVISION SIGN_IN KUBECTL VERSION

# The same settings for all targets, so that all clones share Go's build cache. The race detector needs cgo.
export CGO_ENABLED := $(if $(RACE),1,0)
export GOFLAGS     += -trimpath

# Tools are Go tools with their own modules, hack/tools/<tool>.mod, so that their dependencies stay out of go.mod.
tool = go tool -modfile=hack/tools/$(1).mod $(1)

# The files of a release are built by a module of its own, so that its dependencies stay out of go.mod too.
release = cd hack/release && go run .

# Long tests: failures, restarts and upgrades of whole systems, and every field of every kind. "make test" skips them.
long := ^TestLong_
longpackages = $$(grep -rl --include='*_test.go' '^func TestLong_' agent api cmd controllers internal test | xargs -n 1 dirname | sort -u | sed 's|^|./|')

# "make e2e" and "make test-long" write transcripts of their stories here. They are assets of a release.
stories := dist/stories

# The programs of clusters with real nodes.
nodeprograms := etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl

# "make lint" runs go vet, and no test needs debugging symbols.
# e2e tests timing and is idle for a third of its time, so other packages run at the same time with a lower priority:
# four at once, because they are idle about as often. Those of the folder late start when e2e has ended.
# With GOGC=400, linkers and API servers need a sixth less CPU time and 150 MB more memory each, too much for e2e.
gotest = go test -vet=off -ldflags='-s -w' -timeout 30m $(if $(RACE),-race) $(TESTFLAGS)
# The slowest packages start first, and before them two that mostly wait. "make e2e" runs test/e2e/nodes.
slow = $(addprefix ./,test/policy agent/plan cmd/kubectl-drover/agents internal/portal/subscribe internal/server agent/apply agent/deployment internal/signin)
late = controllers
mosttests = GOGC=400 nice $(gotest) -p 4 -skip '$(long)' $(slow) $$(go list ./... | grep -Ev '/test/e2e(/|$$)|/drover/$(late)(/|$$)') & others=$$!; \
	$(gotest) -skip '$(long)' ./test/e2e; failed=$$?; (cd test/drain && $(gotest) ./...) || failed=1; \
	GOGC=400 nice $(gotest) -p 2 -skip '$(long)' ./$(late)/... || failed=1; wait $$others && exit $$failed

.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/manager, bin/drover-provisioner, bin/drover-agent, bin/drover-host-agent and bin/kubectl-drover, which also completes its own arguments.
	go build -ldflags "$(LDFLAGS)" -o bin/manager .
	go build -ldflags "$(LDFLAGS)" -o bin/drover-agent ./agent
	go build -ldflags "$(LDFLAGS)" -o bin/ ./cmd/drover-provisioner ./cmd/drover-host-agent ./cmd/kubectl-drover
	ln -sf kubectl-drover bin/kubectl_complete-drover

.PHONY: test
test: ## Run all tests except the long ones. The first run builds a Kubernetes control plane for them (minutes). RACE=1 turns on the race detector.
	go run ./hack/labctl build
	$(if $(filter ./...,$(PKGS)),$(mosttests),$(gotest) $(PKGS))

.PHONY: test-long
test-long: ## Run the long tests, in which whole systems fail, restart and are upgraded. CI runs them after "make test".
	go run ./hack/labctl build
	-go run ./hack/labctl gitops # tests without what it builds skip
	DROVER_GITOPS_TRANSCRIPTS=$(CURDIR)/$(stories) $(gotest) -timeout 60m -run '$(long)' $(longpackages)

.PHONY: test-release test-trial
test-release: ## Test the files of a release: images, installer, chart, plugin, offline bundle. The first run compiles Helm, a registry and a control plane (minutes). The test without a network requires root on Linux.
	cd hack/release && $(gotest) ./...
test-trial: ## Try the offline bundle of "make release" as its first user, on real nodes without a network. Requires root on Linux.
	hack/release/trial.sh dist/drover-$(VERSION)-offline.tar

.PHONY: test-helm
test-helm: ## Install, upgrade and remove the chart with the helm command. The first run compiles it (minutes).
	cd hack/release && DROVER_TEST_HELM=1 $(gotest) -run '^TestHelm' -v .

.PHONY: test-versions
test-versions: ## Test hub and members on the oldest and the newest supported Kubernetes, and with the previous version of Drover. The first run builds the oldest control plane (minutes).
	assets=$$(go run ./hack/labctl path --oldest) && KUBEBUILDER_ASSETS=$$assets $(gotest) ./api/v1 ./test/policy ./internal/registration ./internal/tenancy ./internal/upgradecheck
	DROVER_TEST_VERSIONS=1 $(gotest) ./test/versions -v

.PHONY: test-chaos
test-chaos: ## Break managers, agents and links at random, and check that everything recovers: make test-chaos SEED=7 DURATION=10m
	go run ./test/chaos $(if $(SEED),-seed $(SEED)) -duration $(or $(DURATION),3m)

.PHONY: test-nodes test-demo
test-nodes: ## Start clusters with real nodes (kubelets, containers), disconnect and kill them, and check that nothing is left. Requires root on Linux.
	go run ./hack/labctl build $(nodeprograms)
	DROVER_TEST_NODES=1 $(gotest) ./test/lab/nodes -v
test-demo: ## Run "make demo" with simulated and real nodes in a copy of the sources, try what it suggests, and check that nothing is left. Real nodes require root on Linux.
	DROVER_TEST_DEMO=1 $(gotest) -count=1 -run '^TestTheDemo' ./hack/demo -v

.PHONY: e2e e2e-clusterapi conformance
e2e: ## Run an operator's stories on real nodes, with manager and agents as pods, and write transcripts of the commands. Requires root on Linux.
	go run ./hack/labctl check && go run ./hack/labctl build $(nodeprograms)
	$(MAKE) images
	DROVER_E2E=1 DROVER_E2E_TRANSCRIPT=$(stories)/operator.md $(gotest) -count=1 ./test/e2e/nodes -v
	@echo "commands and their output: $(stories)/operator.md"
e2e-clusterapi: ## Create, scale, repair and change a cluster of Hosts with Cluster API and the real kubeadm. Requires root on Linux, and haproxy.
	hack/e2e-clusterapi.sh $(nodeprograms)
conformance: ## Run Kubernetes' own end-to-end tests directly, through the hub, through a second manager and at the agent, and write docs/bench/conformance.md. Requires root on Linux.
	go run ./hack/labctl check && go run ./hack/labctl build $(nodeprograms)
	go build -o dist/conformance ./test/conformance && dist/conformance -page docs/bench/conformance.md $(CONFORMANCE)

.PHONY: test-rights
test-rights: ## Compare users' rights in a member with a model, after each of many random changes: make test-rights SEED=7 ROUNDS=1000
	go test ./controllers -run '^TestRights$$' -v -timeout 0 -seed $(or $(SEED),0) -rounds $(or $(ROUNDS),1000)

.PHONY: test-plans
test-plans: ## Kill managers and agents at random while plans run, and watch the nodes: make test-plans SEED=7 ROUNDS=20
	go test ./test/e2e -run '^TestLong_APlanOfAFleet$$/killed' -v -timeout 0 -seed $(or $(SEED),0) -rounds $(or $(ROUNDS),10)

.PHONY: test-rules
test-rules: ## Test the alerts. The first run builds promtool (minutes).
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
verify: ## Check that generated files, go.mod, config/ and the architecture are correct.
	hack/verify.sh

.PHONY: demo demo-down
demo: ## Start a hub and a member on this machine with users who can sign in, as root on Linux with real nodes: make demo [NODES=real|simulated]
	go run ./hack/demo up $(NODES)
demo-down: ## Stop everything that "make demo" started, and remove it.
	go run ./hack/demo down

.PHONY: bench bench-tunnel
bench: ## Measure the hub and the agent on real control planes, and compare with the goals.
	go run ./test/bench/hub
bench-tunnel: ## Measure the tunnel in comparison with remotedialer and a direct connection.
	cd test/bench/tunnel && go run .

.PHONY: bench-fleet bench-tenancy
bench-fleet: ## Measure one manager, then two, with many simulated members, in steps up to N (1000): make bench-fleet N=10000
	go run ./test/bench/fleet -n $(or $(N),1000)
bench-tenancy: ## Measure how long a binding takes from the hub to the member, in comparison with a direct write into the member.
	go run ./test/bench/tenancy

.PHONY: bench-plans drill
bench-plans: ## Measure Plans: the time that the agent adds to a node, and the cost of a fleet for the hub.
	go run ./test/bench/plans
drill: ## Restore a hub's etcd from a backup with 100 simulated members, check that nothing runs that should not, and write docs/bench/restore.md.
	DROVER_DRILL_PAGE=$(CURDIR)/docs/bench/restore.md $(gotest) -count=1 -run '^TestARestoreWith100Members$$' ./test/e2e -v

.PHONY: install uninstall
install: ## Install only the CRDs into kubectl's current cluster.
	hack/deploy.sh install
uninstall: ## Remove the CRDs. This is refused while objects would be stranded. FORCE=1 deletes them first.
	hack/deploy.sh uninstall

.PHONY: deploy undeploy
deploy: ## Install the hub: make deploy IMG=registry/drover:v1 URL=https://hub.example.com
	hack/deploy.sh deploy

undeploy: ## Remove the hub, with its provisioner: PROVISION. This is refused while objects would be stranded. FORCE=1 deletes them first.
	hack/deploy.sh undeploy

.PHONY: build-installer
build-installer: ## Write everything that a hub needs to dist/install.yaml: make build-installer IMG=registry/drover:v1 [URL=https://…]
	hack/deploy.sh installer

.PHONY: chart
chart: ## Write the Helm chart, made from the manifests, to dist/chart.
	$(release) chart

.PHONY: release
release: build-installer chart images ## Write all files of a release to dist/, without uploading anything: make release VERSION=v0.1.0 IMG=registry/drover:v0.1.0
	$(release) plugins bundle provenance checksums

.PHONY: images
images: ## Build OCI images for linux/amd64 and arm64 in dist/images, without a container engine.
	$(release) images

.PHONY: docker-build docker-push docker-buildx
docker-build: ## Build the image with docker: make docker-build IMG=registry/drover:v1 (CONTAINER_TOOL=podman)
	hack/docker.sh build
docker-push: ## Push the image that docker-build has built.
	hack/docker.sh push
docker-buildx: ## Build the image for PLATFORMS with docker's buildx, and push it.
	hack/docker.sh buildx
