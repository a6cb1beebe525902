// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// deliveries records the sets that a reconciler declares, and reports that all members have applied them.
type deliveries map[string]map[types.NamespacedName]*set.Set

func (d deliveries) Replace(key delivery.Key, sets map[types.NamespacedName]*set.Set) {
	d[key.Kind] = sets
}

func (d deliveries) Outcomes(_ string, members []types.NamespacedName) (all []delivery.Outcome) {
	for _, m := range members {
		o := delivery.Outcome{Cluster: m.Name, Stage: delivery.Applied, Known: true, Available: true}
		if s := d[set.Baseline][m]; s != nil && s.Baseline != nil {
			o.Reported = &protocol.SetState{Digest: s.Digest, Phase: protocol.SetApplied}
		} else {
			o.Stage = delivery.Unreported
		}
		all = append(all, o)
	}
	return all
}

// reconciled reconciles the Baseline team-a/cni with one member, while some requests of the manager fail.
func reconciled(t *testing.T, fails interceptor.Funcs) (deliveries, *v1.Baseline, error) {
	t.Helper()
	r, b := reconciler(t, fails)
	name := client.ObjectKeyFromObject(b)
	_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name})
	if got := r.Client.Get(t.Context(), name, b); got != nil {
		t.Fatal(got)
	}
	return r.Deliveries.(deliveries), b, err
}

