// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// toolsObjects are the objects of the Baseline "tools". The custom resource comes before its definition and its
// namespace, and the Baseline gives up the last object.
var toolsObjects = []string{
	`{"apiVersion":"tools.example.com/v1","kind":"Tool",
	  "metadata":{"name":"hammer","namespace":"tools"},"spec":{"weight":3}}`,
	`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"tools"}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"tools.tools.example.com"},
	  "spec":{"group":"tools.example.com","scope":"Namespaced","names":{"kind":"Tool","plural":"tools","singular":"tool","listKind":"ToolList"},
	  "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
	  "spec":{"type":"object","properties":{"weight":{"type":"integer"}}}}}}}]}}`,
	`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","namespace":"tools"},"data":{"color":"red"}}`,
	`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"former","namespace":"tools"},"data":{"color":"blue"}}`,
}

// tools is a hub and a member with the Baseline "tools".
type tools struct {
	*kept
	baseline *v1.Baseline
	role     *v1.RoleTemplate
	// foreign is an object of a user, with the kind and the name of an object of the Baseline.
	foreign *corev1.ConfigMap
}

// TestLong_ABaselineIsAppliedHealthyPrunedAndRemoved follows a Baseline from its creation to its deletion.
func TestLong_ABaselineIsAppliedHealthyPrunedAndRemoved(t *testing.T) {
	t.Parallel()
	s := start(t)
	cluster, agent := s.imported(t, "member", s.member, protocol.AgentNamespace)
	s.await(t, cluster, 30*time.Second, framework.Ready)
	w := &tools{kept: &kept{system: s, prod: s.member, prodAgent: agent}}
	w.foreign = &corev1.ConfigMap{ObjectMeta: onHub("settings"), Data: map[string]string{"color": "green"}}
	create(t, s.member, w.foreign)
	w.steps(t, []step{
		{"an object that the role template does not cover is named, and not written with other rights",
			w.step(testForbidden)},
		{"with all rights, all objects are applied as the Baseline's user and healthy", w.step(testAppliedHealthy)},
		{"an object that leaves the Baseline is pruned", w.step(testPruned)},
		{"a change in the member is repaired without the manager", w.step(testRepairedAlone)},
		{"a deleted Baseline leaves nothing, and takes nothing that is not its own", w.step(testBaselineRemoved)},
	})
}

func (w *tools) step(test func(*tools, *testing.T)) func(*kept, *testing.T) {
	return func(_ *kept, t *testing.T) { test(w, t) }
}

// live returns an object of the Baseline, or its error.
func (w *tools) live(ctx context.Context, kind, name string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	apiVersion, short, _ := strings.Cut(kind, " ")
	o.SetAPIVersion(apiVersion)
	o.SetKind(short)
	namespace := "tools"
	if short == "Namespace" || short == "CustomResourceDefinition" {
		namespace = ""
	}
	return o, w.member.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, o)
}

// absent returns an error if an object of the Baseline is there.
func (w *tools) absent(ctx context.Context, kind, name string) error {
	o, err := w.live(ctx, kind, name)
	if client.IgnoreNotFound(err) == nil && err != nil || meta.IsNoMatchError(err) {
		return nil
	}
	return fmt.Errorf("%s %s is there: %v: %w", kind, name, o.GetManagedFields(), err)
}

// inventories returns the names of the inventories in the member.
func (w *tools) inventories(ctx context.Context) (names []string, err error) {
	var list corev1.SecretList
	err = w.member.Client.List(ctx, &list, client.InNamespace(protocol.AgentNamespace),
		client.MatchingFields{"type": v1.Group + "/baseline"})
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names, err
}

func (w *tools) noInventory(ctx context.Context) error {
	found, err := w.inventories(ctx)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("the inventories %v are there", found)
	}
	return err
}

// everything is what the Baseline's user needs for objects of a kind.
func everything(group, resource string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource},
		Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}}
}

func testForbidden(w *tools, t *testing.T) {
	w.role = &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "tools"},
		Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster,
			Rules: []rbacv1.PolicyRule{everything("", "namespaces"), everything("apiextensions.k8s.io",
				"customresourcedefinitions"),
				everything("tools.example.com", "tools")}}}
	create(t, w.hub.Plane, w.role)
	w.baseline = &v1.Baseline{ObjectMeta: onHub("tools"), Spec: v1.BaselineSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: "member"}, RoleTemplateName: "tools"}}
	for _, raw := range toolsObjects {
		w.baseline.Spec.Manifests = append(w.baseline.Spec.Manifests,
			v1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(raw)}})
	}
	create(t, w.hub.Plane, w.baseline)
	message := w.reason(t, 30*time.Second, w.baseline, v1.ReasonForbidden)
	for _, want := range []string{"ConfigMap tools/", `User "drover:baseline:tools"`, "configmaps"} {
		if !strings.Contains(message, want) {
			t.Errorf("the Baseline's condition does not name %q: %s", want, message)
		}
	}
	for _, name := range []string{"settings", "former"} {
		if err := w.absent(t.Context(), "v1 ConfigMap", name); err != nil {
			t.Error(err)
		}
	}
}

