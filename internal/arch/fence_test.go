// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// allRules is the whole import table: the sides of the system, and then what each package by itself must not know.
func allRules() []rule { return slices.Concat(rules(), packageRules(), agentRules(), programRules()) }

// packageRules are about packages of the hub that rules does not name.
func packageRules() []rule {
	requests := []string{"./internal/proxy", "./internal/identity", "./internal/peer", "./internal/server",
		"./internal/signin", "./internal/portal"}
	connections := []string{"./internal/members", "./internal/peer", "./internal/tunnel", "./internal/server",
		"./internal/delivery"}
	deciders := []string{"./internal/access", "./internal/tenancy", "./internal/rollout"}
	return []rule{
		{
			from: "internal/arch", only: []string{"std"},
			why: "arch reads the tree as text, so that it judges code that does not build and adds nothing to go.mod",
		},
		{
			from: "internal/audit", ours: []string{"./internal/request", "./internal/untrusted"},
			why: "audit writes what the port tells it, and looks nothing up: a log must not fail with what it logs",
		},
		{
			from: "internal/clusterprofile", ours: []string{},
			why: "clusterprofile has the types of another project, and so nothing of this one",
		},
		{
			from: "internal/config", never: slices.Concat(requests, connections),
			why: "the configuration is read before anything runs that it is for",
		},
		{
			from:  "internal/delivery",
			never: slices.Concat(requests, deciders, []string{"./internal/tunnel", "./internal/index"}),
			why:   "delivery carries sets and does not know what makes them, nor how a request reaches a member",
		},
		{
			from: "internal/index", ours: []string{"./api", "./internal/kinds"},
			why: "index answers questions about objects from the cache and decides nothing",
		},
		{
			from: "internal/limit", only: []string{"std"},
			why: "limit shares places among names, whatever these are",
		},
		{
			from: "internal/memory", only: []string{"std"},
			why: "memory is linked into hub and agents and speaks with the runtime only",
		},
		{
			from: "internal/owned", ours: []string{},
			why: "owned guards every write of a controller, so none of what it guards may be below it",
		},
		{
			from: "internal/portal/catalog", never: slices.Concat(connections, deciders, []string{"./internal/proxy"}),
			why: "the catalog says who may reach which Clusters, whether they are connected or not",
		},
		{
			from: "internal/portal/page", only: []string{"std", "./internal/kinds"},
			why: "the page is static files and a list of kinds: what it shows comes from the API that every client has",
		},
		{
			from:  "internal/portal/subscribe",
			never: slices.Concat(connections, deciders, []string{"./internal/proxy", "./internal/index"}),
			why:   "a user sees an object because the API server lets them watch it, not because of what Drover knows of it",
		},
		{
			from: "internal/provision/cloudconfig", ours: []string{"./internal/untrusted"}, never: effects(),
			why: "cloudconfig is pure: the same text always gives the same files and commands, and a fuzz test needs no machine",
		},
		{
			from: "internal/provision/clusterapi", ours: []string{"./api", "./internal/owned", "./internal/untrusted"},
			why: "clusterapi reads what the contract of Cluster API promises, for any of its providers",
		},
		{
			from: "internal/provision/inplace", never: slices.Concat(connections, requests, deciders),
			why: "updates in place are optional: they know Cluster API's objects and no members",
		},
		{
			from: "internal/provision/remote", ours: []string{"./internal/release", "./internal/untrusted"},
			why: "remote makes clients of kubeconfigs that others wrote: the less it reaches, the less they do",
		},
		{
			from: "internal/provision/schedule", only: []string{"std", "github.com/robfig/cron/v3"}, never: effects(),
			why: "schedule is pure: what is due follows from the schedule and the times that it is given",
		},
		{
			from: "internal/registration", never: slices.Concat(requests, connections, deciders),
			why: "an agent's identity does not depend on what is connected or who uses it",
		},
		{
			from: "internal/release", only: []string{"std", "k8s.io/apimachinery"},
			why: "release is linked into hub and agent, and asks one address one question",
		},
		{
			from: "internal/server", never: append(deciders, "./internal/set", "./internal/status", "./internal/release"),
			why: "the ports carry requests; what members get is decided by controllers",
		},
		{
			from: "internal/status", ours: []string{"./api", "./internal/protocol"},
			why: "status writes what it is given; whoever decides the status is above it",
		},
		{
			from: "internal/trust", ours: []string{"./internal/protocol"}, never: []string{"k8s.io/client-go", "sigs.k8s.io"},
			why: "trust makes certificates and judges them; what reads and writes their Secrets is above it",
		},
		{
			from: "internal/tunnel/h2", only: []string{"std", "golang.org/x/net/http", "golang.org/x/net/http2"},
			why: "h2 is a client of HTTP/2 and nothing else, so that golang.org/x/net can take its place",
		},
	}
}

