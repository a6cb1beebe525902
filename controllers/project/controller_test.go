// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package project_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/project"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/test/testkit"
)

// fakeDeliveries reports what a test has members report, and keeps what was handed over.
type fakeDeliveries struct {
	outcomes []delivery.Outcome
	sets     map[string]map[types.NamespacedName]*delivery.Set // by kind
}

func (d *fakeDeliveries) Replace(key delivery.Key, sets map[types.NamespacedName]*delivery.Set) {
	d.sets[key.Kind] = sets
}
func (d *fakeDeliveries) Outcomes(string, []types.NamespacedName) []delivery.Outcome {
	return d.outcomes
}
func (d *fakeDeliveries) OnResult(string, func(delivery.Key)) {}
func (d *fakeDeliveries) Forget(types.NamespacedName)         {}
func (d *fakeDeliveries) Changed(types.NamespacedName)        {}

func TestReconcile(t *testing.T) {
	env := testkit.Start(t)
	applied := func(cluster string, short, spent []string) delivery.Outcome {
		return delivery.Outcome{Cluster: cluster, Stage: delivery.Applied, Namespaces: 2, Short: short, Spent: spent}
	}
	for name, tt := range map[string]struct {
		outcomes         []delivery.Outcome
		change           func(t *testing.T, p *v1.Project)
		ready, quota     string
		said             string // by QuotaFits
		stalled          bool
		members, secrets int
		events           []string
	}{
		"every namespace has its share": {
			outcomes: []delivery.Outcome{applied("a", nil, nil), applied("b", nil, nil)},
			ready:    "True Applied", quota: "True QuotaFits", said: "whole default", members: 2, events: []string{"Normal Applied"},
		},
		"a namespace has less": {
			outcomes: []delivery.Outcome{applied("a", []string{"web-2"}, nil)},
			ready:    "True Applied", quota: "False QuotaOversubscribed", said: "Less than the default is left for a/web-2. Raise", members: 2,
			events: []string{"Normal Applied", "Warning QuotaOversubscribed"},
		},
		"a namespace has nothing, which has a reason of its own": {
			outcomes: []delivery.Outcome{applied("a", []string{"web-2", "web-3"}, []string{"web-3"})},
			ready:    "True Applied", quota: "False QuotaSpent", members: 2,
			said:   "Nothing is left for a/web-3, where no pod can start. Less than the default is left for a/web-2. Raise",
			events: []string{"Normal Applied", "Warning QuotaSpent"},
		},
		"a Secret that is labelled for it goes beside it": {
			outcomes: []delivery.Outcome{applied("a", nil, nil)},
			change: func(t *testing.T, p *v1.Project) {
				env.Apply(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "registry", Labels: map[string]string{v1.LabelProject: p.Name}}})
			},
			ready: "True Applied", quota: "True QuotaFits", members: 2, secrets: 2, events: []string{"Normal Applied"},
		},
		"an older project keeps a namespace, and all else is delivered": {
			change: func(t *testing.T, p *v1.Project) {
				env.Apply(t, &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "older"},
					Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "a"}, Namespaces: []string{"web-2"}}})
			},
			ready: "False NamespaceTaken", quota: "True QuotaFits", stalled: true, members: 2, events: []string{"Warning NamespaceTaken"},
		},
		"a cluster that does not exist": {
			change: func(_ *testing.T, p *v1.Project) { p.Spec.ClusterTarget = v1.ClusterTarget{ClusterName: "none"} },
			ready:  "False ClusterNotFound", quota: "True QuotaFits", events: []string{"Warning ClusterNotFound"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: env.Workspace(t), Name: "web"}}
			for _, cluster := range []string{"a", "b"} {
				env.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: cluster}})
			}
			p.Spec.ClusterSelector, p.Spec.Namespaces = &metav1.LabelSelector{}, []string{"web-1", "web-2", "web-3"}
			p.Spec.ResourceQuota = corev1.ResourceList{"pods": resource.MustParse("5")}
			p.Spec.NamespaceDefaultResourceQuota = corev1.ResourceList{"pods": resource.MustParse("3")}
			if tt.change != nil {
				tt.change(t, p)
			}
			env.Apply(t, p)
			recorder := events.NewFakeRecorder(10)
			d := &fakeDeliveries{outcomes: tt.outcomes, sets: map[string]map[types.NamespacedName]*delivery.Set{}}
			r := &project.Reconciler{Client: env.Indexed(t, index.Index), Secrets: env.Client, Recorder: recorder, Deliveries: d, Now: time.Now}
			name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
			reconcile := func() {
				t.Helper()
				if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
					t.Fatal(err)
				}
			}
			reconcile()
			if err := env.Client.Get(t.Context(), name, p); err != nil {
				t.Fatal(err)
			}
			for kind, want := range map[string]string{v1.ConditionReady: tt.ready, v1.ConditionQuotaFits: tt.quota} {
				c := meta.FindStatusCondition(p.Status.Conditions, kind)
				if c == nil || string(c.Status)+" "+c.Reason != want || c.ObservedGeneration != p.Generation || kind == v1.ConditionQuotaFits && !strings.Contains(c.Message, tt.said) {
					t.Errorf("%s is %+v, want %s %q", kind, c, want, tt.said)
				}
			}
			if meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionStalled) != tt.stalled {
				t.Errorf("conditions %+v", p.Status.Conditions)
			}
			if len(d.sets[project.Kind]) != tt.members || len(d.sets[project.KindSecrets]) != tt.secrets {
				t.Errorf("handed over: %v", d.sets)
			}
			for _, want := range tt.events {
				if got := <-recorder.Events; !strings.HasPrefix(got, want+" ") {
					t.Errorf("event %q, want %s", got, want)
				}
			}
			if len(recorder.Events) > 0 {
				t.Errorf("one event more: %s", <-recorder.Events)
			}
			if err := env.Client.Delete(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if reconcile(); len(d.sets[project.Kind]) > 0 || len(d.sets[project.KindSecrets]) > 0 {
				t.Errorf("a project that is gone leaves %v", d.sets)
			}
		})
	}
}
