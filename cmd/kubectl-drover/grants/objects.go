// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grants

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// check determines whether the role, the Cluster or Project, and the user exist. Users are checked only if they sign in
// with a password. The hub would accept a binding that refers to a missing object, but the binding would have no
// effect.
func (o *options) check(ctx context.Context, h *cli.Hub) (cli.Checked, error) {
	var found cli.Checked
	wanted, name, target := v1.ContextCluster, o.cluster, client.Object(&v1.Cluster{})
	if o.project != "" {
		wanted, name, target = v1.ContextProject, o.project, &v1.Project{}
	}
	if name != "" { // otherwise, the binding selects Clusters by their labels
		switch err := h.Get(ctx, client.ObjectKey{Namespace: h.Workspace, Name: name}, target); {
		case apierrors.IsForbidden(err):
			found.Unread = append(found.Unread, h.Workspace+"/"+name)
		case apierrors.IsNotFound(err):
			found.Mistakes = append(found.Mistakes, fmt.Sprintf("read the target in workspace %s: %v: use another workspace "+
				"with -w", h.Workspace, err))
		case err != nil:
			return found, fmt.Errorf("read the target in workspace %s: %w", h.Workspace, err)
		}
	}
	role := &v1.RoleTemplate{}
	switch err := h.Get(ctx, client.ObjectKey{Name: o.role}, role); {
	case apierrors.IsForbidden(err):
		found.Unread = append(found.Unread, "RoleTemplate "+o.role)
	case apierrors.IsNotFound(err):
		found.Mistakes = append(found.Mistakes, fmt.Sprintf("the hub has no RoleTemplate %s: \"kubectl get roletemplates\" "+
			"lists them", cli.Visible(o.role)))
	case err != nil:
		return found, fmt.Errorf("read RoleTemplate %s: %w", cli.Visible(o.role), err)
	case role.Spec.Context != wanted:
		found.Mistakes = append(found.Mistakes, fmt.Sprintf("RoleTemplate %s has the context %s and cannot be granted here, "+
			"where %s is needed", cli.Visible(o.role), role.Spec.Context, wanted))
	}
	err := o.checkUser(ctx, h, &found)
	return found, err
}

// checkUser adds a warning if a user who should sign in with a password does not exist. It cannot check users of other
// providers, because the hub has no record of them.
func (o *options) checkUser(ctx context.Context, h *cli.Hub, found *cli.Checked) error {
	name, local := strings.CutPrefix(o.subject.Name, v1.PrincipalPrefixLocal)
	if !local || o.subject.Kind != v1.SubjectUser {
		return nil
	}
	switch err := h.Get(ctx, client.ObjectKey{Name: name}, &v1.User{}); {
	case apierrors.IsForbidden(err):
		found.Unread = append(found.Unread, "User "+name)
	case apierrors.IsNotFound(err):
		found.Warnings = append(found.Warnings, fmt.Sprintf("the hub has no User %s: \"kubectl drover user create %s\" "+
			"creates it, and users of a provider are called like github:%s", cli.Visible(name), cli.Visible(name),
			cli.Visible(name)))
	case err != nil:
		return fmt.Errorf("read User %s: %w", cli.Visible(name), err)
	}
	return nil
}

// bindings returns the bindings in the workspace. The flags select the kind of the bindings.
func (o *options) bindings(ctx context.Context, h *cli.Hub) ([]client.Object, error) {
	list := client.ObjectList(&v1.ClusterRoleTemplateBindingList{})
	if o.project != "" {
		list = &v1.ProjectRoleTemplateBindingList{}
	}
	if err := h.List(ctx, list, h.InWorkspace()); err != nil {
		return nil, fmt.Errorf("list bindings of %s: %w", h.Workspace, err)
	}
	var found []client.Object
	err := meta.EachListItem(list, func(binding runtime.Object) error {
		found = append(found, binding.(client.Object))
		return nil
	})
	return found, err
}

// grants reports whether a binding grants exactly the rights that the flags describe, regardless of when the binding
// expires.
func (o *options) grants(binding client.Object) bool {
	switch b := binding.(type) {
	case *v1.ProjectRoleTemplateBinding:
		return b.Spec.ProjectName == o.project && b.Spec.RoleTemplateName == o.role && b.Spec.Subject == o.subject
	case *v1.ClusterRoleTemplateBinding:
		target, err := o.target()
		return err == nil && equality.Semantic.DeepEqual(b.Spec.ClusterTarget, target) &&
			b.Spec.RoleTemplateName == o.role && b.Spec.Subject == o.subject
	}
	return false
}

func endOf(binding client.Object) *metav1.Time {
	switch b := binding.(type) {
	case *v1.ProjectRoleTemplateBinding:
		return b.Spec.ExpiresAt
	case *v1.ClusterRoleTemplateBinding:
		return b.Spec.ExpiresAt
	}
	return nil
}

func setEnd(binding client.Object, end *metav1.Time) {
	switch b := binding.(type) {
	case *v1.ProjectRoleTemplateBinding:
		b.Spec.ExpiresAt = end
	case *v1.ClusterRoleTemplateBinding:
		b.Spec.ExpiresAt = end
	}
}
