// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tenancy_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

const (
	migrator  = "system:serviceaccount:kube-system:storage-version-migrator-controller"
	collector = "system:serviceaccount:kube-system:generic-garbage-collector"
)

// guardedObjects returns an object of each guarded kind, as the agent creates them in a namespace.
func (m fixture) guardedObjects(namespace string) []client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "drover-project",
		Labels: map[string]string{"cluster.drover.dev/set": "project.web"}}
	global := metav1.ObjectMeta{Name: m.unique("drover"), Labels: meta.Labels}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}
	return []client.Object{
		&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"password": []byte("x")}},
		&corev1.LimitRange{ObjectMeta: meta},
		&corev1.ResourceQuota{ObjectMeta: meta},
		&networkingv1.NetworkPolicy{ObjectMeta: meta},
		&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: role},
		&rbacv1.ClusterRole{ObjectMeta: global},
		&rbacv1.ClusterRoleBinding{ObjectMeta: global, RoleRef: role},
	}
}

// migrate writes an object in the same way as Kubernetes' StorageVersionMigration.
func migrate(ctx context.Context, c client.Client, o client.Object) error {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": o.GetObjectKind().GroupVersionKind().GroupVersion().String(),
		"kind":       o.GetObjectKind().GroupVersionKind().Kind,
		"metadata":   map[string]any{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion()},
	})
	if err != nil {
		return err
	}
	target := &unstructured.Unstructured{}
	target.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	target.SetNamespace(o.GetNamespace())
	target.SetName(o.GetName())
	return c.Patch(ctx, target, client.RawPatch(types.ApplyPatchType, patch),
		client.FieldOwner("storage-version-migrator-controller"))
}

func TestGuardsAllowUpdatesThatChangeNothing(t *testing.T) {
	m := guarded(t)
	shop := m.unique("shop")
	m.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop, Labels: map[string]string{
		"cluster.drover.dev/project": "web", "cluster.drover.dev/ingress": "true",
		"pod-security.kubernetes.io/enforce": "privileged",
	}}})
	objects := m.guardedObjects(shop)
	for _, o := range objects {
		if err := m.Client.Create(t.Context(), o, client.FieldOwner("drover")); err != nil {
			t.Fatal(err)
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}
	roles := rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"*"}, Verbs: []string{"*"}}
	migrating, collecting := m.as(migrator, roles), m.as(collector, roles)
	// The API server takes a moment to notice policies.
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		changed := objects[0].DeepCopyObject().(client.Object)
		changed.SetAnnotations(map[string]string{"a": "b"})
		if err := migrating.Update(ctx, changed, client.DryRunAll); err == nil ||
			!strings.Contains(err.Error(), "drover-guard") {
			return errors.Join(errors.New("not guarded yet"), err)
		}
		return nil
	})
	for _, o := range append(objects, namespace) {
		kind, err := m.Client.GroupVersionKindFor(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(kind.Kind, func(t *testing.T) {
			m.t = t
			now := &unstructured.Unstructured{}
			now.SetGroupVersionKind(kind)
			m.taken(m.Client.Get(t.Context(), client.ObjectKeyFromObject(o), now))
			m.taken(migrate(t.Context(), migrating, now))
			m.taken(migrating.Update(t.Context(), now.DeepCopy()))
			bare := now.DeepCopy()
			bare.SetManagedFields(nil)
			m.taken(migrating.Update(t.Context(), bare))
			m.taken(m.Client.Get(t.Context(), client.ObjectKeyFromObject(o), now))
			if kind.Kind == "Namespace" {
				return
			}
			for what, change := range map[string]func(*unstructured.Unstructured){
				"an annotation":    func(o *unstructured.Unstructured) { o.SetAnnotations(map[string]string{"a": "b"}) },
				"no label":         func(o *unstructured.Unstructured) { o.SetLabels(nil) },
				"a finalizer":      func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"example.com/stay"}) },
				"no field manager": func(o *unstructured.Unstructured) { o.SetManagedFields([]metav1.ManagedFieldsEntry{{}}) },
			} {
				changed := now.DeepCopy()
				change(changed)
				if err := migrating.Update(t.Context(), changed); err == nil ||
					!strings.Contains(err.Error(), "cannot manage sets") {
					t.Errorf("an update to %s has the error %v, want a guard's refusal", what, err)
				}
			}
			m.collect(collecting, now)
		})
	}
}

// collect deletes an object in the foreground, and has the garbage collector remove its finalizer. The garbage
// collector may change nothing else.
func (m fixture) collect(c client.Client, o *unstructured.Unstructured) {
	m.t.Helper()
	changed := o.DeepCopy()
	changed.SetLabels(nil)
	m.refused(c.Update(m.t.Context(), changed, client.DryRunAll), "cannot manage sets")
	m.taken(m.Client.Delete(m.t.Context(), o, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	m.taken(m.Client.Get(m.t.Context(), client.ObjectKeyFromObject(o), o))
	if len(o.GetFinalizers()) == 0 {
		m.t.Errorf("%s has no finalizer after it was deleted in the foreground, want the garbage collector's", o.GetName())
	}
	o.SetFinalizers(nil)
	m.taken(c.Update(m.t.Context(), o))
}