func testAppliedHealthy(w *tools, t *testing.T) {
	testkit.Update(t, w.hub.Client, w.role, func(r *v1.RoleTemplate) {
		r.Spec.Rules = append(r.Spec.Rules,
			everything("", "configmaps"))
	})
	w.reason(t, time.Minute, w.baseline, v1.ReasonApplied)
	if s := w.baseline.Status; s.Objects != 5 || s.Revision == "" || s.CompleteRevision != s.Revision ||
		s.Clusters.Summary != "1/1" || len(s.Failures) > 0 {
		t.Errorf("the status is %+v, want 5 objects of a complete revision in 1/1 clusters", s)
	}
	for _, o := range []struct{ kind, name string }{
		{"v1 Namespace", "tools"}, {"apiextensions.k8s.io/v1 CustomResourceDefinition", "tools.tools.example.com"},
		{"tools.example.com/v1 Tool", "hammer"}, {"v1 ConfigMap", "settings"}, {"v1 ConfigMap", "former"},
	} {
		now, err := w.live(t.Context(), o.kind, o.name)
		if err != nil {
			t.Error(err)
			continue
		}
		if !slices.ContainsFunc(now.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == baseline.User("tools") && f.Operation == metav1.ManagedFieldsOperationApply
		}) || now.GetLabels()[v1.LabelBaseline] != "tools" {
			t.Errorf("%s %s was not applied by the Baseline's user: %v", o.kind, o.name, now.Object["metadata"])
		}
	}
}

func testPruned(w *tools, t *testing.T) {
	testkit.Update(t, w.hub.Client, w.baseline,
		func(b *v1.Baseline) { b.Spec.Manifests = b.Spec.Manifests[:len(toolsObjects)-1] })
	testkit.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		return w.absent(ctx, "v1 ConfigMap",
			"former")
	})
	w.reason(t, 20*time.Second, w.baseline, v1.ReasonApplied)
	if s := w.baseline.Status; s.Objects != 4 || len(s.History) != 2 {
		t.Errorf("the status has %d objects and the history %+v, want 4 objects and two revisions", s.Objects, s.History)
	}
	if _, err := w.live(t.Context(), "v1 ConfigMap", "settings"); err != nil {
		t.Errorf("an object that remains in the Baseline: %v", err)
	}
}

func testRepairedAlone(w *tools, t *testing.T) {
	if err := w.hub.Manager.Stop(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	settings, err := w.live(t.Context(), "v1 ConfigMap", "settings")
	if err != nil {
		t.Fatal(err)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"color":"black"}}`))
	if err := w.member.Client.Patch(t.Context(), settings, patch, client.FieldOwner("user")); err != nil {
		t.Fatal(err)
	}
	hammer, err := w.live(t.Context(), "tools.example.com/v1 Tool", "hammer")
	if err == nil {
		err = w.member.Client.Delete(t.Context(), hammer)
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		changed, err := w.live(ctx, "v1 ConfigMap", "settings")
		color, _, _ := unstructured.NestedString(changed.Object, "data", "color")
		deleted, failed := w.live(ctx, "tools.example.com/v1 Tool", "hammer")
		if err = errors.Join(err, failed); err == nil && (color != "red" || deleted.GetUID() == hammer.GetUID()) {
			err = fmt.Errorf("the color is %q, want red, and the deleted object is not there anew", color)
		}
		return err
	})
	w.restartManager(t)
}

func testBaselineRemoved(w *tools, t *testing.T) {
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{
		Name: "drover:baseline:tools:drover:cluster:tools"}}
	if err := w.member.Client.Get(t.Context(), client.ObjectKeyFromObject(binding), binding); err != nil {
		t.Fatal(err)
	}
	if found, err := w.inventories(t.Context()); err != nil || len(found) != 1 {
		t.Fatalf("the inventories are %v (%v), want one", found, err)
	}
	if err := w.hub.Client.Delete(t.Context(), w.baseline); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		return errors.Join(w.absent(ctx, "tools.example.com/v1 Tool", "hammer"), w.absent(ctx, "v1 ConfigMap", "settings"),
			w.absent(ctx, "apiextensions.k8s.io/v1 CustomResourceDefinition", "tools.tools.example.com"),
			w.absent(ctx, "v1 Namespace", "tools"), gone(ctx, w.member, binding), w.noInventory(ctx),
			gone(ctx, w.member, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:cluster:tools"}}),
			gone(ctx, w.hub.Plane, w.baseline))
	})
	now := &corev1.ConfigMap{}
	if err := w.member.Client.Get(t.Context(), client.ObjectKeyFromObject(w.foreign), now); err != nil ||
		now.ResourceVersion != w.foreign.ResourceVersion {
		t.Errorf("the user's object has version %q, want %q unchanged: %v", now.ResourceVersion,
			w.foreign.ResourceVersion, err)
	}
}
