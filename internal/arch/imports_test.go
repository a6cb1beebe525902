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

// A rule says what the packages of a folder may import. Paths that begin with "./" are ours, from the module's root;
// "std" is the standard library; anything else is an import path. Each means the package and all below it.
type rule struct {
	// from is the folder the rule is about, "." for the root package only; "x/*" means each folder in x by itself.
	from string
	// only, where set, is everything that may be imported.
	only []string
	// ours, where set, is everything of this module that may be imported.
	ours []string
	// never may be imported.
	never []string
	// except is a folder in from that the rule is not about.
	except string
	// why is what a person who breaks the rule is told.
	why string
}

// effects are what a pure package has none of.
func effects() []string {
	return []string{
		"context", "database", "io/fs", "log", "math/rand", "crypto/rand", "net", "os", "runtime", "sync", "syscall", "testing",
		"github.com/go-logr", "go.uber.org", "k8s.io/client-go", "k8s.io/klog", "sigs.k8s.io/controller-runtime",
	}
}

// rules is the import table of the architecture. Tests are free: they may reach across to build what they need.
func rules() []rule {
	core := []string{"./internal/delivery", "./internal/members", "./internal/peer", "./internal/portal",
		"./internal/proxy", "./internal/server", "./internal/signin", "./internal/tunnel"}
	hub := []string{"./controllers", "./internal/members", "./internal/proxy", "./internal/identity", "./internal/registration"}
	return []rule{
		{
			from: "api", only: []string{"std", "k8s.io/apimachinery", "k8s.io/api", "./api"},
			why: "api/v1 is what other projects import to speak to Drover; it brings them types and nothing else",
		},
		{
			from: "internal/untrusted", only: []string{"std", "go.yaml.in/yaml/v3", "k8s.io/apimachinery/pkg/apis/meta/v1"},
			why: "untrusted is linked into hub and agents, and knows nothing of what it bounds",
		},
		{
			from: "internal/set", ours: []string{"./api"}, never: effects(),
			why: "set is pure: hub and agent must see the same objects for the same namespaces, with or without each other",
		},
		{
			from: "internal/access", ours: []string{"./api", "./internal/set"}, never: effects(),
			why: "access is pure: the same templates and bindings always give the same RBAC, and a table test needs no server",
		},
		{
			from: "internal/tenancy", ours: []string{"./api", "./internal/set"}, never: effects(),
			why: "tenancy is pure: the same project always gives the same objects, and a table test needs no server",
		},
		{
			from: "internal/rollout", ours: []string{"./api"}, never: effects(),
			why: "rollout is pure: controller, agent, tests and hack/plan-steps must see the same next step",
		},
		{
			from: "cmd/kubectl-drover/rancher", ours: []string{"./api"}, never: effects(),
			why: "rancher is pure: the same objects always give the same files, and a table test needs no server",
		},
		{
			from: "cmd/kubectl-drover/cli", ours: []string{"./api", "./internal/registration"},
			why: "all commands of the plugin share cli, so it knows none of them",
		},
		{
			from: "cmd/kubectl-drover/*", ours: []string{"./api", "./internal", "./cmd/kubectl-drover/cli", "./cmd/kubectl-drover/rancher"},
			why: "the subjects of the plugin meet in cli only, so that each can be read and changed without the others",
		},
		{
			from: "cmd/kubectl-drover/session/login", ours: []string{}, never: []string{"github.com/spf13", "k8s.io", "sigs.k8s.io"},
			why: "login knows a hub's issuer and a file of sessions, and neither commands nor kubeconfigs",
		},
		{
			from: "cmd/kubectl-drover", never: []string{"./agent", "./config", "./controllers", "./internal/members", "./internal/proxy", "./internal/server", "./internal/tunnel"},
			why: "the plugin acts by APIs, with its caller's rights: it shares decisions with hub and agent, and no servers",
		},
		{
			from: "internal/kinds", ours: []string{"./api", "./internal/checkpoint", "./internal/set", "./internal/untrusted"},
			why: "kinds is a table that caches, indexes, streams and the delivery store read: it must not depend on any of them",
		},
		{
			from: "internal/checkpoint", ours: []string{"./api", "./internal/status"},
			why: "checkpoint decides what a restored hub holds back, whatever is delivered and whoever delivers it",
		},
		{
			from: "internal/tunnel", only: []string{"std", "github.com/gorilla/websocket", "golang.org/x/net/http", "golang.org/x/net/http2", "./internal/tunnel"},
			why: "the tunnel knows nothing of Kubernetes or of Drover, so that it can be read, tested and measured alone",
		},
		{
			from: "internal/tracing", ours: []string{"./internal/request"}, never: []string{"k8s.io", "sigs.k8s.io", "google.golang.org", "go.opentelemetry.io/otel/exporters", "go.opentelemetry.io/proto"},
			why: "tracing is linked into the agent; the exporter of the SDK would make it half as large again",
		},
		{
			from: "internal/request", only: []string{"std", "golang.org/x/net/http"},
			why: "request is linked into the agent and knows nothing but net/http and the paths of Kubernetes",
		},
		{
			from: "internal/protocol", ours: []string{"./api", "./internal/protocol", "./internal/set", "./internal/untrusted"}, never: []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/gorilla"},
			why: "protocol is linked into hub and agent; it has words, not clients",
		},
		{
			from: "internal/identity", never: []string{"./internal/members", "./internal/tunnel", "sigs.k8s.io/controller-runtime"},
			why: "the identity of a user does not depend on what is connected",
		},
		{
			from: "internal/signin", ours: []string{"./api", "./internal/audit", "./internal/identity", "./internal/limit", "./internal/untrusted"},
			why: "who a user is does not depend on members: signing in knows of users and what proves who they are",
		},
		{
			from: "internal/signin/page", ours: []string{"./internal/signin/usercode"},
			why: "a page is HTML of what it is given: it looks nothing up and decides nothing",
		},
		{
			from: "internal/signin/account", ours: []string{"./api", "./internal/audit", "./internal/identity", "./internal/signin/connector", "./internal/signin/oauth", "./internal/signin/password", "./internal/signin/quietlog"},
			why: "who may sign in does not depend on sessions, tokens or types of providers",
		},
		{
			from: "internal/signin/session", never: []string{"./internal/signin/login", "./internal/signin/grant", "./internal/signin/accesstoken", "./internal/signin/scripttoken", "./internal/signin/direct", "./internal/signin/upstream"},
			why: "a session is stored below all that begins, uses or ends it",
		},
		{
			from: "internal/signin/login", never: []string{"./internal/signin/grant", "./internal/signin/accesstoken", "./internal/signin/scripttoken", "./internal/signin/direct"},
			why: "a page gives a code; what that is worth is decided where it is redeemed",
		},
		{
			from: "internal/signin/grant", never: []string{"./internal/signin/login", "./internal/signin/page", "./internal/signin/scripttoken"},
			why: "programs redeem codes; no page of a person is involved",
		},
		{
			from: "internal/signin/upstream", ours: []string{"./api", "./internal/signin/connector", "./internal/signin/github", "./internal/signin/ldap", "./internal/signin/oidc", "./internal/signin/workload"},
			why: "the table of types knows connectors, and nothing of who uses them",
		},
		{
			from: "internal/signin/github", ours: []string{"./internal/signin/connector", "./internal/untrusted"},
			why: "a connector asks its upstream, and knows nothing of the hub",
		},
		{
			from: "internal/signin/ldap", ours: []string{"./internal/signin/connector", "./internal/untrusted"},
			why: "a connector asks its upstream, and knows nothing of the hub",
		},
		{
			from: "internal/signin/oidc", ours: []string{"./internal/signin/connector", "./internal/untrusted"},
			why: "a connector asks its upstream, and knows nothing of the hub",
		},
		{
			from: "internal/provision/k3s", ours: []string{"./api", "./internal/protocol", "./internal/provision/progress", "./internal/untrusted"}, never: effects(),
			why: "k3s is pure: the same hosts always get the same instructions, and a model of 1,000 machines needs no server",
		},
		{
			from: "internal/provision/kubeadm", ours: []string{"./api", "./internal/protocol", "./internal/provision/progress"}, never: effects(),
			why: "kubeadm is pure: the same control planes are always told the same, and a model of failures needs no server",
		},
		{
			from: "internal/provision/progress", ours: []string{"./api"}, never: effects(),
			why: "progress is what planners say: it asks nothing",
		},
		{
			from: "internal/provision/hosts", ours: []string{"./api", "./internal/owned", "./internal/protocol"},
			why: "hosts knows Hosts and their instructions, and nothing of what is installed",
		},
		{
			from: "internal/*", except: "internal/provision", never: provisioning(),
			why: "the manager is built without what makes clusters: that is another program, with other rights",
		},
		{
			from: "internal/provision", never: core,
			why: "the provisioner reaches machines and members through objects of the hub only",
		},
		{
			from: "internal/wiring",
			only: []string{"std", "k8s.io/apimachinery", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"},
			why:  "wiring is shared by the manager's list of controllers and the provisioner's, and knows no controller",
		},
		{
			from: "internal/members", never: []string{"./internal/proxy", "./internal/identity"},
			why: "members serves controllers and proxy alike and knows neither",
		},
		{
			from: "internal/peer", ours: []string{"./internal/members", "./internal/limit", "./internal/protocol", "./internal/request", "./internal/tunnel", "./internal/untrusted"},
			why: "a link between replicas carries what is known of members and requests as they come, as many as there is room for; who sends them and whether they may was decided before",
		},
		{
			from: "internal/proxy", never: []string{"./internal/members", "./internal/tunnel", "./internal/access", "./internal/rollout", "./internal/tenancy", "sigs.k8s.io/controller-runtime"},
			why: "the proxy takes transports by a function, so that no test of who may pass needs a tunnel",
		},
		{
			from: "internal", never: []string{"./controllers", "./agent", "./cmd", "./hack", "./test"},
			why: "internal packages are used by programs and controllers, never the other way round",
		},
		{
			from: "controllers", never: []string{"./internal/proxy", "./internal/tunnel", "./agent", "./hack", "./test"},
			why: "a controller reaches members through internal/members; users' requests are none of its business",
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
			from: "agent", ours: []string{"./agent", "./api", "./internal/protocol", "./internal/tunnel", "./internal/rollout", "./internal/memory", "./internal/release", "./internal/request", "./internal/tracing", "./internal/set", "./internal/signin/token", "./internal/untrusted", "./config"},
			never: append(hub, "sigs.k8s.io/controller-runtime", "k8s.io/client-go/kubernetes"),
			why:   "agent and hub meet in protocol, tunnel and api/v1 only (and share the planner, what traces requests, what verifies a user's token, and what each must find out alone, without the other); a small binary is a feature",
		},
		{
			from: ".", never: append(provisioning(), "./agent", "./hack", "./test", "./internal/arch"),
			why: "the manager is built from the hub's side of the tree",
		},
	}
}

// provisioning are the packages of the provisioner.
func provisioning() []string {
	return []string{"./api/infrastructure", "./api/provision", "./cmd/drover-provisioner", "./controllers/provision",
		"./internal/provision"}
}

// testOnly are packages that no program that ships may import.
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

// problems lists the imports of files that break the rule. Which platform a file is for does not matter.
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

// home is the folder that dir belongs to in the eyes of the rule, whose packages may always import each other.
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

// importOf is the imported path, with "./" in place of the module's own.
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

// isStd: no package of the standard library has a dot in its first element.
func isStd(target string) bool {
	first, _, _ := strings.Cut(target, "/")
	return !strings.Contains(first, ".")
}

func TestImportRules(t *testing.T) {
	tests := map[string]struct{ file, imports, want string }{
		"api may use apimachinery":                {"api/v1/a.go", "k8s.io/apimachinery/pkg/runtime", ""},
		"api may not use a client":                {"api/v1/a.go", "sigs.k8s.io/controller-runtime", "types and nothing else"},
		"api may not use the rest of ours":        {"api/v1/a.go", "own.dev/m/internal/tunnel", "types and nothing else"},
		"the tunnel may use the standard library": {"internal/tunnel/a.go", "net/http", ""},
		"the tunnel may not know Kubernetes":      {"internal/tunnel/a.go", "k8s.io/apimachinery/pkg/types", "nothing of Kubernetes"},
		"a rule covers folders below":             {"internal/tunnel/sub/a.go", "own.dev/m/internal/members", "nothing of Kubernetes"},
		"a like-named folder is another":          {"internal/tunnelling/a.go", "own.dev/m/internal/members", ""},
		"tests are free":                          {"internal/tunnel/a_test.go", "own.dev/m/internal/members", ""},
		"pure packages have no context":           {"internal/access/a.go", "context", "access is pure"},
		"pure packages do not know each other":    {"internal/access/a.go", "own.dev/m/internal/rollout", "access is pure"},
		"roles do not know of projects":           {"internal/access/a.go", "own.dev/m/internal/tenancy", "access is pure"},
		"sets need no server":                     {"internal/set/a.go", "k8s.io/client-go/rest", "set is pure"},
		"the agent expands namespaces alone":      {"agent/apply/a.go", "own.dev/m/internal/set", ""},
		"the agent does not compute projects":     {"agent/apply/a.go", "own.dev/m/internal/tenancy", "agent and hub meet"},
		"a kind may use its own folders":          {"controllers/cluster/a.go", "own.dev/m/controllers/cluster/scope", ""},
		"a kind may not use another":              {"controllers/cluster/a.go", "own.dev/m/controllers/plan", "only through the API"},
		"nor do the kinds of provisioning":        {"controllers/provision/etcd/a.go", "own.dev/m/controllers/provision/machine", "only through the API"},
		"the list of controllers uses all kinds":  {"controllers/setup.go", "own.dev/m/controllers/plan", ""},
		"the agent may use the tunnel":            {"agent/link/a.go", "own.dev/m/internal/tunnel", ""},
		"the agent may not use the hub's side":    {"agent/plan/a.go", "own.dev/m/internal/status", "agent and hub meet"},
		"the agent stays small":                   {"agent/main.go", "sigs.k8s.io/controller-runtime/pkg/client", "agent and hub meet"},
		"internal does not know controllers":      {"internal/server/a.go", "own.dev/m/controllers", "never the other way round"},
		"a login page gives no token":             {"internal/signin/login/a.go", "own.dev/m/internal/signin/grant", "a page gives a code"},
		"a connector does not know sessions":      {"internal/signin/ldap/a.go", "own.dev/m/internal/signin/session", "knows nothing of the hub"},
		"main may use controllers":                {"main.go", "own.dev/m/controllers", ""},
		"main may not use the agent":              {"main.go", "own.dev/m/agent/link", "hub's side"},
		"a subject of the plugin may use cli":     {"cmd/kubectl-drover/plans/a.go", "own.dev/m/cmd/kubectl-drover/cli", ""},
		"a subject may not use another":           {"cmd/kubectl-drover/plans/a.go", "own.dev/m/cmd/kubectl-drover/hosts", "meet in cli only"},
		"cli decides nothing of a subject":        {"cmd/kubectl-drover/cli/a.go", "own.dev/m/internal/access", "knows none of them"},
		"the plugin has no tunnel":                {"cmd/kubectl-drover/hosts/a.go", "own.dev/m/internal/tunnel", "acts by APIs"},
		"the plugin's page lists all subjects":    {"cmd/kubectl-drover/main.go", "own.dev/m/cmd/kubectl-drover/hosts", ""},

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