// reconciler returns the reconciler of a hub with the Baseline team-a/cni, which has one member.
func reconciler(t *testing.T, fails interceptor.Funcs) (*Reconciler, *v1.Baseline) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := &v1.Baseline{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "cni", UID: "u"}, Spec: v1.BaselineSpec{
		ClusterTarget: v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{}}, RoleTemplateName: "cni",
		Manifests: []v1.Manifest{{RawExtension: runtime.RawExtension{
			Raw: []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}`),
		}}},
	}}
	hub := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(b).WithObjects(b,
		&v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod"}},
		&v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "cni"}, Spec: v1.RoleTemplateSpec{
			Context: v1.ContextCluster, External: "view",
		}},
	).WithInterceptorFuncs(fails).Build()
	sets := deliveries{}
	return &Reconciler{
		Client: hub, Live: hub, Sources: hub, Recorder: events.NewFakeRecorder(10), Deliveries: sets,
		Values: &Values{Clusters: hub, Deliveries: sets}, Now: time.Now,
	}, b
}

var errBroken = errors.New("the API server is broken")

// An empty list of members would delete the objects everywhere.
func TestAnErrorRemovesABaselineFromNoMember(t *testing.T) {
	sets, _, err := reconciled(t, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, is := list.(*v1.ClusterList); is {
				return errBroken
			}
			return c.List(ctx, list, options...)
		},
	})
	if declared, is := sets[set.Baseline]; !errors.Is(err, errBroken) || is {
		t.Errorf("got %v and the sets %v, want the error and nothing declared", err, declared)
	}
}

func TestTheStatusIsWrittenEvenIfTheHistoryIsNot(t *testing.T) {
	sets, b, err := reconciled(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if _, is := o.(*corev1.Secret); is {
				return errBroken
			}
			return c.Create(ctx, o, options...)
		},
	})
	if !errors.Is(err, errBroken) || len(sets[set.Baseline]) != 1 {
		t.Errorf("got %v and the sets %v, want the error, and the set of the member", err, sets[set.Baseline])
	}
	if s := b.Status; s.Clusters == nil || s.Clusters.Summary != "1/1" || s.Revision == "" || len(s.History) > 0 {
		t.Errorf("got the status %+v, want the progress, and no history", s)
	}
}

// The hub writes the history between the decision and the status, which takes time.
func TestARolloutLooksAgainAtATimeThatPassesMeanwhile(t *testing.T) {
	r, b := reconciler(t, interceptor.Funcs{})
	b.Spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 1}
	if err := r.Client.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	r.Settled = func() bool { return false } // the rollout looks again after settleAgain
	now := time.Now()
	r.Now = func() time.Time {
		now = now.Add(2 * settleAgain)
		return now
	}
	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(b)})
	if err != nil {
		t.Fatal(err)
	}
	if result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
		t.Errorf("it is reconciled again after %v, want at once: no event says that the time has passed", result.RequeueAfter)
	}
}

func TestASoakBeginsOnceEvenIfTheStatusIsNotWritten(t *testing.T) {
	broken := false
	r, b := reconciler(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			options ...client.SubResourceUpdateOption) error {
			if broken {
				return errBroken
			}
			return c.SubResource(sub).Update(ctx, o, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch,
			options ...client.SubResourcePatchOption) error {
			if broken {
				return errBroken
			}
			return c.SubResource(sub).Patch(ctx, o, patch, options...)
		},
	})
	b.Spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 1, Waves: []v1.Wave{{
		Name: "canary", ClusterSelector: &metav1.LabelSelector{}, Soak: &metav1.Duration{Duration: time.Hour},
	}}}
	if err := r.Client.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	start := time.Now().Truncate(time.Second)
	reconcile := func(at time.Time) error {
		r.Now = func() time.Time { return at }
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(b)})
		return err
	}
	if err := reconcile(start); err != nil { // the canary begins
		t.Fatal(err)
	}
	broken = true
	if err := reconcile(start.Add(time.Minute)); !errors.Is(err, errBroken) {
		t.Fatalf("got %v, want that the status is not written", err)
	}
	broken = false
	if err := reconcile(start.Add(30 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
		t.Fatal(err)
	}
	waves, want := b.Status.Waves, metav1.NewTime(start.Add(time.Minute))
	if len(waves) == 0 || !waves[0].CompletionTime.Equal(&want) {
		t.Errorf("got the waves %+v, want the wave complete at %v, when the canary was", waves, want)
	}
}

func TestAnInvalidSelectorCountsNoCluster(t *testing.T) {
	r, b := reconciler(t, interceptor.Funcs{})
	reconcile := func(selector *metav1.LabelSelector) {
		t.Helper()
		if b.Spec.ClusterSelector = selector; r.Client.Update(t.Context(), b) != nil {
			t.Fatal("the spec was not updated")
		}
		name := client.ObjectKeyFromObject(b)
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name})
		if err = errors.Join(err, r.Client.Get(t.Context(), name, b)); err != nil {
			t.Fatal(err)
		}
	}
	invalid := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "not a value"}}
	for _, step := range []struct {
		selector *metav1.LabelSelector
		want     string
	}{{invalid, "0/0"}, {&metav1.LabelSelector{}, "1/1"}, {invalid, "1/1"}} {
		if reconcile(step.selector); b.Status.Clusters == nil || b.Status.Clusters.Summary != step.want {
			t.Errorf("selector %v: got the clusters %+v, want %s", step.selector, b.Status.Clusters, step.want)
		}
	}
}

// A rollout with approvals: the spec decides what is delivered, and the status says what to approve.
func TestAWaveOfABaselineWaitsForItsApproval(t *testing.T) {
	r, b := reconciler(t, interceptor.Funcs{})
	at := time.Now().Truncate(time.Second)
	r.Now = func() time.Time { return at }
	member := types.NamespacedName{Namespace: "team-a", Name: "prod"}
	step := func(name string, change func(*v1.BaselineSpec), delivered bool, reason, by string) v1.WaveApproval {
		t.Helper()
		change(&b.Spec)
		b.Generation++
		if err := r.Client.Update(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(b)}); err != nil {
			t.Fatal(err)
		}
		if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			t.Fatal(err)
		}
		set := r.Deliveries.(deliveries)[set.Baseline][member]
		if got := set != nil && set.Baseline != nil; got != delivered {
			t.Errorf("%s: the member gets the revision: %v, want %v", name, got, delivered)
		}
		ready := meta.FindStatusCondition(b.Status.Conditions, v1.ConditionReady)
		if ready == nil || ready.Reason != reason {
			t.Errorf("%s: Ready is %+v, want reason %s", name, ready, reason)
		}
		if len(b.Status.Waves) != 1 || b.Status.Waves[0].Approval == nil || b.Status.Waves[0].Approval.ApprovedBy != by {
			t.Fatalf("%s: the waves are %+v, want one that is approved by %q", name, b.Status.Waves, by)
		}
		return *b.Status.Waves[0].Approval
	}
	first := step("a new Baseline", func(s *v1.BaselineSpec) {
		s.Rollout = &v1.Rollout{MaxConcurrentClusters: 1, Waves: []v1.Wave{{Name: "all", Approval: v1.ApprovalRequired}}}
	}, false, v1.ReasonAwaitingApproval, "")
	ready := meta.FindStatusCondition(b.Status.Conditions, v1.ConditionReady)
	if !strings.Contains(ready.Message, `"kubectl drover baseline approve cni"`) ||
		!strings.Contains(ready.Message, first.Revision) ||
		meta.FindStatusCondition(b.Status.Conditions, v1.ConditionStalled) != nil {
		t.Errorf("conditions %+v, want the command and revision %s, and not Stalled", b.Status.Conditions, first.Revision)
	}
	approve := func(revision string) func(*v1.BaselineSpec) {
		return func(s *v1.BaselineSpec) {
			s.Approvals = []v1.Approval{{Wave: "all", Revision: revision, ApprovedBy: "alice"}}
		}
	}
	step("another revision", approve(strings.Repeat("0", 56)), false, v1.ReasonAwaitingApproval, "")
	step("a change that makes the approval expire", func(s *v1.BaselineSpec) {
		approve(first.Revision)(s)
		s.Drift = v1.DriftReport
	}, false, v1.ReasonAwaitingApproval, "")
	second := b.Status.Waves[0].Approval.Revision
	if is := step("an approval", approve(second), true, v1.ReasonApplied, "alice"); is.ApprovedAt == nil ||
		!is.ApprovedAt.Time.Equal(at) {
		t.Errorf("it was approved at %v, want %v", is.ApprovedAt, at)
	}
	approvedAt := at
	at = at.Add(time.Hour)
	pause := func(s *v1.BaselineSpec) { s.Paused = true }
	if is := step("a pause", pause, true, v1.ReasonApplied, "alice"); is.ApprovedAt == nil ||
		!is.ApprovedAt.Time.Equal(approvedAt) {
		t.Errorf("after a pause it was approved at %v, want %v", is.ApprovedAt, approvedAt)
	}
	approved := 0
	for recorder := r.Recorder.(*events.FakeRecorder); len(recorder.Events) > 0; {
		if strings.Contains(<-recorder.Events, v1.ReasonWaveApproved) {
			approved++
		}
	}
	if approved != 1 {
		t.Errorf("%d events of the approval, want 1", approved)
	}
	step("new objects", func(s *v1.BaselineSpec) {
		s.Paused = false
		s.Manifests[0].Raw = []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"b"}}`)
	}, false, v1.ReasonAwaitingApproval, "")
}
