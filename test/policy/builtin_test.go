// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/role"
	"github.com/drover-dev/drover/test/testkit"
)

// testBuiltInRoles makes the manager apply the built-in role templates with the rights of its own account.
func testBuiltInRoles(t *testing.T, h *fixture) {
	templates, err := role.Templates()
	if err != nil || len(templates) < 20 {
		t.Fatalf("%d built-in templates (%v), want at least 20", len(templates), err)
	}
	manager := h.manager(t)
	lead := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience*10*time.Second)
		defer cancel()
		builtIn := role.BuiltIn{Live: manager, Writer: manager, Log: logr.Discard(), Retry: 100 * time.Millisecond}
		if err := builtIn.Start(ctx); err != nil || ctx.Err() != nil {
			t.Fatalf("apply the built-in templates: %v, %v", err, ctx.Err())
		}
	}
	read := func(name string) v1.RoleTemplateSpec {
		t.Helper()
		template := &v1.RoleTemplate{}
		if err := h.Client.Get(t.Context(), types.NamespacedName{Name: name}, template); err != nil {
			t.Fatal(err)
		}
		return template.Spec
	}
	rules := func(name string) int { return len(read(name).Rules) }
	change := func(name string, change func(*v1.RoleTemplate)) {
		t.Helper()
		template := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
		testkit.Update(t, h.Client, template, change)
	}
	const changed, kept, deleted = "services-view", "volumes-view", "ingress-view"
	other := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"endpoints"}, Verbs: []string{"get"}}}
	lead()
	want, before := read(changed), rules(kept)
	change(changed, func(r *v1.RoleTemplate) { r.Spec.Rules, r.Spec.Locked = other, true })
	// Another client owns the element that it adds to the set.
	wider := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"inherits": []any{"secrets-view"}}}}
	wider.SetGroupVersionKind(v1.GroupVersion.WithKind("RoleTemplate"))
	wider.SetName(changed)
	if err := h.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(wider), client.FieldOwner("another")); err != nil {
		t.Fatal(err)
	}
	change(kept, func(r *v1.RoleTemplate) {
		r.Spec.Rules, r.Annotations = append(r.Spec.Rules, other...), map[string]string{v1.AnnotationAutoUpdate: "false"}
	})
	if err := h.Client.Delete(t.Context(), &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: deleted}}); err != nil {
		t.Fatal(err)
	}
	lead()
	want.Locked = true // a lock stays
	if got := read(changed); !reflect.DeepEqual(got, want) {
		t.Errorf("a changed template is %+v, want %+v as before", got, want)
	}
	if got := rules(kept); got != before+1 {
		t.Errorf("a changed template with %s=false has %d rules, want %d", v1.AnnotationAutoUpdate, got, before+1)
	}
	if rules(deleted) == 0 {
		t.Error("a deleted template has no rules, want it to be created again")
	}
	change(changed, func(r *v1.RoleTemplate) { r.Spec.Locked = false })
	change(kept, func(r *v1.RoleTemplate) { delete(r.Annotations, v1.AnnotationAutoUpdate) })
	lead()

	for name, write := range map[string]func(context.Context, *v1.RoleTemplate) error{
		"create": func(ctx context.Context, r *v1.RoleTemplate) error {
			r.Name, r.ResourceVersion, r.UID = "evil", "", ""
			return manager.Create(ctx, r)
		},
		"change": func(ctx context.Context, r *v1.RoleTemplate) error {
			r.Name, r.ResourceVersion, r.UID = "of-a-team", "", ""
			if err := h.Client.Create(ctx, r.DeepCopy()); err != nil {
				return err
			}
			r.Spec.Locked = true
			return manager.Update(ctx, r)
		},
	} {
		template := &v1.RoleTemplate{}
		if err := h.Client.Get(t.Context(), types.NamespacedName{Name: "cluster-owner"}, template); err != nil {
			t.Fatal(err)
		}
		if err := write(t.Context(), template); !apierrors.IsForbidden(err) {
			t.Errorf("the manager can %s a template that is not built in: %v, want Forbidden", name, err)
		}
	}
}

// testNamesOfBuiltInRoles compares the names in the manager's ClusterRole with the templates.
func testNamesOfBuiltInRoles(t *testing.T, _ *fixture) {
	templates, err := role.Templates()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, template := range templates {
		want = append(want, template.GetName())
	}
	slices.Sort(want)
	var got []string
	for _, o := range manifests(t, "config/rbac") {
		rules, _, _ := unstructured.NestedSlice(o.Object, "rules")
		for _, rule := range rules {
			verbs, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "verbs")
			names, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resourceNames")
			if slices.Contains(verbs, "escalate") {
				got = append(got, names...)
			}
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("config/rbac allows the manager to escalate\n%q, want the built-in templates\n%q", got, want)
	}
}
