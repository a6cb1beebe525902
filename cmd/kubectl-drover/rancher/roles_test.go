// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

func template(name, context string, change func(*RoleTemplate)) RoleTemplate {
	rt := RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Context: context}
	change(&rt)
	return rt
}

func rule(verb, group, resource string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}}
}

// text returns the rules of a role template and the role templates that it inherits.
func (c *conversion) text(name string) string {
	for _, o := range c.out {
		rt, ok := o.Object.(*v1.RoleTemplate)
		if !ok || rt.Name != name {
			continue
		}
		var parts []string
		for _, r := range rt.Spec.Rules {
			parts = append(parts, strings.Join(r.Verbs, ",")+" "+strings.Join(append(slices.Clone(r.Resources), r.NonResourceURLs...), ",")+"."+strings.Join(r.APIGroups, ","))
		}
		return fmt.Sprintf("%s %s external=%s inherits=%s locked=%t", rt.Spec.Context, strings.Join(parts, "; "), rt.Spec.External, strings.Join(rt.Spec.Inherits, ","), rt.Spec.Locked)
	}
	return ""
}

func TestRoleTemplates(t *testing.T) {
	builtin := func(rt *RoleTemplate) { rt.Builtin = true; rt.Rules = []rbacv1.PolicyRule{rule("get", "", "pods")} }
	external := func(rt *RoleTemplate) { rt.Builtin, rt.External = true, true }
	tests := map[string]struct {
		role     RoleTemplate
		context  v1.RoleContext
		others   []RoleTemplate
		want     string
		text     string
		reported string
	}{
		"Rancher's own has Drover's in its place":       {role: template("read-only", "project", builtin), context: "Project", want: "project-viewer", reported: "compare them"},
		"one that only has its name does not":           {role: template("read-only", "project", func(rt *RoleTemplate) { rt.Rules = []rbacv1.PolicyRule{rule("*", "", "secrets")} }), context: "Project", want: "rancher-read-only", text: "Project * secrets. external= inherits= locked=false"},
		"Rancher's own without Drover's is converted":   {role: template("storage-manage", "cluster", builtin), context: "Cluster", want: "rancher-storage-manage", text: "Cluster get pods. external= inherits= locked=false"},
		"what is about Rancher's objects is on the hub": {role: template("projects-create", "cluster", builtin), context: "Cluster", reported: "rights on the hub"},
		"create-ns":                                       {role: template("create-ns", "project", builtin), context: "Project", reported: "create namespaces"},
		"an external one is bound as it is":               {role: template("edit", "project", external), context: "Project", want: "rancher-edit", text: "Project  external=edit inherits= locked=false"},
		"an external one that Drover makes itself is not": {role: template("drover:x", "project", external), context: "Project", reported: "does not bind a ClusterRole with that name"},
		"a locked one stays locked":                       {role: template("rt", "project", func(rt *RoleTemplate) { builtin(rt); rt.Builtin, rt.Locked = false, true }), context: "Project", want: "rancher-rt", text: "Project get pods. external= inherits= locked=true", reported: "verb escalate"},
		"one for clusters is not bound in a project":      {role: template("rt", "cluster", builtin), context: "Project", reported: "of the other context"},
		"one for projects is not bound in a cluster":      {role: template("rt", "project", builtin), context: "Cluster", reported: "of the other context"},
		"one without a context gets that of the binding":  {role: template("rt", "", builtin), context: "Cluster", want: "rancher-rt-cluster", text: "Cluster get pods. external= inherits= locked=false"},
		"Rancher's groups are taken out of a rule": {role: template("rt", "project", func(rt *RoleTemplate) {
			rt.Rules = []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"management.cattle.io", "apps"}, Resources: []string{"x"}}}
		}), context: "Project", want: "rancher-rt", text: "Project get x.apps external= inherits= locked=false", reported: "have no meaning in a member"},
		"a rule without a group grants nothing": {role: template("rt", "project", func(rt *RoleTemplate) {
			rt.Rules = []rbacv1.PolicyRule{{Verbs: []string{"get"}, Resources: []string{"x"}}}
		}), context: "Project", reported: "It grants nothing in a member"},
		"a rule without a verb grants nothing": {role: template("rt", "project", func(rt *RoleTemplate) {
			rt.Rules = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"x"}}}
		}), context: "Project", reported: "It grants nothing in a member"},
		"URLs in a cluster are a rule of their own": {role: template("rt", "cluster", func(rt *RoleTemplate) {
			rt.Rules = []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"x"}, NonResourceURLs: []string{"/m"}}}
		}), context: "Cluster", want: "rancher-rt", text: "Cluster get x.; get /m. external= inherits= locked=false"},
		"URLs in a project are refused": {role: template("rt", "project", func(rt *RoleTemplate) {
			rt.Rules = []rbacv1.PolicyRule{rule("get", "", "x"), {Verbs: []string{"get"}, NonResourceURLs: []string{"/m"}}}
		}), context: "Project", want: "rancher-rt", text: "Project get x. external= inherits= locked=false", reported: "only applies to whole clusters"},
		"control characters are refused": {role: template("rt", "project", func(rt *RoleTemplate) {
			rt.Rules = []rbacv1.PolicyRule{rule("get", "", "x"), rule("get", "", "y\x1b[2J")}
		}), context: "Project", want: "rancher-rt", text: "Project get x. external= inherits= locked=false", reported: "control characters"},
		"one that inherits Kubernetes' own inherits Drover's": {role: template("rt", "project", func(rt *RoleTemplate) { rt.RoleTemplateNames = []string{"edit"} }), context: "Project", others: []RoleTemplate{template("edit", "project", external)}, want: "rancher-rt", text: "Project  external= inherits=project-member locked=false", reported: "compare their rights"},
		"one that inherits another external one lacks it":     {role: template("rt", "project", func(rt *RoleTemplate) { builtin(rt); rt.Builtin = false; rt.RoleTemplateNames = []string{"mine"} }), context: "Project", others: []RoleTemplate{template("mine", "project", func(rt *RoleTemplate) { rt.External = true })}, want: "rancher-rt", text: "Project get pods. external= inherits= locked=false", reported: "without those rights"},
		"inherited ones are written too":                      {role: template("rt", "cluster", func(rt *RoleTemplate) { rt.RoleTemplateNames = []string{"a", "secrets-view"} }), context: "Cluster", others: []RoleTemplate{template("a", "project", func(rt *RoleTemplate) { rt.Rules = []rbacv1.PolicyRule{rule("get", "", "x")} }), template("secrets-view", "project", builtin)}, want: "rancher-rt", text: "Cluster  external= inherits=rancher-a,secrets-view locked=false"},
		"a project's does not inherit a cluster's": {role: template("rt", "project", func(rt *RoleTemplate) {
			builtin(rt)
			rt.Builtin = false
			rt.RoleTemplateNames = []string{"cluster-owner"}
		}), context: "Project", others: []RoleTemplate{template("cluster-owner", "cluster", builtin)}, want: "rancher-rt", text: "Project get pods. external= inherits= locked=false", reported: "without those rights"},
		"one that inherits what is gone lacks it": {role: template("rt", "project", func(rt *RoleTemplate) { rt.RoleTemplateNames = []string{"gone"} }), context: "Project", reported: "without those rights"},
		"a circle ends": {role: template("rt", "project", func(rt *RoleTemplate) { builtin(rt); rt.Builtin = false; rt.RoleTemplateNames = []string{"rt"} }), context: "Project", want: "rancher-rt", text: "Project get pods. external= inherits= locked=false", reported: "inherits itself"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConversion(Objects{RoleTemplates: append(tt.others, tt.role)}, Options{})
			if got := c.role(tt.role.Name, tt.context, "a binding"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if got := c.text(tt.want); got != tt.text {
				t.Errorf("got %q, want %q", got, tt.text)
			}
			reported := slices.ContainsFunc(c.report.Findings, func(f Finding) bool { return strings.Contains(f.Reason, tt.reported) })
			if tt.reported == "" && len(c.report.Findings) > 0 || tt.reported != "" && !reported {
				t.Errorf("reported %+v, want %q", c.report.Findings, tt.reported)
			}
		})
	}
}

// The counterparts must exist and have the same context, because a binding to a missing role template grants nothing.
func TestCounterpartsAreAmongTheRoleTemplatesThatDroverBrings(t *testing.T) {
	contexts := map[string]v1.RoleContext{}
	for _, rt := range brought(t) {
		contexts[rt.Name] = rt.Spec.Context
	}
	for _, context := range []v1.RoleContext{v1.ContextCluster, v1.ContextProject} {
		for from, to := range counterparts(context) {
			if contexts[to] != context {
				t.Errorf("%s becomes %s, which is for %q and not for %s", from, to, contexts[to], context)
			}
		}
	}
	for from, to := range inPlaceOf() {
		if contexts[to] == "" {
			t.Errorf("%s becomes %s, which is not there", from, to)
		}
	}
}
