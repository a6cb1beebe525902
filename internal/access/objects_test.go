// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
)

func clusterBinding(name, role string, to v1.Subject, target v1.ClusterTarget) v1.ClusterRoleTemplateBinding {
	return v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
		Spec: v1.ClusterRoleTemplateBindingSpec{ClusterTarget: target, RoleTemplateName: role, Subject: to}}
}

func projectBinding(name, role, project string, to v1.Subject) v1.ProjectRoleTemplateBinding {
	return v1.ProjectRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
		Spec: v1.ProjectRoleTemplateBindingSpec{ProjectName: project, RoleTemplateName: role, Subject: to}}
}

func user(name string) v1.Subject  { return v1.Subject{Kind: v1.SubjectUser, Name: name} }
func group(name string) v1.Subject { return v1.Subject{Kind: v1.SubjectGroup, Name: name} }

func TestObjects(t *testing.T) {
	templates := index(
		template(v1.ContextCluster, "owner", nil, rule("*", "*", "*")), external(v1.ContextCluster, "admin", "cluster-admin"),
		template(v1.ContextProject, "deployer", nil, rule("apps", "deployments", "*")),
		external(v1.ContextProject, "editor", "edit"),
		template(v1.ContextCluster, "broken", []string{"broken"}),
	)
	labels := func(set string) map[string]string {
		return map[string]string{"app.kubernetes.io/managed-by": "drover", "cluster.drover.dev/set": set}
	}
	in := v1.ClusterTarget{ClusterName: "prod"}
	t.Run("a template is a ClusterRole with its rules and no aggregation", func(t *testing.T) {
		got, err := access.Role(templates, "deployer")
		want := &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1",
			Kind: "ClusterRole"},
			ObjectMeta: metav1.ObjectMeta{Name: "drover:project:deployer", Labels: labels("role.deployer")},
			Rules:      []rbacv1.PolicyRule{rule("apps", "deployments", "*")}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the ClusterRole is %+v, %v, want a different one", got, err)
		}
	})
	t.Run("another context gives another ClusterRole, to which existing bindings do not refer", func(t *testing.T) {
		role := func(c v1.RoleContext) *rbacv1.ClusterRole {
			got, err := access.Role(index(template(c, "deployer", nil, rule("apps", "deployments", "*"))), "deployer")
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		b := projectBinding("devs", "deployer", "web", group("github:dev"))
		bound, err := access.ProjectBinding(templates, &b)
		if err != nil || bound.RoleRef.Name != role(v1.ContextProject).Name ||
			bound.RoleRef.Name == role(v1.ContextCluster).Name {
			t.Errorf("the RoleBinding is %+v, %v, want it bound to the role of the project's context", bound, err)
		}
	})
	t.Run("an external template creates no object", func(t *testing.T) {
		if got, err := access.Role(templates, "admin"); got != nil || err != nil {
			t.Errorf("the role of an external template is %+v, %v, want none", got, err)
		}
	})
	t.Run("a cluster binding is a ClusterRoleBinding", func(t *testing.T) {
		b := clusterBinding("alice", "owner", user("github:alice"), in)
		got, err := access.ClusterBinding(templates, &b)
		want := &rbacv1.ClusterRoleBinding{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1",
			Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:alice:drover:cluster:owner", Labels: labels("crtb.alice")},
			RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "drover:cluster:owner"},
			Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: "github:alice"}}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the ClusterRoleBinding is %+v, %v, want a different one", got, err)
		}
	})
	t.Run("a Baseline's binding grants the template's rights to the Baseline's user", func(t *testing.T) {
		b := v1.Baseline{ObjectMeta: metav1.ObjectMeta{Name: "cni"}, Spec: v1.BaselineSpec{RoleTemplateName: "owner"}}
		got, err := access.BaselineBinding(templates, &b)
		want := &rbacv1.ClusterRoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "drover:baseline:cni:drover:cluster:owner", Labels: labels("baseline.cni"),
			},
			RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "drover:cluster:owner"},
			Subjects: []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: "drover:baseline:cni"}}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the ClusterRoleBinding is %+v, %v, want %+v", got, err, want)
		}
	})
	t.Run("a Baseline uses only templates of clusters", func(t *testing.T) {
		for role, reason := range map[string]string{
			"deployer": v1.ReasonContextMismatch, "absent": v1.ReasonRoleTemplateNotFound,
		} {
			b := v1.Baseline{ObjectMeta: metav1.ObjectMeta{Name: "cni"}, Spec: v1.BaselineSpec{RoleTemplateName: role}}
			_, err := access.BaselineBinding(templates, &b)
			var refused *access.Error
			if !errors.As(err, &refused) || refused.Reason != reason {
				t.Errorf("%s: got %v, want reason %s", role, err, reason)
			}
		}
	})
	t.Run("a project binding is a RoleBinding without a namespace", func(t *testing.T) {
		b := projectBinding("devs", "deployer", "web", group("github:acme/web"))
		got, err := access.ProjectBinding(templates, &b)
		want := &rbacv1.RoleBinding{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1",
			Kind: "RoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: "drover:prtb:devs:drover:project:deployer", Labels: labels("prtb.devs")},
			RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole",
				Name: "drover:project:deployer"},
			Subjects: []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: "github:acme/web"}}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the RoleBinding is %+v, %v, want a different one", got, err)
		}
	})
	t.Run("bindings of external templates refer to the member's own role", func(t *testing.T) {
		c, p := clusterBinding("a", "admin", user("a"), in), projectBinding("b", "editor", "web", user("a"))
		crb, err := access.ClusterBinding(templates, &c)
		if err != nil || crb.RoleRef.Name != "cluster-admin" {
			t.Errorf("the ClusterRoleBinding is %v, %v, want it bound to cluster-admin", crb, err)
		}
		rb, err := access.ProjectBinding(templates, &p)
		if err != nil || rb.RoleRef.Name != "edit" {
			t.Errorf("the RoleBinding is %v, %v, want it bound to edit", rb, err)
		}
	})
	t.Run("another role gives another object, because a binding's role is immutable", func(t *testing.T) {
		a, b := clusterBinding("x", "owner", user("a"), in), clusterBinding("x", "admin", user("a"), in)
		before, _ := access.ClusterBinding(templates, &a)
		after, _ := access.ClusterBinding(templates, &b)
		if before.Name == after.Name {
			t.Errorf("both roles are named %v, want two names", before.Name)
		}
	})
	t.Run("a role that cannot be granted is not bound", func(t *testing.T) {
		for _, tt := range []struct{ role, reason, message string }{
			{"absent", v1.ReasonRoleTemplateNotFound, "absent does not exist"},
			{"deployer", v1.ReasonContextMismatch, "bind it with a ProjectRoleTemplateBinding"},
			{"editor", v1.ReasonContextMismatch, "bind it with a ProjectRoleTemplateBinding"},
			{"broken", v1.ReasonInheritanceCycle, "broken → broken"},
		} {
			b := clusterBinding("x", tt.role, user("a"), in)
			got, err := access.ClusterBinding(templates, &b)
			wantRefusal(t, got == nil, err, tt.reason, tt.message)
		}
		b := projectBinding("x", "owner", "web", user("a"))
		got, err := access.ProjectBinding(templates, &b)
		wantRefusal(t, got == nil, err, v1.ReasonContextMismatch, "bind it with a ClusterRoleTemplateBinding")
	})
	t.Run("the longest names give valid labels", func(t *testing.T) {
		long := strings.Repeat("a", 63)
		b := projectBinding(long, long, "web", user("a"))
		got, err := access.ProjectBinding(index(template(v1.ContextProject, long, nil, rule("", "pods", "get"))), &b)
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range got.Labels {
			if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
				t.Errorf("the label's value is invalid: %s: %v", value, problems)
			}
		}
		if len(got.Name) > 253 {
			t.Errorf("the name has %v, want at most 253 characters", len(got.Name))
		}
	})
}

func wantRefusal(t *testing.T, nothing bool, err error, reason, message string) {
	t.Helper()
	refused := (*access.Error)(nil)
	if !nothing || !errors.As(err, &refused) || refused.Reason != reason || !strings.Contains(err.Error(), message) {
		t.Errorf("nothing bound: %t, %+v; want %s with %q", nothing, err, reason, message)
	}
}
