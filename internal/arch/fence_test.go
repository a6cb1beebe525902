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

// allRules returns the whole import table: first the rules for the parts of the system, then the rules for single
// packages.
func allRules() []rule { return slices.Concat(rules(), packageRules(), agentRules(), programRules()) }

// packageRules returns the rules for packages of the hub that rules does not name.
func packageRules() []rule {
	requests := []string{"./internal/proxy", "./internal/identity", "./internal/peer", "./internal/server",
		"./internal/signin", "./internal/portal"}
	connections := []string{"./internal/members", "./internal/peer", "./internal/tunnel", "./internal/server",
		"./internal/delivery"}
	deciders := []string{"./internal/access", "./internal/tenancy", "./internal/rollout"}
	return []rule{
		{
			from: "internal/arch", only: []string{"std"},
			why: "arch reads the tree as text, so it can check code that does not build and needs no dependency",
		},
		{
			from: "internal/audit", ours: []string{"./internal/request", "./internal/untrusted"},
			why: "audit only writes the entries that it is given: a log must not fail together with the code that it logs",
		},
		{
			from: "internal/await", only: []string{"std"},
			why: "await is linked into hub and agents, and only uses contexts and timers",
		},
		{
			from: "internal/clusterprofile", ours: []string{},
			why: "clusterprofile has the types of another project, so it needs nothing of this one",
		},
		{
			from: "internal/config", never: slices.Concat(requests, connections),
			why: "the configuration is read before anything that uses it runs",
		},
		{
			from:  "internal/delivery",
			never: slices.Concat(requests, deciders, []string{"./internal/tunnel", "./internal/index"}),
			why:   "delivery carries sets; it knows neither how they are made nor how a request reaches a member",
		},
		{
			from: "internal/index", ours: []string{"./api", "./internal/kinds"},
			why: "index answers questions about objects from the cache and decides nothing",
		},
		{
			from: "internal/limit", only: []string{"std"},
			why: "limit divides slots among names, whatever the names stand for",
		},
		{
			from: "internal/memory", only: []string{"std"},
			why: "memory is linked into hub and agents, and only uses the Go runtime",
		},
		{
			from: "internal/owned", ours: []string{},
			why: "owned guards every write of a controller, so it must not depend on the guarded code",
		},
		{
			from: "internal/portal/catalog", never: slices.Concat(connections, deciders, []string{"./internal/proxy"}),
			why: "the catalog lists the Clusters that a user can reach, whether they are connected or not",
		},
		{
			from: "internal/portal/page", only: []string{"std", "./internal/kinds"},
			why: "the page is static files and a list of kinds: its data comes from the API that every client uses",
		},
		{
			from:  "internal/portal/subscribe",
			never: slices.Concat(connections, deciders, []string{"./internal/proxy"}),
			why: "a user sees an object because the API server lets them watch it, and a part of a Cluster because the " +
				"ways of the catalog lead to it",
		},
		{
			from: "internal/provision/cloudconfig", ours: []string{"./internal/untrusted"}, never: effects(),
			why: "cloudconfig is pure: equal text always results in equal files and commands, and a fuzz test needs no machine",
		},
		{
			from: "internal/provision/clusterapi", ours: []string{"./api", "./internal/owned", "./internal/untrusted"},
			why: "clusterapi relies only on the contract of Cluster API, so it works with every provider",
		},
		{
			from: "internal/provision/inplace", never: slices.Concat(connections, requests, deciders),
			why: "updates in place are optional: they use Cluster API's objects and no members",
		},
		{
			from: "internal/provision/remote", ours: []string{"./internal/release", "./internal/untrusted"},
			why: "remote creates clients from kubeconfigs of other parties: the less it can reach, the less they can abuse",
		},
		{
			from: "internal/provision/schedule", only: []string{"std", "github.com/robfig/cron/v3"}, never: effects(),
			why: "schedule is pure: it computes the due times from a schedule and given times",
		},
		{
			from: "internal/registration", never: slices.Concat(requests, connections, deciders),
			why: "an agent's identity does not depend on connections or on users",
		},
		{
			from: "internal/release", only: []string{"std", "k8s.io/apimachinery"},
			why: "release is linked into hub and agent, and only sends one request to one address",
		},
		{
			from: "internal/server", never: append(deciders, "./internal/set", "./internal/status", "./internal/release"),
			why: "the ports carry requests; controllers decide what is delivered to members",
		},
		{
			from: "internal/status", ours: []string{"./api", "./internal/protocol"},
			why: "status writes a given status; the code that decides the status imports it",
		},
		{
			from: "internal/trust", ours: []string{"./internal/protocol"}, never: []string{"k8s.io/client-go", "sigs.k8s.io"},
			why: "trust issues and verifies certificates; the code that reads and writes their Secrets imports it",
		},
		{
			from: "internal/tunnel/h2", only: []string{"std", "golang.org/x/net/http", "golang.org/x/net/http2"},
			why: "h2 is only an HTTP/2 client, so golang.org/x/net can replace it one day",
		},
	}
}

