// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/project"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/test/testkit"
)

func TestProjectIsReconciled(t *testing.T) {
	env := testkit.Shared(t)
	applied := func(cluster string, short, spent []string) delivery.Outcome {
		return delivery.Outcome{Cluster: cluster, Stage: delivery.Applied, Namespaces: 2, Short: short, Spent: spent}
	}
	secret := func(t *testing.T, p *v1.Project) {
		env.Apply(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "registry", Labels: map[string]string{v1.LabelProject: p.Name}}})
	}
	for name, tt := range map[string]struct {
		outcomes         []delivery.Outcome
		change           func(t *testing.T, p *v1.Project)
		ready, quota     string
		said             string // by QuotaFits
		stalled          bool
		members, secrets int
		guards           []delivery.Outcome
		held             []string // Clusters whose copies of Secrets are not changed
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
			change:   secret,
			ready:    "True Applied", quota: "True QuotaFits", members: 2, secrets: 2, events: []string{"Normal Applied"},
		},
		"a Secret waits in a member that does not guard projects yet": {
			outcomes: []delivery.Outcome{applied("a", nil, nil), applied("b", nil, nil)},
			guards:   []delivery.Outcome{applied("a", nil, nil), {Cluster: "b", Stage: delivery.Failed, Reason: v1.ReasonConflict, Failures: []v1.Failure{{Cluster: "b", Object: "policy", Message: "it is not Drover's"}}}},
			change:   secret,
			ready:    "False Conflict", quota: "True QuotaFits", members: 2, secrets: 2, held: []string{"b"}, stalled: true, events: []string{"Warning Conflict"},
		},
		"a Secret waits in a member that is away, which is no fault": {
			outcomes: []delivery.Outcome{applied("a", nil, nil), {Cluster: "b", Stage: delivery.Away}},
			guards:   []delivery.Outcome{applied("a", nil, nil), {Cluster: "b", Stage: delivery.Away}},
			change:   secret,
			ready:    "True Applied", quota: "True QuotaFits", members: 2, secrets: 2, held: []string{"b"}, events: []string{"Normal Applied"},
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
			d := &fakeDeliveries{outcomes: tt.outcomes, guards: tt.guards}
			output := status.Output{Client: env.Indexed(t, index.Index), Recorder: recorder, Now: time.Now}
			r := &project.Reconciler{Output: output, Secrets: env.Client, Deliveries: d}
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
			if len(d.sets[set.Project]) != tt.members || len(d.sets[set.Secrets]) != tt.secrets {
				t.Errorf("handed over: %v", d.sets)
			}
			unchanged := delivery.Unchanged(set.ID(set.Secrets, p.Name)).Digest
			for member, copies := range d.sets[set.Secrets] {
				if held := copies.Digest == unchanged; held != slices.Contains(tt.held, member.Name) {
					t.Errorf("the copies in %s are left as they are: %t, want those in %v", member, held, tt.held)
				}
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
			if reconcile(); len(d.sets[set.Project]) > 0 || len(d.sets[set.Secrets]) > 0 {
				t.Errorf("a project that is gone leaves %v", d.sets)
			}
		})
	}
}

