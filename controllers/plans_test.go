// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/test/testkit"
)

// plan creates a Plan for all members of the workspace.
func (w *world) plan(name string, change ...func(*v1.PlanSpec)) *v1.Plan {
	w.t.Helper()
	p := &v1.Plan{ObjectMeta: w.meta(name)}
	p.Spec.ClusterSelector = &metav1.LabelSelector{}
	p.Spec.Version, p.Spec.Upgrade.Image = "v1.36.3+k3s1", "rancher/k3s-upgrade"
	for _, f := range change {
		f(&p.Spec)
	}
	w.Apply(w.t, p)
	return p
}

// change edits a Plan.
func (w *world) change(name string, change func(*v1.PlanSpec)) {
	w.t.Helper()
	w.eventually(func(ctx context.Context) error {
		p := &v1.Plan{}
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.workspace, Name: name}, p); err != nil {
			return err
		}
		change(&p.Spec)
		return w.Client.Update(ctx, p)
	})
}

// relabel changes the labels of a Cluster.
func (w *world) relabel(name string, labels map[string]string) {
	w.t.Helper()
	w.eventually(func(ctx context.Context) error {
		c := &v1.Cluster{}
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.workspace, Name: name}, c); err != nil {
			return err
		}
		c.Labels = labels
		return w.Client.Update(ctx, c)
	})
}

// delivered returns the Plan that a member has received, or nil if there is none.
func delivered(a *testkit.Agent, name string) *v1.Plan {
	set, there := a.Sets.Get("plan/" + name)
	if !there {
		return nil
	}
	for _, o := range set.Content.Objects {
		if o.GetKind() == "Plan" {
			p := &v1.Plan{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, p); err != nil {
				panic(err)
			}
			return p
		}
	}
	return nil
}

// says makes a member report progress of the plan that it most recently received.
func says(a *testkit.Agent, name, reason string, counts ...int) {
	p := delivered(a, name)
	n := append(counts, make([]int, 6)...)
	count := rollout.Count(n[0], n[1], n[2], n[3], n[4])
	count.LeftOut = int32(n[5])
	status := v1.PlanStatus{Revision: p.Annotations[v1.AnnotationRevision], Nodes: &count}
	condition := metav1.Condition{Type: v1.ConditionComplete, Status: metav1.ConditionFalse, Reason: reason, Message: "as the test wants"}
	if reason == v1.ReasonComplete {
		condition.Status = metav1.ConditionTrue
	}
	status.Conditions = []metav1.Condition{condition}
	if n[2] > 0 {
		status.Applying = []v1.ApplyingNode{{Node: "node-1", Stage: v1.StageUpgrading, Since: metav1.Now(), Attempt: 1}}
	}
	if n[3] > 0 {
		status.Failures = []v1.NodeFailure{{Node: "node-1", Final: true, At: metav1.Now(), Attempt: 3, Reason: v1.ReasonUpgradeFailed, Message: "exit 1", Log: "boom"}}
	}
	a.Sets.Plans.SetStatus(name, status)
}

// has waits until a member has the plan, running or paused.
func (w *world) has(a *testkit.Agent, name string, paused bool) {
	w.t.Helper()
	w.eventually(func(context.Context) error {
		if p := delivered(a, name); p == nil || p.Spec.Paused != paused {
			return fmt.Errorf("the member has %v, want one with paused %v", p, paused)
		}
		return nil
	})
}

// lacks checks that a member has no plan, now and when everything else has settled.
func (w *world) lacks(a *testkit.Agent, name string) {
	w.t.Helper()
	if p := delivered(a, name); p != nil {
		w.t.Errorf("a member has the plan too early, or still: %v", p.Annotations)
	}
}

// reads waits until a Plan's status passes the check.
func (w *world) reads(name string, check func(*v1.PlanStatus) bool) *v1.PlanStatus {
	w.t.Helper()
	p := &v1.Plan{}
	w.eventually(func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.workspace, Name: name}, p); err != nil {
			return err
		}
		if !check(&p.Status) {
			text, _ := json.Marshal(p.Status)
			return fmt.Errorf("the status is %s", text)
		}
		return nil
	})
	return &p.Status
}

// becomes waits until a Plan's Complete condition has the reason.
func (w *world) becomes(name, reason string) *v1.PlanStatus {
	w.t.Helper()
	return w.reads(name, func(s *v1.PlanStatus) bool { return reasonOf(s) == reason })
}

func reasonOf(s *v1.PlanStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete); c != nil {
		return c.Reason
	}
	return ""
}

// claim returns a Cluster's annotation and label for a plan.
func (w *world) claim(cluster, plan string) (string, string) {
	w.t.Helper()
	c := &v1.Cluster{}
	if err := w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.workspace, Name: cluster}, c); err != nil {
		w.t.Fatal(err)
	}
	return c.Annotations[v1.PlanLabel(plan)], c.Labels[v1.PlanLabel(plan)]
}

func TestPlans(t *testing.T) {
	env := testkit.Shared(t)
	for _, tt := range []struct {
		name string
		test func(*testing.T, *world)
	}{
		{"a plan of one member goes through to complete, and its removal leaves nothing", testPlanOfOneMember},
		{"waves go one after the other, and within them no more at once than allowed", testWaves},
		{"a wave soaks before the next one begins", testSoak},
		{"more failures than allowed stop the plan, and a changed plan goes on", testTooManyFailures},
		{"pause holds all, and resuming goes on", testPause},
		{"members that hold plans off, by a label on the hub or by themselves, are skipped and begin when they take part", testHeldMembers},
		{"in a closed window no member begins", testClosedWindow},
		{"a new leader goes on from the claims alone", testNewLeader},
		{"claims of a plan that was deleted while no manager led are released", testPlanDeletedWithoutALeader},
		{"secrets go along under a name of the plan's, and a change of one does all members again", testSecretsOfAPlan},
		{"CVE-2021-36775, CVE-2023-32199: a Secret goes from members with its label, and with the plan", testSecretOfAPlanGoes},
		{"CVE-2021-36782, CVE-2022-45157, CVE-2024-52284: no Secret of a plan shows in a status, an annotation or an event", testSecretsOfPlansShowNowhere},
		{"CVE-2024-22031: two plans of one name in two workspaces share nothing", testPlansOfOneName},
		{"the manager's configuration decides where channels may be", testChannelsOfTheConfiguration},
		{"a member that is away is passed over, and one that goes away at work keeps its place", testMembersAway},
		{"a manager that has just begun passes over no member that may only not be back yet", testAManagerThatHasJustBegun},
		{"a member that is deselected at work finishes what runs and is let go", testADeselectedMember},
		{"an agent that refuses the plan is named", testAnAgentThatRefuses},
		{"the hub ignores a plan that names no member", testAPlanWithoutMembers},
		{"a plan for a Cluster that is not there says so", testAPlanForNoCluster},
		{"two plans on one member do not disturb each other's claims", testTwoPlansOfAMember},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(t, newWorld(t, env))
		})
	}
}
