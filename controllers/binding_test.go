// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/binding"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/test/testkit"
)

func TestBindingIsReconciled(t *testing.T) {
	env := testkit.Shared(t)
	template := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{GenerateName: "binding-"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, External: "view"}}
	env.Apply(t, template)
	applied, away := delivery.Outcome{Cluster: "a", Stage: delivery.Applied}, delivery.Outcome{Cluster: "b", Stage: delivery.Away}
	conflict := delivery.Outcome{Cluster: "b", Stage: delivery.Failed, Reason: v1.ReasonConflict,
		Failures: []v1.Failure{{Cluster: "b", Object: "ClusterRoleBinding x", Message: "it is not bound while ClusterRole drover:cluster:x differs from what Drover applies"}}}
	for name, tt := range map[string]struct {
		deliveries      fakeDeliveries
		expired         bool
		ready, complete string
		stalled         bool
		event           string
		sets            int
	}{
		"all have it, and an event says so":                     {fakeDeliveries{outcomes: []delivery.Outcome{applied}}, false, "True Applied", "True Applied", false, "Normal Applied", 2},
		"one is away":                                           {fakeDeliveries{outcomes: []delivery.Outcome{applied, away}}, false, "True Applied", "False MembersAway", false, "Normal Applied", 2},
		"all are away, and none has had it":                     {fakeDeliveries{outcomes: []delivery.Outcome{away}}, false, "False MembersAway", "False MembersAway", false, "Normal MembersAway", 2},
		"a role that is not Drover's is not bound":              {fakeDeliveries{outcomes: []delivery.Outcome{applied, conflict}}, false, "False Conflict", "False Conflict", true, "Warning Conflict", 2},
		"an end is nothing to wait for":                         {fakeDeliveries{}, true, "True Expired", "True Expired", false, "Normal Expired", 2},
		"it is being taken away":                                {fakeDeliveries{held: 1}, true, "True Expired", "False Delivering", false, "Normal Expired", 2},
		"where it is not known whether it was, the whole waits": {fakeDeliveries{away: 1}, true, "True Expired", "False MembersAway", false, "Normal Expired", 2},
	} {
		t.Run(name, func(t *testing.T) {
			workspace := env.Workspace(t)
			for _, cluster := range []string{"a", "b"} {
				env.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: cluster}})
			}
			b := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "alice"}}
			b.Spec.ClusterSelector = &metav1.LabelSelector{}
			b.Spec.RoleTemplateName, b.Spec.Subject = template.Name, v1.Subject{Kind: v1.SubjectUser, Name: "github:alice"}
			now := time.Now()
			b.Spec.ExpiresAt = &metav1.Time{Time: now.Add(time.Hour)}
			if tt.expired {
				now = now.Add(2 * time.Hour)
			}
			env.Apply(t, b)
			recorder := events.NewFakeRecorder(10)
			output := status.Output{Client: env.Client, Recorder: recorder, Now: func() time.Time { return now }}
			r := binding.NewCluster(binding.Options{Output: output, Deliveries: &tt.deliveries})
			name := types.NamespacedName{Namespace: workspace, Name: "alice"}
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name})
			if err != nil {
				t.Fatal(err)
			}
			if tt.expired && result.RequeueAfter > 0 {
				t.Errorf("it looks again after %v, and the delivery store wakes it", result.RequeueAfter)
			}
			for member, set := range tt.deliveries.sets[set.ClusterBinding] {
				if is := reflect.DeepEqual(set, delivery.Absent("crtb/alice")); is != tt.expired {
					t.Errorf("%s is to have nothing: %t", member, is)
				}
			}
			if err := env.Client.Get(t.Context(), name, b); err != nil {
				t.Fatal(err)
			}
			for kind, want := range map[string]string{v1.ConditionReady: tt.ready, v1.ConditionComplete: tt.complete} {
				c := meta.FindStatusCondition(b.Status.Conditions, kind)
				if c == nil || string(c.Status)+" "+c.Reason != want || c.ObservedGeneration != b.Generation {
					t.Errorf("%s is %+v, want %s", kind, c, want)
				}
			}
			if meta.IsStatusConditionTrue(b.Status.Conditions, v1.ConditionStalled) != tt.stalled || b.Status.ObservedGeneration != b.Generation || len(tt.deliveries.sets[set.ClusterBinding]) != tt.sets {
				t.Errorf("status %+v, %d sets", b.Status, len(tt.deliveries.sets[set.ClusterBinding]))
			}
			select {
			case event := <-recorder.Events:
				if !strings.HasPrefix(event, tt.event+" ") {
					t.Errorf("event %q, want %s", event, tt.event)
				}
			default:
				t.Errorf("no event, want %s", tt.event)
			}
		})
	}
}
