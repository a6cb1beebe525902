// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/role"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/test/testkit"
)

func TestRoleTemplateIsReconciled(t *testing.T) {
	env := testkit.Shared(t)
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}
	applied := delivery.Outcome{Cluster: "a", Stage: delivery.Applied}
	conflict := delivery.Outcome{Cluster: "a", Stage: delivery.Failed, Reason: v1.ReasonConflict,
		Failures: []v1.Failure{{Cluster: "a", Object: "ClusterRole drover:cluster:x", Message: "it already exists and is not Drover's"}}}
	for name, tt := range map[string]struct {
		spec     v1.RoleTemplateSpec
		outcomes []delivery.Outcome
		bound    []time.Duration // bindings, by the time until they expire; 0 for never
		ready    string
		said     string
		members  int
		again    bool // whether it looks again when a binding expires
	}{
		"one that is bound nowhere is in no member": {spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, Rules: rules}, ready: "True Available", said: "It can be bound"},
		"one that is bound is in the members of its bindings, once": {
			spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, Rules: rules}, outcomes: []delivery.Outcome{applied}, bound: []time.Duration{0, 0}, ready: "True Applied", members: 1},
		"it stays as long as one binding lasts": {
			spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, Rules: rules}, outcomes: []delivery.Outcome{applied},
			bound: []time.Duration{-time.Minute, time.Hour}, ready: "True Applied", members: 1, again: true},
		"it goes with the last that expires": {
			spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, Rules: rules}, bound: []time.Duration{-time.Minute}, ready: "True Available"},
		"who may read it learns of no member": {
			spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, Rules: rules}, outcomes: []delivery.Outcome{conflict}, bound: []time.Duration{0}, ready: "False Conflict",
			said: "1 of 1 clusters do not have it; the bindings of these say why", members: 1},
		"one that inherits what is not there grants nothing": {
			spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, Inherits: []string{"no-such-template"}}, bound: []time.Duration{0}, ready: "False RoleTemplateNotFound"},
		"one of the members' own needs no set": {
			spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, External: "view"}, bound: []time.Duration{0}, ready: "True Available", said: "ClusterRole view"},
	} {
		t.Run(name, func(t *testing.T) {
			workspace, now := env.Workspace(t), time.Now()
			template := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "role-of-" + workspace}, Spec: tt.spec}
			env.Apply(t, template)
			env.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "a"}})
			for i, expires := range tt.bound {
				b := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: string(rune('a' + i))}}
				b.Spec.ClusterName, b.Spec.RoleTemplateName, b.Spec.Subject = "a", template.Name, v1.Subject{Kind: v1.SubjectUser, Name: "github:alice"}
				if expires != 0 {
					b.Spec.ExpiresAt = &metav1.Time{Time: now.Add(expires)}
				}
				env.Apply(t, b)
			}
			d := &fakeDeliveries{outcomes: tt.outcomes}
			output := status.Output{
				Client: env.Indexed(t, index.Index), Recorder: events.NewFakeRecorder(10), Now: func() time.Time { return now },
			}
			r := &role.Reconciler{Output: output, Deliveries: d}
			name := types.NamespacedName{Name: template.Name}
			reconcile := func() ctrl.Result {
				t.Helper()
				result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name})
				if err != nil {
					t.Fatal(err)
				}
				return result
			}
			if result := reconcile(); tt.again != (result.RequeueAfter > 0) {
				t.Errorf("it looks again after %s", result.RequeueAfter)
			}
			if err := env.Client.Get(t.Context(), name, template); err != nil {
				t.Fatal(err)
			}
			c := meta.FindStatusCondition(template.Status.Conditions, v1.ConditionReady)
			if c == nil || string(c.Status)+" "+c.Reason != tt.ready || !strings.Contains(c.Message, tt.said) || strings.Contains(c.Message, workspace+"/") {
				t.Errorf("Ready is %+v, want %s %q", c, tt.ready, tt.said)
			}
			if len(d.sets[set.Role]) != tt.members {
				t.Errorf("handed over: %v", d.sets)
			}
			if err := env.Client.Delete(t.Context(), template); err != nil {
				t.Fatal(err)
			}
			if reconcile(); len(d.sets[set.Role]) > 0 {
				t.Errorf("a template that is gone leaves %v", d.sets)
			}
		})
	}
}
