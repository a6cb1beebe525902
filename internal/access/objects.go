// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/set"
)

// Role returns the ClusterRole that represents a template in a member. For an external template, it returns nil and no
// error, because the member already has the role.
func Role(templates Templates, name string) (*rbacv1.ClusterRole, error) {
	template, found := templates[name]
	if found && template.Spec.External != "" {
		return nil, nil
	}
	rules, err := Flatten(templates, name)
	if err != nil {
		return nil, err
	}
	return &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: roleName(template), Labels: set.Labels(set.ID(set.Role, name))},
		Rules:      rules,
	}, nil
}

// ClusterBinding returns the ClusterRoleBinding that represents a binding in each member that the binding targets.
// Its name includes the role, because Kubernetes does not allow a binding's role to change. If the role changes, a
// binding with a new name is created, and the old binding is then removed. Every error is an *Error.
func ClusterBinding(templates Templates, b *v1.ClusterRoleTemplateBinding) (*rbacv1.ClusterRoleBinding, error) {
	role, err := boundRole(templates, b.Spec.RoleTemplateName, v1.ContextCluster)
	if err != nil {
		return nil, err
	}
	return &rbacv1.ClusterRoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:" + b.Name + ":" + role.Name,
			Labels: set.Labels(set.ID(set.ClusterBinding, b.Name))},
		RoleRef:  role,
		Subjects: []rbacv1.Subject{subject(b.Spec.Subject)},
	}, nil
}

// BaselineBinding returns the ClusterRoleBinding that grants the rights of a Baseline's role template to the Baseline's
// user in each member. Every error is an *Error.
func BaselineBinding(templates Templates, b *v1.Baseline) (*rbacv1.ClusterRoleBinding, error) {
	template, found := templates[b.Spec.RoleTemplateName]
	if found && template.Spec.Context != v1.ContextCluster {
		return nil, refuse(v1.ReasonContextMismatch,
			"role template %s has context %s: a Baseline needs a template with context %s",
			template.Name, template.Spec.Context, v1.ContextCluster)
	}
	role, err := boundRole(templates, b.Spec.RoleTemplateName, v1.ContextCluster)
	if err != nil {
		return nil, err
	}
	user := baseline.User(b.Name)
	return &rbacv1.ClusterRoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{
			Name: user + ":" + role.Name, Labels: set.Labels(set.ID(set.Baseline, b.Name)),
		},
		RoleRef:  role,
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, nil
}

// ProjectBinding returns the RoleBinding that represents a binding in a member. The RoleBinding has no namespace,
// because set.Content.Expand uses it as a template and creates a copy in each of the project's namespaces. Every error
// is an *Error.
func ProjectBinding(templates Templates, b *v1.ProjectRoleTemplateBinding) (*rbacv1.RoleBinding, error) {
	role, err := boundRole(templates, b.Spec.RoleTemplateName, v1.ContextProject)
	if err != nil {
		return nil, err
	}
	return &rbacv1.RoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: "drover:prtb:" + b.Name + ":" + role.Name,
			Labels: set.Labels(set.ID(set.ProjectBinding, b.Name))},
		RoleRef:  role,
		Subjects: []rbacv1.Subject{subject(b.Spec.Subject)},
	}, nil
}

// boundRole returns a reference to the ClusterRole for a template, for use in a binding with the given context.
func boundRole(templates Templates, name string, context v1.RoleContext) (rbacv1.RoleRef, error) {
	template, found := templates[name]
	if !found {
		return rbacv1.RoleRef{}, refuse(v1.ReasonRoleTemplateNotFound, "role template %s does not exist", name)
	}
	if template.Spec.Context != context {
		return rbacv1.RoleRef{}, refuse(v1.ReasonContextMismatch, "role template %s has context %s: bind it with a %s",
			name, template.Spec.Context, bindingKind(template.Spec.Context))
	}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleName(template)}
	if template.Spec.External != "" {
		role.Name = template.Spec.External
		return role, nil
	}
	// If a role cannot be created, it must not be bound either, because the member might still have an older role with
	// that name.
	_, err := Sources(templates, name)
	return role, err
}

func bindingKind(context v1.RoleContext) string {
	if context == v1.ContextCluster {
		return KindClusterBinding
	}
	return KindProjectBinding
}

// Kinds of bindings.
const (
	KindClusterBinding = "ClusterRoleTemplateBinding"
	KindProjectBinding = "ProjectRoleTemplateBinding"
)

func subject(s v1.Subject) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: string(s.Kind), Name: s.Name}
}

// roleName returns the name of the ClusterRole for a template that is not external. The parts of the name are separated
// by colons, which the names of templates cannot contain. The name includes the context, so a binding never grants the
// rules that its template has in a different context, not even temporarily.
func roleName(t *v1.RoleTemplate) string {
	return set.RolePrefix + strings.ToLower(string(t.Spec.Context)) + ":" + t.Name
}
