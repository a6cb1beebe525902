// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
)

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

func template(context v1.RoleContext, name string, inherits []string, rules ...rbacv1.PolicyRule) v1.RoleTemplate {
	return v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.RoleTemplateSpec{Context: context, Inherits: inherits, Rules: rules}}
}

func external(context v1.RoleContext, name, role string) v1.RoleTemplate {
	t := template(context, name, nil)
	t.Spec.External = role
	return t
}

func index(list ...v1.RoleTemplate) access.Templates { return access.Index(list) }

func TestFlatten(t *testing.T) {
	pods, secrets, nodes := rule("", "pods", "get", "list"), rule("", "secrets", "get"), rule("", "nodes", "get")
	metrics := rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}
	project, cluster := v1.ContextProject, v1.ContextCluster
	tests := map[string]struct {
		templates access.Templates
		want      []rbacv1.PolicyRule
		reason    string
		message   string
	}{
		"a template alone": {index(template(project, "a", nil, pods, secrets)), []rbacv1.PolicyRule{pods, secrets}, "", ""},
		"its own rules, then its parents'": {index(template(project, "a", []string{"c", "b"}, pods),
			template(project, "b", nil, secrets), template(project, "c", nil, nodes)), []rbacv1.PolicyRule{pods, nodes, secrets},
			"", ""},
		"a parent that is inherited twice counts once": {index(template(project, "a", []string{"b", "c"}),
			template(project, "b", []string{"d"}, pods),
			template(project, "c", []string{"d"}, secrets), template(project, "d", nil, nodes)),
			[]rbacv1.PolicyRule{pods, nodes, secrets}, "", ""},
		"equal rules are included once, whatever the order in their lists": {index(template(project, "a", []string{"b"},
			pods),
			template(project, "b", nil, rule("", "pods", "list", "get", "get"))), []rbacv1.PolicyRule{pods}, "", ""},
		"CVE-2021-25318: the same resource of another group is another rule": {index(template(project, "a", []string{"b"},
			rule("catalog.example.com", "apps", "get")),
			template(project, "b", nil, rule("apps", "apps", "get"))),
			[]rbacv1.PolicyRule{rule("catalog.example.com", "apps", "get"), rule("apps", "apps", "get")}, "", ""},
		"CVE-2023-32194: create on namespaces stays create on namespaces": {index(template(cluster, "a", nil,
			rule("", "namespaces", "create"))), []rbacv1.PolicyRule{rule("", "namespaces", "create")}, "", ""},
		"a cluster template may inherit a project template": {index(template(cluster, "a", []string{"b"}, metrics),
			template(project, "b", nil, pods)), []rbacv1.PolicyRule{metrics, pods}, "", ""},
		"a missing template": {index(), nil, v1.ReasonRoleTemplateNotFound, "role template a does not exist"},
		"a missing parent": {index(template(project, "a", []string{"b"}), template(project, "b", []string{"c"})),
			nil, v1.ReasonRoleTemplateNotFound, "role template c does not exist, and a → b inherits it"},
		"a template that inherits itself": {
			index(template(project, "a", []string{"a"})), nil, v1.ReasonInheritanceCycle, "a → a",
		},
		"a cycle, with the whole path": {index(template(project, "a", []string{"b"}), template(project, "b", []string{"c"}),
			template(project, "c", []string{"d"}), template(project, "d", []string{"b"})), nil,
			v1.ReasonInheritanceCycle, "role template b inherits itself: b → c → d → b"},
		"an external template": {index(external(project, "a", "edit")), nil, v1.ReasonInheritsExternal, "ClusterRole edit"},
		"CVE-2023-32196: an external parent, whose rules are not checked": {index(template(project, "a", []string{"b"}, pods),
			external(project, "b", "edit")), nil, v1.ReasonInheritsExternal, "cannot be inherited by a"},
		"a project template with a cluster template as its parent": {index(template(project, "a", []string{"b"}),
			template(cluster, "b", nil, nodes)), nil, v1.ReasonContextMismatch,
			"b has context Cluster and cannot be inherited by a"},
		"a cluster template behind another project template": {index(template(project, "a", []string{"b"}),
			template(project, "b", []string{"c"}), template(cluster, "c", nil, nodes)), nil, v1.ReasonContextMismatch,
			"cannot be inherited by a → b"},
		"URLs in a project": {index(template(project, "a", nil, metrics)), nil, v1.ReasonInvalidRules, "/metrics"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := access.Flatten(tt.templates, "a")
			if tt.reason == "" {
				if err != nil || !reflect.DeepEqual(got, tt.want) {
					t.Errorf("got %v, %v; want %v", got, err, tt.want)
				}
				return
			}
			refused := (*access.Error)(nil)
			if !errors.As(err, &refused) || refused.Reason != tt.reason || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("got %v, %+v; want %s with %q", got, err, tt.reason, tt.message)
			}
		})
	}
	t.Run("the result is a copy", func(t *testing.T) {
		templates := index(template(project, "a", nil, rule("", "pods", "get")))
		got, _ := access.Flatten(templates, "a")
		got[0].Verbs[0] = "*"
		if templates["a"].Spec.Rules[0].Verbs[0] != "get" {
			t.Error("the template was changed, want it unchanged")
		}
	})
}

