// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A rule restricts the imports of the packages in a folder. A path that begins with "./" is relative to the module's
// root, "std" is the standard library, and any other path is an import path. Each path stands for the package and all
// packages below it.
type rule struct {
	// from is the folder that the rule applies to, or "." for the root package only. "x/*" applies to each folder in x
	// separately.
	from string
	// only lists everything that can be imported. If it is nil, there is no such restriction.
	only []string
	// ours lists everything of this module that can be imported. If it is nil, there is no such restriction.
	ours []string
	// never lists forbidden imports.
	never []string
	// except is a folder inside from that the rule does not apply to.
	except string
	// why is the reason, which is shown to a person who breaks the rule.
	why string
}

// effects returns the imports that are forbidden in a pure package.
func effects() []string {
	return []string{
		"context", "database", "io/fs", "log", "math/rand", "crypto/rand", "net", "os", "runtime", "sync", "syscall",
		"testing",
		"github.com/go-logr", "go.uber.org", "k8s.io/client-go", "k8s.io/klog", "sigs.k8s.io/controller-runtime",
	}
}

// rules returns the import table of the architecture. It does not apply to tests, which can import anything that they
// need.
func rules() []rule {
	core := []string{"./internal/delivery", "./internal/members", "./internal/peer", "./internal/portal",
		"./internal/proxy", "./internal/server", "./internal/signin", "./internal/tunnel"}
	hub := []string{
		"./controllers", "./internal/members", "./internal/proxy", "./internal/identity", "./internal/registration",
	}
	return []rule{
		{
			from: "api", only: []string{"std", "k8s.io/apimachinery", "k8s.io/api", "./api"},
			why: "other projects import api/v1 to use Drover's API; it must bring them types and nothing else",
		},
		{
			from: "internal/untrusted", only: []string{"std", "go.yaml.in/yaml/v3", "k8s.io/apimachinery/pkg/apis/meta/v1"},
			why: "untrusted is linked into hub and agents, and does not depend on the data that it bounds",
		},
		{
			from: "internal/set", ours: []string{"./api"}, never: effects(),
			why: "set is pure: hub and agent must see the same objects for the same namespaces, with or without each other",
		},
		{
			from: "internal/access", ours: []string{"./api", "./internal/baseline", "./internal/set"}, never: effects(),
			why: "access is pure: equal templates and bindings always result in equal RBAC, and a table test needs no server",
		},
		{
			from: "internal/tenancy", ours: []string{"./api", "./internal/set"}, never: effects(),
			why: "tenancy is pure: equal projects always result in equal objects, and a table test needs no server",
		},
		{
			from: "internal/baseline", ours: []string{"./api", "./internal/untrusted"}, never: effects(),
			why: "baseline is pure: equal texts always result in equal objects, on the hub and in each member",
		},
		{
			from: "internal/rollout", ours: []string{"./api"}, never: effects(),
			why: "rollout is pure: controller, agent, tests and previews must see the same next step",
		},
		{
			from:  "internal/upgradecheck",
			ours:  []string{"./api", "./internal/protocol", "./internal/untrusted"},
			never: []string{"k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime"},
			why:   "upgradecheck is linked into the agent and the plugin, and reads a cluster with a client of either",
		},
		{
			from: "cmd/kubectl-drover/rancher", ours: []string{"./api"}, never: effects(),
			why: "rancher is pure: equal objects always result in equal files, and a table test needs no server",
		},
		{
			from: "cmd/kubectl-drover/cli", ours: []string{"./api", "./internal/registration", "./internal/untrusted"},
			why: "all commands of the plugin share cli, so it must not depend on one of them",
		},
		{
			from: "cmd/kubectl-drover/*",
			ours: []string{"./api", "./internal", "./cmd/kubectl-drover/cli", "./cmd/kubectl-drover/rancher"},
			why:  "the subjects of the plugin share only cli, so each can be read and changed without the others",
		},
		{
			from: "cmd/kubectl-drover/session/login", ours: []string{},
			never: []string{"github.com/spf13", "k8s.io", "sigs.k8s.io"},
			why:   "login uses a hub's issuer and a file of sessions, but neither commands nor kubeconfigs",
		},
		{
			from: "cmd/kubectl-drover",
			never: []string{
				"./agent", "./config", "./controllers", "./internal/members", "./internal/proxy", "./internal/server",
				"./internal/tunnel",
			},
			why: "the plugin uses APIs with its caller's rights: it shares decisions with hub and agent, but no servers",
		},
		{
			from: "internal/kinds", ours: []string{"./api", "./internal/checkpoint", "./internal/set", "./internal/untrusted"},
			why: "kinds is a table that caches, indexes, streams and the delivery store read: it must not depend on any of them",
		},
		{
			from: "internal/checkpoint", ours: []string{"./api", "./internal/status"},
			why: "checkpoint decides which changes a restored hub holds back, for every kind of delivery",
		},
		{
			from: "internal/tunnel",
			only: []string{
				"std", "github.com/gorilla/websocket", "golang.org/x/net/http", "golang.org/x/net/http2", "./internal/tunnel",
			},
			why: "the tunnel knows nothing of Kubernetes or of Drover, so that it can be read, tested and measured alone",
		},
		{
			from: "internal/tracing", ours: []string{"./internal/request"},
			never: []string{
				"k8s.io", "sigs.k8s.io", "google.golang.org", "go.opentelemetry.io/otel/exporters", "go.opentelemetry.io/proto",
			},
			why: "tracing is linked into the agent; the exporter of the SDK would make it half as large again",
		},
		{
			from: "internal/request", only: []string{"std", "golang.org/x/net/http"},
			why: "request is linked into the agent, and only uses net/http and the paths of Kubernetes",
		},
		{
			from: "internal/protocol", ours: []string{"./api", "./internal/protocol", "./internal/set", "./internal/untrusted"},
			never: []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/gorilla"},
			why:   "protocol is linked into hub and agent; it defines messages, not clients",
		},
		{
			from:  "internal/identity",
			never: []string{"./internal/members", "./internal/tunnel", "sigs.k8s.io/controller-runtime"},
			why:   "the identity of a user does not depend on connections",
		},
		{
			from: "internal/signin",
			ours: []string{"./api", "./internal/audit", "./internal/identity", "./internal/limit", "./internal/untrusted"},
			why:  "the identity of a user does not depend on members: sign-in only uses users and their credentials",
		},
		{
			from: "internal/signin/page", ours: []string{"./internal/signin/usercode"},
			why: "a page renders the given data as HTML: it looks nothing up and decides nothing",
		},
		{
			from: "internal/signin/account",
			ours: []string{
				"./api", "./internal/audit", "./internal/identity", "./internal/signin/connector", "./internal/signin/oauth",
				"./internal/signin/password", "./internal/signin/quietlog",
			},
			why: "permission to sign in does not depend on sessions, tokens or types of providers",
		},
		{
			from: "internal/signin/session",
			never: []string{
				"./internal/signin/login", "./internal/signin/grant", "./internal/signin/accesstoken",
				"./internal/signin/scripttoken", "./internal/signin/direct", "./internal/signin/upstream",
			},
			why: "the store of sessions must not depend on the code that begins, uses or ends them",
		},
		{
			from: "internal/signin/login",
			never: []string{
				"./internal/signin/grant", "./internal/signin/accesstoken", "./internal/signin/scripttoken",
				"./internal/signin/direct",
			},
			why: "a page issues a code; the package that redeems it decides about its value",
		},
		{
			from:  "internal/signin/grant",
			never: []string{"./internal/signin/login", "./internal/signin/page", "./internal/signin/scripttoken"},
			why:   "programs redeem codes without any page for people",
		},
		{
			from: "internal/signin/upstream",
			ours: []string{
				"./api", "./internal/signin/connector", "./internal/signin/github", "./internal/signin/ldap",
				"./internal/signin/oidc", "./internal/signin/workload",
			},
			why: "the table of types depends on connectors, and not on their users",
		},
		{
			from: "internal/signin/github", ours: []string{"./internal/signin/connector", "./internal/untrusted"},
			why: "a connector only queries its upstream, and does not depend on the hub",
		},
		{
			from: "internal/signin/ldap", ours: []string{"./internal/signin/connector", "./internal/untrusted"},
			why: "a connector only queries its upstream, and does not depend on the hub",
		},
		{
			from: "internal/signin/oidc", ours: []string{"./internal/signin/connector", "./internal/untrusted"},
			why: "a connector only queries its upstream, and does not depend on the hub",
		},
		{
			from: "internal/provision/k3s",
			ours: []string{
				"./api", "./internal/protocol", "./internal/provision/k3s", "./internal/provision/progress",
				"./internal/untrusted",
			},
			never: effects(),
			why: "k3s is pure: equal hosts always get equal instructions, and a model of 1,000 machines needs no " +
				"server",
		},
		{
			from:  "internal/provision/k3s/roster",
			ours:  []string{"./api", "./internal/protocol", "./internal/provision/progress"},
			never: effects(),
			why:   "a roster has facts about hosts: it knows neither their distribution nor a decision",
		},
		{
			from: "internal/provision/k3s/distribution", except: "internal/provision/k3s/distribution/rancher",
			ours: []string{"./api", "./internal/protocol", "./internal/provision/k3s/roster"}, never: effects(),
			why: "instructions are the same for all distributions, and do not depend on a decision",
		},
		{
			from: "internal/provision/k3s/distribution/rancher",
			ours: []string{
				"./api", "./internal/protocol", "./internal/provision/k3s/distribution", "./internal/provision/k3s/roster",
				"./internal/untrusted",
			},
			never: append(effects(), "./internal/provision/k3s/decision"),
			why:   "a distribution supplies files and commands, and makes no decision",
		},
		{
			from: "internal/provision/k3s/decision",
			ours: []string{
				"./api", "./internal/protocol", "./internal/provision/k3s/distribution", "./internal/provision/k3s/roster",
				"./internal/provision/progress",
			},
			never: append(effects(), "./internal/provision/k3s/distribution/rancher"),
			why:   "a draft does not depend on the steps that change it",
		},
		{
			from: "internal/provision/k3s/restore",
			ours: []string{
				"./api", "./internal/protocol", "./internal/provision/k3s/decision",
				"./internal/provision/k3s/distribution", "./internal/provision/k3s/roster", "./internal/provision/progress",
			},
			never: append(effects(), "./internal/provision/k3s/distribution/rancher"),
			why:   "a restore is the same for all distributions",
		},
		{
			from: "internal/provision/kubeadm",
			ours: []string{"./api", "./internal/protocol", "./internal/provision/progress"}, never: effects(),
			why: "kubeadm is pure: equal control planes always get equal tasks, and a model of failures needs no server",
		},
		{
			from: "internal/provision/progress", ours: []string{"./api"}, never: effects(),
			why: "progress is the result of planners: it looks nothing up",
		},
		{
			from: "internal/provision/etcd",
			ours: []string{
				"./api", "./internal/owned", "./internal/protocol", "./internal/provision/progress", "./internal/status",
			},
			why: "etcd writes the progress that a planner returns, and does not depend on the planner",
		},
		{
			from: "internal/provision/hosts", ours: []string{"./api", "./internal/owned", "./internal/protocol"},
			why: "hosts handles Hosts and their instructions, and does not depend on the installed software",
		},
		{
			from: "internal/*", except: "internal/provision", never: provisioning(),
			why: "the manager is built without the code that creates clusters, which is another program with other rights",
		},
		{
			from: "internal/provision", never: core,
			why: "the provisioner reaches machines and members through objects of the hub only",
		},
		{
			from: "internal/policies", ours: []string{"./config"},
			why: "the manager and the provisioner share it, so it must not depend on either",
		},
		{
			from: "internal/wiring",
			only: []string{"std", "k8s.io/apimachinery", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"},
			why: "the manager and the provisioner share wiring to start their controllers, so it must not depend on a " +
				"controller",
		},
		{
			from: "internal/members", never: []string{"./internal/proxy", "./internal/identity"},
			why: "members serves both controllers and proxy, and must not depend on either",
		},
		{
			from: "internal/peer",
			ours: []string{
				"./internal/await", "./internal/members", "./internal/limit", "./internal/protocol", "./internal/request",
				"./internal/tunnel", "./internal/untrusted",
			},
			why: "a link between replicas carries member states and requests within its capacity; authentication and " +
				"authorization happen before",
		},
		{
			from: "internal/proxy",
			never: []string{
				"./internal/members", "./internal/tunnel", "./internal/access", "./internal/rollout", "./internal/tenancy",
				"sigs.k8s.io/controller-runtime",
			},
			why: "the proxy gets transports from a function, so a test of its authorization needs no tunnel",
		},
		{
			from: "internal", never: []string{"./controllers", "./agent", "./cmd", "./hack", "./test"},
			why: "internal packages are used by programs and controllers, never the other way round",
		},
		{
			from: "controllers", never: []string{"./internal/proxy", "./internal/tunnel", "./agent", "./hack", "./test"},
			why: "a controller reaches members through internal/members, and does not handle users' requests",
		},
		{
			from: "controllers/*", never: []string{"./controllers"},
			why: "kinds meet only through the API: labels, conditions, owner references",
		},
		{
			from: "controllers/provision/*", never: []string{"./controllers"},
			why: "kinds meet only through the API: labels, conditions, owner references",
		},
		{
			from: "controllers/provision", never: core,
			why: "the provisioner reaches machines and members through objects of the hub only",
		},
		{
			from: "cmd/drover-provisioner",
			ours: []string{"./controllers/provision", "./internal/config", "./internal/provision"},
			why:  "the provisioner is wired by controllers/provision",
		},
		{
			from: "agent",
			ours: []string{
				"./agent", "./api", "./internal/protocol", "./internal/tunnel", "./internal/rollout", "./internal/memory",
				"./internal/baseline",
				"./internal/release", "./internal/request", "./internal/tracing", "./internal/set", "./internal/signin/token",
				"./internal/await", "./internal/untrusted", "./internal/upgradecheck", "./config",
			},
			never: append(hub, "sigs.k8s.io/controller-runtime", "k8s.io/client-go/kubernetes"),
			why: "agent and hub share only protocol, tunnel, api/v1, the planner, tracing, the verification of users' " +
				"tokens and decisions that each must reach without the other; a small binary is a feature",
		},
		{
			from: ".", never: append(provisioning(), "./agent", "./hack", "./test", "./internal/arch"),
			why: "the manager is built from the hub's side of the tree",
		},
	}
}

// provisioning returns the packages of the provisioner.
func provisioning() []string {
	return []string{"./api/infrastructure", "./api/provision", "./cmd/drover-provisioner", "./controllers/provision",
		"./internal/provision"}
}

// testOnly returns the packages that no shipped program can import.
func testOnly() []string { return []string{"./test", "./hack"} }

func TestImportsPointOneWay(t *testing.T) {
	files := goFiles(t)
	own := modulePath(t)
	for _, r := range allRules() {
		report(t, r.problems(own, files))
	}
	report(t, testOnlyProblems(own, files))
}

func modulePath(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(line, "module "); found {
			return strings.TrimSpace(name)
		}
	}
	t.Fatal("go.mod names no module")
	return ""
}

