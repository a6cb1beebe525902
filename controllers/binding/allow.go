// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/owned"
)

// The manager already has all rights that it grants here, so it does not need the escalate and bind verbs.
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,verbs=get;list;watch;create;patch;delete

// allow allows a principal to view the Clusters that the binding applies to. It creates a Role and a RoleBinding that
// the binding owns.
func (r *Reconciler[T, B]) allow(ctx context.Context, b B, members []types.NamespacedName) error {
	meta := metav1.ObjectMeta{Namespace: b.GetNamespace(), Name: "drover:" + r.kind + ":" + b.GetName()}
	role, binding := &rbacv1.Role{ObjectMeta: meta}, &rbacv1.RoleBinding{ObjectMeta: meta}
	principal, onHub := strings.CutPrefix(b.Principal().Name, identity.HubPrefix)
	if !onHub || principal == "" || unauthenticated(principal) || len(members) == 0 {
		return r.disallow(ctx, b, binding, role)
	}
	names := make([]string, len(members))
	for i, member := range members {
		names[i] = member.Name
	}
	slices.Sort(names)
	if err := r.keep(ctx, b, role, func() {
		want := []rbacv1.PolicyRule{{APIGroups: []string{v1.Group}, Resources: []string{"clusters"}, ResourceNames: names, Verbs: []string{"get", "list", "watch"}}}
		if !index.SameRules(role.Rules, want) { // the cache stores a digest instead of a long list of names
			role.Rules = want
		}
	}); err != nil {
		return err
	}
	return r.keep(ctx, b, binding, func() {
		binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}
		binding.Subjects = []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: string(b.Principal().Kind), Name: principal}}
	})
}

// unauthenticated reports whether a principal represents unauthenticated requests on the hub. The hub does not forward
// such requests to members.
func unauthenticated(principal string) bool {
	return principal == "system:anonymous" || principal == "system:unauthenticated"
}

// keep creates an object on the hub, or updates it by calling change. It does not adopt an object that another user
// created, because that user may already have granted it to others.
func (r *Reconciler[T, B]) keep(ctx context.Context, b B, object client.Object, change func()) error {
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(object), object)
	created := apierrors.IsNotFound(err)
	if err != nil && !created {
		return fmt.Errorf("read %s: %w", object.GetName(), err)
	}
	if !created && !metav1.IsControlledBy(object, b) {
		return fmt.Errorf("let %s see clusters: %T %s exists and was not made for this binding: remove it", b.Principal().Name, object, object.GetName())
	}
	before := object.DeepCopyObject().(client.Object)
	labels := maps.Clone(object.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1.LabelManagedBy] = v1.ManagedBy
	object.SetLabels(labels)
	change()
	err = controllerutil.SetControllerReference(b, object, r.Client.Scheme())
	switch {
	case err != nil:
	case created:
		err = r.Client.Create(ctx, object)
	case !equality.Semantic.DeepEqual(before, object): // patch the object, because the cache holds only part of it
		err = r.Client.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	}
	if err != nil {
		return fmt.Errorf("let %s see clusters: %w", b.Principal().Name, err)
	}
	return nil
}

// disallow removes the objects that allow created. It removes the RoleBinding first, because a Role without a binding
// grants nothing.
func (r *Reconciler[T, B]) disallow(ctx context.Context, b B, objects ...client.Object) error {
	for _, object := range objects {
		if err := r.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			if client.IgnoreNotFound(err) == nil {
				continue
			}
			return fmt.Errorf("read %s: %w", object.GetName(), err)
		}
		if !metav1.IsControlledBy(object, b) {
			continue
		}
		if err := owned.Delete(ctx, r.Client, object); err != nil {
			return fmt.Errorf("remove %s: %w", object.GetName(), err)
		}
	}
	return nil
}