// A Secret that is taken out of a project is removed from all members. In members that do not guard projects, it is
// removed but nothing else is sent.
func TestWithdrawnSecretIsRemovedFromUnguardedMembers(t *testing.T) {
	env := testkit.Shared(t)
	p := &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: env.Workspace(t), Name: "web"}}
	p.Spec.ClusterSelector, p.Spec.Namespaces = &metav1.LabelSelector{}, []string{"web-1"}
	env.Apply(t, p)
	member := types.NamespacedName{Namespace: p.Namespace, Name: "a"}
	env.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: member.Name}})
	secret := func(name, data, except string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, Labels: map[string]string{v1.LabelProject: p.Name}}}
		s.Annotations, s.StringData = map[string]string{v1.AnnotationExceptNamespaces: except}, map[string]string{"data": data}
		return s
	}
	remove := func(name string) {
		if err := env.Client.Delete(t.Context(), secret(name, "", "")); err != nil {
			t.Fatal(err)
		}
	}
	change := func(s *corev1.Secret) {
		if err := env.Client.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	guarded, unguarded := delivery.Outcome{Cluster: "a", Stage: delivery.Applied}, delivery.Outcome{
		Cluster: "a", Stage: delivery.Failed, Reason: v1.ReasonConflict, Failures: []v1.Failure{{Cluster: "a", Object: "policy", Message: "it is not Drover's"}}}
	d := &fakeDeliveries{outcomes: []delivery.Outcome{guarded}, guards: []delivery.Outcome{guarded}}
	output := status.Output{Client: env.Indexed(t, index.Index), Recorder: events.NewFakeRecorder(100), Now: time.Now}
	r := &project.Reconciler{Output: output, Secrets: env.Client, Deliveries: d}
	copies := func() *set.Set {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}}); err != nil {
			t.Fatal(err)
		}
		given := d.sets[set.Secrets][member]
		if d.kept = map[types.NamespacedName]*set.Set{member: given}; given != nil && given.Digest == delivery.Unchanged(given.ID).Digest {
			d.kept = nil
		}
		return given
	}
	want := func(what string, s *set.Set, want string) {
		t.Helper()
		_, content, err := set.Parse(s.JSON())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, template := range content.PerNamespace.Templates {
			data, _, _ := unstructured.NestedString(template.Object.Object, "data", "data")
			plain, err := base64.StdEncoding.DecodeString(data)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s=%s%v", template.Object.GetName(), plain, template.Except))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s, the copies in the member are %v, want %s", what, got, want)
		}
	}
	env.Apply(t, secret("first", "1", ""))
	env.Apply(t, secret("second", "1", ""))
	before := copies()
	want("while it guards projects", before, "first=1[] second=1[]")

	d.guards = []delivery.Outcome{unguarded}
	env.Apply(t, secret("third", "1", ""))
	if after := copies(); after.Digest != before.Digest {
		t.Errorf("a Secret is added, and the copies change")
	}
	change(secret("first", "2", ""))
	want("after a Secret has changed", copies(), "first=1[] second=1[]")
	remove("second")
	want("after one of two was taken out", copies(), "first=1[]")
	want("after another look", copies(), "first=1[]")
	change(secret("first", "2", "web-1"))
	want("after a namespace was taken out", copies(), "first=1[web-1]")
	remove("first")
	if after := copies(); !delivery.IsAbsent(after) {
		t.Errorf("all were taken out that the member has, and it is to have %+v", after)
	}
	if after := copies(); !delivery.IsAbsent(after) {
		t.Errorf("after another look it is to have %+v", after)
	}
	d.guards = []delivery.Outcome{guarded}
	want("once it guards projects again", copies(), "third=1[]")
	d.guards, d.kept = []delivery.Outcome{unguarded}, nil // as after a start of the manager
	if after := copies(); after.Digest != delivery.Unchanged(after.ID).Digest {
		t.Errorf("it is not known what the member has, and it is to have %+v", after)
	}

	large := func(data, except int, write func(*corev1.Secret)) {
		for i := range 24 {
			write(secret(fmt.Sprintf("large-%02d", i), strings.Repeat("x", data), strings.Repeat("n", except)))
		}
	}
	large(240<<10, 0, func(s *corev1.Secret) { env.Apply(t, s) })
	d.guards = []delivery.Outcome{guarded}
	copies()
	d.guards = []delivery.Outcome{unguarded}
	large(1, 100<<10, change)
	if after := copies(); !delivery.IsAbsent(after) {
		t.Errorf("with the namespaces that were taken out, the copies that the member has are too large, and it is to have %.80s, want none", after.JSON())
	}
}