// problems lists the imports of files that break the rule, for every platform.
func (r rule) problems(own string, files []source) []string {
	var problems []string
	for _, f := range files {
		home, applies := r.home(f.dir())
		if !applies || f.test() || r.except != "" && inside(f.dir(), r.except) {
			continue
		}
		for _, spec := range f.ast.Imports {
			target := importOf(spec, own)
			if inside(target, "./"+home) {
				continue
			}
			if !r.allows(target) {
				problems = append(problems, fmt.Sprintf("%s: imports %s: %s", f.at(spec), target, r.why))
			}
		}
	}
	return problems
}

// home returns the folder that dir belongs to from the rule's point of view. Packages in the same home can import each
// other.
func (r rule) home(dir string) (home string, applies bool) {
	parent, each := strings.CutSuffix(r.from, "/*")
	switch {
	case !each && r.from == ".":
		return "main.go", dir == "."
	case !each:
		return r.from, inside(dir, r.from)
	case dir == parent || !inside(dir, parent):
		return "", false
	}
	child, _, _ := strings.Cut(strings.TrimPrefix(dir, parent+"/"), "/")
	return path.Join(parent, child), true
}

func (r rule) allows(target string) bool {
	covers := func(pattern string) bool {
		return inside(target, pattern) || pattern == "std" && isStd(target)
	}
	switch {
	case slices.ContainsFunc(r.never, covers):
		return false
	case r.only != nil:
		return slices.ContainsFunc(r.only, covers)
	case r.ours != nil && strings.HasPrefix(target, "./"):
		return slices.ContainsFunc(r.ours, covers)
	}
	return true
}

