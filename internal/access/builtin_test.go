// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/test/testkit"
)

// builtins returns the role templates in config/roles/templates.
func builtins(t *testing.T) access.Templates {
	t.Helper()
	files, err := filepath.Glob(testkit.Path(t, "config/roles/templates/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var list []v1.RoleTemplate
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			template := v1.RoleTemplate{}
			if err := yaml.Unmarshal(document, &template); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if template.Kind != "RoleTemplate" {
				continue
			}
			if err := yaml.UnmarshalStrict(document, &template); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			list = append(list, template)
		}
	}
	return access.Index(list)
}

// views reports whether a template promises to change nothing.
func views(name string) bool {
	return strings.HasSuffix(name, "-view") || strings.HasSuffix(name, "-viewer") || name == "cluster-member"
}

func TestBuiltInRoleTemplates(t *testing.T) {
	templates := builtins(t)
	t.Run("all templates exist", func(t *testing.T) {
		want := strings.Fields("cluster-owner cluster-member cluster-viewer project-owner project-member project-viewer")
		for _, part := range strings.Fields("workloads ingress services secrets configmaps volumes serviceaccounts monitoring") {
			want = append(want, part+"-view", part+"-manage")
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(templates)); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("all templates can be granted in their context", func(t *testing.T) {
		for name, template := range templates {
			if _, err := access.Flatten(templates, name); err != nil {
				t.Error(err)
			}
			if strings.HasPrefix(name, "cluster-") != (template.Spec.Context == v1.ContextCluster) {
				t.Errorf("%s has context %s, want the other context", name, template.Spec.Context)
			}
		}
	})
	t.Run("only the cluster's owner has a wildcard", func(t *testing.T) {
		for name := range templates {
			rules, _ := access.Flatten(templates, name)
			for _, r := range rules {
				all := slices.Concat(r.APIGroups, r.Resources, r.Verbs, r.NonResourceURLs)
				if name != "cluster-owner" && slices.Contains(all, "*") {
					t.Errorf("%s: %v, want \"*\" only in cluster-owner", name, r)
				}
			}
		}
	})
	t.Run("viewers change nothing, and read Secrets only if the name of the role says so", func(t *testing.T) {
		for name := range templates {
			if !views(name) {
				continue
			}
			rules, _ := access.Flatten(templates, name)
			for _, r := range rules {
				for _, verb := range r.Verbs {
					if !slices.Contains([]string{"get", "list", "watch"}, verb) {
						t.Errorf("%s: %v, want verbs that only read", name, r)
					}
				}
				for _, resource := range r.Resources {
					// On the first four, "get" is enough to act, over a WebSocket.
					acts := []string{"pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy",
						"serviceaccounts/token"}
					if slices.Contains(acts, resource) || resource == "secrets" && name != "secrets-view" {
						t.Errorf("%s: %v, want no resource for actions, and no Secrets", name, r)
					}
				}
			}
		}
	})
	t.Run("no project role gives access outside of the project", func(t *testing.T) {
		for name, template := range templates {
			for _, a := range []access.Action{
				{Verb: "create", Resource: "serviceaccounts/token"}, {Verb: "impersonate", Resource: "serviceaccounts"},
				{Verb: "update", Resource: "resourcequotas"}, {Verb: "update", Resource: "limitranges"},
				{Verb: "update", Resource: "namespaces"},
				{Verb: "escalate", Group: "rbac.authorization.k8s.io", Resource: "roles"},
				{Verb: "bind", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
				{Verb: "create", Resource: "endpoints"}, {Verb: "create", Resource: "pods/binding"},
				{Verb: "update", Resource: "pods/status"},
			} {
				rules, _ := access.Flatten(templates, name)
				for _, r := range rules {
					if template.Spec.Context == v1.ContextProject && access.Allows(r, a) {
						t.Errorf("%s allows %+v by %v", name, a, r)
					}
				}
			}
		}
	})
	t.Run("managers may view, and owners have the rights of members", func(t *testing.T) {
		inherits := map[string]string{"project-member": "project-viewer", "project-owner": "project-member",
			"cluster-viewer": "cluster-member"}
		for name := range templates {
			if part, manages := strings.CutSuffix(name, "-manage"); manages {
				inherits[name] = part + "-view"
			}
		}
		for name, parent := range inherits {
			if !slices.Contains(templates[name].Spec.Inherits, parent) {
				t.Errorf("%s does not inherit %s, want it to", name, parent)
			}
		}
	})
	t.Run("the API server accepts them and knows their resources",
		func(t *testing.T) { testBuiltInsOnAServer(t, templates) })
}

// addOns are groups that a plain API server does not serve. Their resources that the templates name are namespaced,
// except the listed ones.
func addOns() map[string][]string {
	return map[string][]string{"metrics.k8s.io": {"nodes"}, "gateway.networking.k8s.io": {"gatewayclasses"},
		"monitoring.coreos.com": nil}
}

func testBuiltInsOnAServer(t *testing.T, templates access.Templates) {
	env := testkit.Shared(t)
	served := resources(t, env)
	for name, template := range templates {
		if err := env.Client.Create(t.Context(), template.DeepCopy(), client.DryRunAll); err != nil {
			t.Error(err)
		}
		role, err := access.Role(templates, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := env.Client.Create(t.Context(), role, client.DryRunAll); err != nil {
			t.Error(err)
		}
		for _, r := range role.Rules {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					if group == "*" {
						continue
					}
					namespaced, known := served[group+"/"+resource]
					if clusterWide, addOn := addOns()[group]; addOn {
						namespaced, known = !slices.Contains(clusterWide, resource), true
					}
					if !known {
						t.Errorf("%s: no resource %q in group %q, want it to exist", name, resource, group)
					}
					// A request to get a namespace by name is authorized in that namespace, so a RoleBinding there can grant it. Other
					// verbs cannot be granted in this way.
					itself := resource == "namespaces" && slices.Equal(r.Verbs, []string{"get"})
					if !namespaced && !itself && template.Spec.Context == v1.ContextProject {
						t.Errorf("%s is for projects and names %s, want only namespaced resources", name, resource)
					}
				}
			}
		}
	}
}

// resources returns the resources of an API server as "group/resource", and whether they are namespaced.
func resources(t *testing.T, env *testkit.Env) map[string]bool {
	t.Helper()
	c, err := discovery.NewDiscoveryClientForConfig(env.Config)
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := c.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, list := range lists {
		group, _, hasGroup := strings.Cut(list.GroupVersion, "/")
		if !hasGroup {
			group = ""
		}
		for _, resource := range list.APIResources {
			found[group+"/"+resource.Name] = resource.Namespaced
		}
	}
	return found
}