// agentRules are about the packages of the agents by themselves.
func agentRules() []rule {
	base := []string{"./api", "./internal/protocol"}
	with := func(more ...string) []string { return append(slices.Clone(base), more...) }
	return []rule{
		{
			from: "agent/*", never: []string{"./agent/daemon"},
			why: "the daemon starts the agent's duties, so no duty knows it",
		},
		{
			from: "agent/forward", ours: with("./internal/request"),
			why: "users' requests need nothing of what the agent does by itself",
		},
		{
			from: "agent/kube", ours: base,
			why: "kube is how all duties reach the API server; it knows none of them",
		},
		{
			from: "agent/leader", ours: base,
			why: "an election knows nothing of what its winner does",
		},
		{
			from: "agent/link", ours: []string{"./internal/protocol", "./internal/tunnel", "./internal/untrusted"},
			why: "the link keeps a tunnel open, for the agents of clusters and of machines alike",
		},
		{
			from: "agent/stream", ours: base,
			why: "the stream carries what duties publish, and knows no duty",
		},
		{
			from: "agent/watch", ours: []string{},
			why: "watch holds objects for whoever asks, and knows no duty",
		},
		{
			from: "agent/host",
			ours: with("./agent/host/instructions", "./agent/identity", "./agent/link", "./agent/stream", "./internal/tunnel"),
			why:  "the agent of a machine is no agent of a cluster: it has no API server to speak to",
		},
		{
			from: "agent/host/instructions", ours: []string{"./internal/protocol"},
			why: "what is carried out on a machine is decided by the hub, and must work while that is away",
		},
	}
}

// programRules are about the programs beside the manager and the agent.
func programRules() []rule {
	return []rule{
		{
			from: "cmd", except: "cmd/drover-provisioner",
			never: []string{"./controllers", "./internal/members", "./internal/peer", "./internal/server",
				"./internal/delivery"},
			why: "programs beside the manager speak to the hub as any other client does",
		},
		{
			from: "cmd/drover-host-agent", ours: []string{"./agent/host", "./api", "./internal/protocol"},
			why: "the agent of a machine is small, and runs as root: what is not linked cannot be misused",
		},
		{
			from: "cmd/kubectl-drover", never: []string{"./agent", "./internal/config", "./internal/index", "./internal/status"},
			why: "the plugin runs for a user, with a client and the packages that decide",
		},
	}
}

// broad are the folders whose rule says too little of a package in them.
func broad() []string { return []string{"internal", "controllers", "cmd"} }

// TestEveryPackageHasARule wants for each package of the product a rule that was made for it, or for its folder.
func TestEveryPackageHasARule(t *testing.T) {
	var folders []string
	for _, f := range goFiles(t) {
		if !f.test() && inProduct(f.dir()) && !slices.Contains(folders, f.dir()) {
			folders = append(folders, f.dir())
		}
	}
	report(t, fenceProblems(folders, allRules()))
	for _, r := range allRules() {
		folder := strings.TrimSuffix(r.from, "/*")
		if _, err := os.Stat(filepath.Join(root(t), folder)); err != nil {
			t.Errorf("the rule of %s is about no folder: name the one that it became, or remove it", folder)
		}
		if r.why == "" {
			t.Errorf("the rule of %s has no reason; want one that a person who breaks it understands", r.from)
		}
	}
}