// words returns the words for random rules. There are few words, so that rules overlap, and all wildcards of RBAC.
func words() (groups, resources, verbs, names, urls []string) {
	return []string{"", "apps", "apps.catalog", "*"}, []string{"pods", "pods/log", "deployments", "apps", "*", "*/log"},
		[]string{"get", "create", "bind", "*"}, []string{"web", "db"}, []string{"/metrics", "/api*", "/api/v1", "*"}
}

func some(r *rand.Rand, from []string) []string {
	var out []string
	for range 1 + r.IntN(2) {
		out = append(out, from[r.IntN(len(from))])
	}
	return out
}

// family returns a random set of templates t0, t1, … Each of them inherits only later ones.
func family(r *rand.Rand, context v1.RoleContext) access.Templates {
	groups, resources, verbs, names, urls := words()
	n := 1 + r.IntN(6)
	var list []v1.RoleTemplate
	for i := range n {
		tpl := template(context, fmt.Sprintf("t%d", i), nil)
		for j := i + 1; j < n; j++ {
			if r.IntN(3) == 0 {
				tpl.Spec.Inherits = append(tpl.Spec.Inherits, fmt.Sprintf("t%d", j))
			}
		}
		for range r.IntN(3) {
			one := rbacv1.PolicyRule{APIGroups: some(r, groups), Resources: some(r, resources), Verbs: some(r, verbs)}
			if r.IntN(3) == 0 {
				one.ResourceNames = some(r, names)
			}
			if context == v1.ContextCluster && r.IntN(5) == 0 {
				one = rbacv1.PolicyRule{NonResourceURLs: some(r, urls), Verbs: some(r, verbs)}
			}
			tpl.Spec.Rules = append(tpl.Spec.Rules, one)
		}
		list = append(list, tpl)
	}
	return access.Index(list)
}

// actions returns all actions with these words, and with one more word that no rule names.
func actions() []access.Action {
	_, _, _, names, _ := words()
	var all []access.Action
	for _, verb := range []string{"get", "create", "bind", "escalate"} {
		for _, group := range []string{"", "apps", "apps.catalog", "other"} {
			for _, resource := range []string{"pods", "pods/log", "deployments", "apps", "nodes", "nodes/log"} {
				for _, name := range append([]string{""}, names...) {
					all = append(all, access.Action{Verb: verb, Group: group, Resource: resource, Name: name})
				}
			}
		}
		for _, url := range []string{"/metrics", "/api", "/api/v1", "/healthz"} {
			all = append(all, access.Action{Verb: verb, URL: url})
		}
	}
	return all
}

// model is a minimal reference implementation: an action is allowed if any rule of any reachable template permits it.
func model(templates access.Templates, name string, a access.Action) bool {
	reachable := map[string]bool{}
	var reach func(string)
	reach = func(n string) {
		reachable[n] = true
		for _, parent := range templates[n].Spec.Inherits {
			reach(parent)
		}
	}
	reach(name)
	for n := range reachable {
		for _, r := range templates[n].Spec.Rules {
			if permits(r, a) {
				return true
			}
		}
	}
	return false
}

// permits implements RBAC as documented by Kubernetes, independently of the package.
func permits(r rbacv1.PolicyRule, a access.Action) bool {
	some := func(list []string, ok func(string) bool) bool { return slices.ContainsFunc(list, ok) }
	if !some(r.Verbs, func(v string) bool { return v == "*" || v == a.Verb }) {
		return false
	}
	if a.URL != "" {
		return some(r.NonResourceURLs, func(u string) bool {
			return u == a.URL || strings.HasSuffix(u, "*") && strings.HasPrefix(a.URL, strings.TrimSuffix(u, "*"))
		})
	}
	base, sub, hasSub := strings.Cut(a.Resource, "/")
	return some(r.APIGroups, func(g string) bool { return g == "*" || g == a.Group }) &&
		some(r.Resources, func(x string) bool {
			return x == "*" || x == base && !hasSub || hasSub && (x == base+"/"+sub || x == "*/"+sub)
		}) &&
		(len(r.ResourceNames) == 0 || some(r.ResourceNames, func(n string) bool { return n == a.Name }))
}

func TestFlattenedRoleAllowsExactlyTheUnionOfItsChain(t *testing.T) {
	all := actions()
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		context := []v1.RoleContext{v1.ContextCluster, v1.ContextProject}[r.IntN(2)]
		templates := family(r, context)
		role, err := access.Role(templates, "t0")
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, a := range all {
			got := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return access.Allows(r, a) })
			if want := model(templates, "t0", a); got != want {
				t.Fatalf("seed %d: %+v: the role says %t, the templates say %t", seed, a, got, want)
			}
		}
	}
}

func TestFlattenReturnsRulesInAStableOrder(t *testing.T) {
	for seed := range uint64(50) {
		templates := family(rand.New(rand.NewPCG(seed, 2)), v1.ContextCluster)
		first, err := access.Flatten(templates, "t0")
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if again, _ := access.Flatten(templates, "t0"); !reflect.DeepEqual(again, first) {
				t.Fatalf("seed %d: %v, then %v", seed, first, again)
			}
		}
	}
}