func testOnlyProblems(own string, files []source) []string {
	shipped := func(dir string) bool {
		from := func(folder string) bool { return inside("./"+dir, folder) }
		return !slices.ContainsFunc(testOnly(), from)
	}
	var problems []string
	for _, f := range files {
		if f.test() || !shipped(f.dir()) {
			continue
		}
		for _, spec := range f.ast.Imports {
			target := importOf(spec, own)
			if slices.ContainsFunc(testOnly(), func(folder string) bool { return inside(target, folder) }) {
				problems = append(problems, fmt.Sprintf("%s: imports %s: only tests and hack/ may use it", f.at(spec), target))
			}
		}
	}
	return problems
}

// importOf returns the imported path, with the path of this module replaced by "./".
func importOf(spec *ast.ImportSpec, own string) string {
	target, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	if rest, found := strings.CutPrefix(target, own+"/"); found {
		return "./" + rest
	}
	return target
}

func inside(target, folder string) bool {
	return target == folder || strings.HasPrefix(target, folder+"/")
}

// isStd reports whether an import belongs to the standard library, whose paths have no dot in the first element.
func isStd(target string) bool {
	first, _, _ := strings.Cut(target, "/")
	return !strings.Contains(first, ".")
}

func TestImportRules(t *testing.T) {
	tests := map[string]struct{ file, imports, want string }{
		"api may use apimachinery": {"api/v1/a.go", "k8s.io/apimachinery/pkg/runtime", ""},
		"api may not use a client": {
			"api/v1/a.go", "sigs.k8s.io/controller-runtime", "types and nothing else",
		},
		"api may not use the rest of ours":        {"api/v1/a.go", "own.dev/m/internal/tunnel", "types and nothing else"},
		"the tunnel may use the standard library": {"internal/tunnel/a.go", "net/http", ""},
		"the tunnel may not know Kubernetes": {
			"internal/tunnel/a.go", "k8s.io/apimachinery/pkg/types", "nothing of Kubernetes",
		},
		"a rule covers folders below": {
			"internal/tunnel/sub/a.go", "own.dev/m/internal/members", "nothing of Kubernetes",
		},
		"a like-named folder is another":       {"internal/tunnelling/a.go", "own.dev/m/internal/members", ""},
		"tests are free":                       {"internal/tunnel/a_test.go", "own.dev/m/internal/members", ""},
		"pure packages have no context":        {"internal/access/a.go", "context", "access is pure"},
		"pure packages do not know each other": {"internal/access/a.go", "own.dev/m/internal/rollout", "access is pure"},
		"roles do not know of projects":        {"internal/access/a.go", "own.dev/m/internal/tenancy", "access is pure"},
		"sets need no server":                  {"internal/set/a.go", "k8s.io/client-go/rest", "set is pure"},
		"the agent expands namespaces alone":   {"agent/apply/a.go", "own.dev/m/internal/set", ""},
		"the agent does not compute projects": {
			"agent/apply/a.go", "own.dev/m/internal/tenancy", "agent and hub share only",
		},
		"a kind may use its own folders": {"controllers/cluster/a.go", "own.dev/m/controllers/cluster/scope", ""},
		"a kind may not use another": {
			"controllers/cluster/a.go", "own.dev/m/controllers/plan", "only through the API",
		},
		"nor do the kinds of provisioning": {
			"controllers/provision/etcd/a.go", "own.dev/m/controllers/provision/machine", "only through the API",
		},
		"the list of controllers uses all kinds": {"controllers/setup.go", "own.dev/m/controllers/plan", ""},
		"the agent may use the tunnel":           {"agent/link/a.go", "own.dev/m/internal/tunnel", ""},
		"the agent may not use the hub's side": {
			"agent/plan/a.go", "own.dev/m/internal/status", "agent and hub share only",
		},
		"the agent stays small": {
			"agent/main.go", "sigs.k8s.io/controller-runtime/pkg/client", "agent and hub share only",
		},
		"internal does not know controllers": {
			"internal/server/a.go", "own.dev/m/controllers", "never the other way round",
		},
		"a login page gives no token": {
			"internal/signin/login/a.go", "own.dev/m/internal/signin/grant", "a page issues a code",
		},
		"a connector does not know sessions": {
			"internal/signin/ldap/a.go", "own.dev/m/internal/signin/session", "does not depend on the hub",
		},
		"main may use controllers":            {"main.go", "own.dev/m/controllers", ""},
		"main may not use the agent":          {"main.go", "own.dev/m/agent/link", "hub's side"},
		"a subject of the plugin may use cli": {"cmd/kubectl-drover/plans/a.go", "own.dev/m/cmd/kubectl-drover/cli", ""},
		"a subject may not use another": {
			"cmd/kubectl-drover/plans/a.go", "own.dev/m/cmd/kubectl-drover/hosts", "share only cli",
		},
		"cli decides nothing of a subject": {
			"cmd/kubectl-drover/cli/a.go", "own.dev/m/internal/access", "must not depend on one of them",
		},
		"the plugin has no tunnel": {
			"cmd/kubectl-drover/hosts/a.go", "own.dev/m/internal/tunnel", "with its caller's rights",
		},
		"the plugin's page lists all subjects": {"cmd/kubectl-drover/main.go", "own.dev/m/cmd/kubectl-drover/hosts", ""},

		"the core makes no clusters": {"internal/server/a.go", "own.dev/m/internal/provision/inplace", "another program"},
		"nor does main":              {"main.go", "own.dev/m/controllers/provision", "hub's side"},
		"the provisioner has no tunnels": {
			"internal/provision/hub/a.go", "own.dev/m/internal/members", "objects of the hub only",
		},
		"nor do its controllers": {
			"controllers/provision/machine/a.go", "own.dev/m/internal/members", "objects of the hub only",
		},
		"its packages use each other": {"internal/provision/hosts/a.go", "own.dev/m/internal/owned", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file := fixture(t, tt.file, "package a\n\nimport _ \""+tt.imports+"\"\n")
			var problems []string
			for _, r := range allRules() {
				problems = append(problems, r.problems("own.dev/m", []source{file})...)
			}
			expect(t, problems, tt.want)
		})
	}
	t.Run("what ships imports nothing that is made for tests", func(t *testing.T) {
		text := "package a\n\nimport _ \"own.dev/m/test/testkit\"\n"
		expect(t, testOnlyProblems("own.dev/m", []source{fixture(t, "internal/members/a.go", text)}), "only tests")
		expect(t, testOnlyProblems("own.dev/m", []source{fixture(t, "internal/members/a_test.go", text)}), "")
		expect(t, testOnlyProblems("own.dev/m", []source{fixture(t, "hack/demo/a.go", text)}), "")
	})
}
