// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"slices"
	"strings"
	"testing"

	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// lacking returns the verbs on a resource, for all names, that no rule grants.
func lacking(rules []rbacv1ac.PolicyRuleApplyConfiguration, group, resource string, verbs ...string) []string {
	return slices.DeleteFunc(verbs, func(verb string) bool {
		return slices.ContainsFunc(rules, func(r rbacv1ac.PolicyRuleApplyConfiguration) bool {
			return len(r.ResourceNames) == 0 && slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) &&
				slices.Contains(r.Verbs, verb)
		})
	})
}

func TestAgentHasTheRightsForAllKindsInSets(t *testing.T) {
	t.Parallel()
	rules := map[v1.AgentProfile][]rbacv1ac.PolicyRuleApplyConfiguration{}
	for _, profile := range []v1.AgentProfile{v1.ProfileFull, v1.ProfileReadOnly} {
		role, is := clusterRights(profile)[0].(*rbacv1ac.ClusterRoleApplyConfiguration)
		if !is {
			t.Fatalf("the first object of %s is a %T, want a ClusterRole", profile, clusterRights(profile)[0])
		}
		rules[profile] = role.Rules
	}
	for _, kind := range protocol.SetKinds() {
		group, _, found := strings.Cut(kind.APIVersion, "/")
		if !found {
			group = "" // core
		}
		verbs := []string{"get", "list", "watch", "create", "patch"}
		if kind.Name != "Namespace" { // namespaces are joined and never deleted
			verbs = append(verbs, "delete")
		}
		if got := lacking(rules[v1.ProfileFull], group, kind.Resource, verbs...); len(got) > 0 {
			t.Errorf("sets contain objects of the kind %s, but the agent lacks the verbs %v: add them to delivering", kind.Name,
				got)
		}
		if got := lacking(rules[v1.ProfileReadOnly], group, kind.Resource, "create", "update", "patch",
			"delete"); len(got) < 4 {
			t.Errorf("a ReadOnly agent lacks only %v of the rights to change objects of the kind %s, want it to lack all", got,
				kind.Name)
		}
	}
	if got := lacking(rules[v1.ProfileFull], "", "namespaces", "delete"); len(got) == 0 {
		t.Error("the agent may delete any namespace, want only its own")
	}
	if got := lacking(rules[v1.ProfileFull], "rbac.authorization.k8s.io", "clusterroles", "bind",
		"escalate"); len(got) > 0 {
		t.Errorf("sets grant rights that the agent does not have, but it lacks the verbs %v on ClusterRoles", got)
	}
}
