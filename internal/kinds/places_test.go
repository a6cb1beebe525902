// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestTheGuideListsTheKindsOfTheStream(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guide/subscribe.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `kind` \\| ([^.]+)\\.").FindSubmatch(guide)
	if row == nil {
		t.Fatal("docs/guide/subscribe.md has no row for the parameter kind, want one that lists all kinds")
	}
	var documented, want []string
	for _, resource := range regexp.MustCompile("`([a-z]+)`").FindAllSubmatch(row[1], -1) {
		documented = append(documented, string(resource[1]))
	}
	for _, kind := range All() {
		want = append(want, kind.Resource)
	}
	if !slices.Equal(documented, want) {
		t.Errorf("docs/guide/subscribe.md lists the kinds %q, want %q", documented, want)
	}
}

// clusterRoles returns the rules of the ClusterRoles in a file in config, by name.
func clusterRoles(t *testing.T, name string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	file, err := os.Open("../../config/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	roles := map[string][]rbacv1.PolicyRule{}
	for documents := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		role := &rbacv1.ClusterRole{}
		if err := documents.Decode(role); errors.Is(err, io.EOF) {
			return roles
		} else if err != nil {
			t.Fatalf("read %s: %v", name, err)
		}
		if role.Kind == "ClusterRole" {
			roles[role.Name] = role.Rules
		}
	}
}

// missing returns the verbs that the rules do not allow for all objects of a resource of Drover.
func missing(rules []rbacv1.PolicyRule, resource string, verbs ...string) []string {
	return slices.DeleteFunc(verbs, func(verb string) bool {
		return slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
			return slices.Contains(rule.APIGroups, v1.GroupVersion.Group) && slices.Contains(rule.Resources, resource) &&
				slices.Contains(rule.Verbs, verb) && len(rule.ResourceNames) == 0
		})
	})
}

func TestTheManagerMayWatchEachKindAndWriteItsStatus(t *testing.T) {
	rules := clusterRoles(t, "rbac/role.yaml")["drover-manager"]
	for _, kind := range All() {
		if verbs := missing(rules, kind.Resource, "get", "list", "watch"); len(verbs) > 0 {
			t.Errorf("the ClusterRole drover-manager lacks the verbs %q for %s", verbs, kind.Resource)
		}
		if verbs := missing(rules, kind.Resource+"/status", "get", "patch"); len(verbs) > 0 {
			t.Errorf("the ClusterRole drover-manager lacks the verbs %q for %s/status", verbs, kind.Resource)
		}
	}
}

func TestTheRolesOfWorkspacesAllowReadingEachKind(t *testing.T) {
	roles := clusterRoles(t, "roles/workspace.yaml")
	read, write := []string{"get", "list", "watch"}, []string{"create", "update", "patch", "delete"}
	for role, verbs := range map[string][]string{
		"drover-workspace-admin": slices.Concat(read, write), "drover-workspace-editor": read,
		"drover-workspace-viewer": read,
	} {
		for _, kind := range All() {
			if kind.ClusterScoped {
				continue
			}
			if lacks := missing(roles[role], kind.Resource, slices.Clone(verbs)...); len(lacks) > 0 {
				t.Errorf("the ClusterRole %s lacks the verbs %q for %s", role, lacks, kind.Resource)
			}
			if lacks := missing(roles[role], kind.Resource+"/status", "get"); len(lacks) > 0 {
				t.Errorf("the ClusterRole %s does not allow reading %s/status", role, kind.Resource)
			}
		}
	}
}