func inProduct(dir string) bool {
	return slices.ContainsFunc(programs(), func(top string) bool { return inside(dir, top) })
}

// fenceProblems lists the folders that no rule names, or only a broad one.
func fenceProblems(folders []string, table []rule) []string {
	var problems []string
	for _, dir := range folders {
		covers := func(r rule) bool {
			_, applies := r.home(dir)
			return applies && (dir == r.from || !slices.Contains(broad(), r.from))
		}
		if !slices.ContainsFunc(table, covers) {
			problems = append(problems, dir+": no rule says what it may import, and why: add one to the table")
		}
	}
	return problems
}

func TestFenceRule(t *testing.T) {
	table := []rule{{from: "internal"}, {from: "internal/set"}, {from: "controllers"}, {from: "controllers/*"}}
	for dir, want := range map[string]string{
		"internal/set":        "",
		"internal/set/deep":   "",
		"internal/setting":    "internal/setting: no rule",
		"controllers":         "",
		"controllers/binding": "",
		"cmd/new":             "cmd/new: no rule",
	} {
		t.Run(dir, func(t *testing.T) { expect(t, fenceProblems([]string{dir}, table), want) })
	}
}

// pure are the folders of the packages that compute: without client, context, logger, clock, files or goroutines.
func pure() []string {
	return []string{
		"internal/access", "cmd/kubectl-drover/rancher", "internal/rollout", "internal/set", "internal/tenancy",
		"internal/provision/cloudconfig", "internal/provision/k3s", "internal/provision/kubeadm",
		"internal/provision/schedule",
	}
}

func isPure(dir string) bool {
	return slices.ContainsFunc(pure(), func(folder string) bool { return inside(dir, folder) })
}

// A pure package may hold a time that it was given, and must not look at the clock.
func TestPurePackagesHaveNoEffects(t *testing.T) {
	files, own := goFiles(t), modulePath(t)
	for _, folder := range pure() {
		if !slices.ContainsFunc(files, func(f source) bool { return f.dir() == folder }) {
			t.Errorf("%s is in the list of pure packages and is none: name what it became", folder)
		}
		r := rule{from: folder, never: effects(), why: "it is pure: what it returns follows from what it is given"}
		report(t, r.problems(own, files))
	}
	report(t, clockProblems(files))
}

func clockProblems(files []source) []string {
	clock := []string{"Now", "NowMicro", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
	var problems []string
	for _, f := range files {
		if f.test() || !isPure(f.dir()) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(clock, sel.Sel.Name) {
				if pkg, ok := sel.X.(*ast.Ident); ok && (pkg.Name == "time" || pkg.Name == "metav1") {
					problems = append(problems,
						fmt.Sprintf("%s: uses %s.%s: a pure package is given the time", f.at(sel), pkg.Name, sel.Sel.Name))
				}
			}
			return true
		})
	}
	return problems
}

func TestClockRule(t *testing.T) {
	text := "package rollout\n\nimport \"time\"\n\nfunc f() time.Time { return time.Now() }\n"
	expect(t, clockProblems([]source{fixture(t, "internal/rollout/a.go", text)}),
		"time.Now: a pure package is given the time")
	expect(t, clockProblems([]source{fixture(t, "internal/provision/schedule/a.go", text)}),
		"time.Now: a pure package is given the time")
	expect(t, clockProblems([]source{fixture(t, "internal/rollout/a_test.go", text)}), "")
	expect(t, clockProblems([]source{fixture(t, "internal/members/a.go", text)}), "")
}