// agentRules returns the rules for the packages of the agents.
func agentRules() []rule {
	base := []string{"./api", "./internal/await", "./internal/protocol"}
	with := func(more ...string) []string { return append(slices.Clone(base), more...) }
	return []rule{
		{
			from: "agent/*", never: []string{"./agent/daemon"},
			why: "the daemon starts the agent's duties, so no duty can import it",
		},
		{
			from: "agent/baseline",
			ours: []string{"./agent/kube", "./agent/repair", "./agent/watch", "./api", "./internal/baseline",
				"./internal/protocol", "./internal/set"},
			why: "a Baseline is applied as its own user: code with the agent's rights is out of its reach",
		},
		{
			from: "agent/repair", only: []string{"std"},
			why: "repair only counts repairs",
		},
		{
			from: "agent/forward", ours: with("./internal/baseline", "./internal/request"),
			why: "users' requests are independent of the agent's own duties",
		},
		{
			from: "agent/kube", ours: with("./internal/untrusted"),
			why: "all duties use kube to reach the API server, so kube must not depend on a duty",
		},
		{
			from: "agent/leader", ours: base,
			why: "an election does not depend on the work of its winner",
		},
		{
			from: "agent/link", ours: []string{"./internal/protocol", "./internal/tunnel", "./internal/untrusted"},
			why: "the link keeps a tunnel open, for the agents of clusters and of machines alike",
		},
		{
			from: "agent/stream", ours: base,
			why: "the stream carries the reports of all duties, so it must not depend on a duty",
		},
		{
			from: "agent/watch", ours: []string{},
			why: "watch caches objects for all duties, so it must not depend on a duty",
		},
		{
			from: "agent/host",
			ours: with("./agent/host/instructions", "./agent/identity", "./agent/link", "./agent/stream", "./internal/tunnel"),
			why:  "the agent of a machine is not the agent of a cluster: it has no API server to talk to",
		},
		{
			from: "agent/host/instructions", ours: []string{"./internal/await", "./internal/protocol"},
			why: "the hub decides the instructions of a machine, and they must work while the hub is unreachable",
		},
	}
}

// programRules returns the rules for the programs other than the manager and the agent.
func programRules() []rule {
	return []rule{
		{
			from: "cmd", except: "cmd/drover-provisioner",
			never: []string{"./controllers", "./internal/members", "./internal/peer", "./internal/server",
				"./internal/delivery"},
			why: "programs other than the manager use the hub as any other client does",
		},
		{
			from: "cmd/drover-host-agent", ours: []string{"./agent/host", "./api", "./internal/protocol"},
			why: "the agent of a machine is small and runs as root: code that is not linked cannot be misused",
		},
		{
			from: "cmd/kubectl-drover", never: []string{"./agent", "./internal/config", "./internal/index", "./internal/status"},
			why: "the plugin runs for a user, with a client and the packages that decide",
		},
	}
}

// broad returns the folders whose rule is too general for the packages in them.
func broad() []string { return []string{"internal", "controllers", "cmd"} }

// TestEveryPackageHasARule fails for a package of the product that has no rule of its own, and whose folder has none.
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
			t.Errorf("the rule for %s matches no folder: name the present folder, or remove the rule", folder)
		}
		if r.why == "" {
			t.Errorf("the rule for %s has no reason: explain it to a person who breaks the rule", r.from)
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
			problems = append(problems, dir+": no rule restricts its imports: add a rule with a reason to the table")
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

// pure returns the folders of the pure packages, which use no client, context, logger, clock, files or goroutines.
func pure() []string {
	return []string{
		"internal/access", "cmd/kubectl-drover/rancher", "internal/baseline", "internal/rollout", "internal/set",
		"internal/tenancy",
		"internal/provision/cloudconfig", "internal/provision/k3s", "internal/provision/k3s/roster",
		"internal/provision/k3s/distribution", "internal/provision/k3s/distribution/rancher",
		"internal/provision/k3s/decision", "internal/provision/k3s/restore", "internal/provision/kubeadm",
		"internal/provision/progress", "internal/provision/schedule",
	}
}

func isPure(dir string) bool {
	return slices.ContainsFunc(pure(), func(folder string) bool { return inside(dir, folder) })
}

// A pure package can hold a time that it was given, but it must not read the clock.
func TestPurePackagesHaveNoEffects(t *testing.T) {
	files, own := goFiles(t), modulePath(t)
	for _, folder := range pure() {
		if !slices.ContainsFunc(files, func(f source) bool { return f.dir() == folder }) {
			t.Errorf("%s is in the list of pure packages and does not exist: name the present folder", folder)
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
	expect(t, clockProblems([]source{fixture(t, "internal/provision/progress/a.go", text)}),
		"time.Now: a pure package is given the time")
	expect(t, clockProblems([]source{fixture(t, "internal/rollout/a_test.go", text)}), "")
	expect(t, clockProblems([]source{fixture(t, "internal/members/a.go", text)}), "")
}
