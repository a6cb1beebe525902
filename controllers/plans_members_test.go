// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

func testHeldMembers(t *testing.T, w *world) {
	a := w.member("a", map[string]string{v1.LabelPlansHold: "true"})
	w.cluster("b", nil)
	sets := testkit.NewSets()
	sets.Plans.Hold("the window is closed")
	b := w.connect("b", sets)
	c := w.member("c", nil)
	off := w.member("d", map[string]string{v1.PlanLabel("k3s"): v1.PlanDisabled})
	w.plan("k3s")
	w.has(c, "k3s", false)
	says(c, "k3s", v1.ReasonComplete, 1, 1)
	s := w.becomes("k3s", v1.ReasonHeld)
	if s.Clusters.Summary != "1/3" || s.Clusters.Held != 2 {
		t.Errorf("status %+v", s.Clusters)
	}
	for _, m := range []*testkit.Agent{a, b, off} {
		w.lacks(m, "k3s")
	}
	sets.Plans.Hold("")
	w.has(b, "k3s", false)
	says(b, "k3s", v1.ReasonComplete, 1, 1)
	w.relabel("a", map[string]string{v1.LabelPlansHold: "false"})
	w.has(a, "k3s", false)
}

func testPlansOfOneName(t *testing.T, w *world) {
	a := w.member("a", nil)
	other := w.other
	foreign := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "k3s"}}
	foreign.Spec.ClusterSelector, foreign.Spec.Version, foreign.Spec.Upgrade.Image = &metav1.LabelSelector{}, "v1", "evil"
	w.Apply(t, foreign)
	w.eventually(func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(foreign), foreign); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(foreign.Status.Conditions, v1.ConditionComplete); c == nil || c.Reason != v1.ReasonNoClusters {
			return fmt.Errorf("status %+v", foreign.Status)
		}
		return nil
	})
	w.plan("k3s")
	w.has(a, "k3s", false)
	if image := delivered(a, "k3s").Spec.Upgrade.Image; image == "evil" {
		t.Error("the member has the plan of another workspace")
	}
	w.delete(foreign)
	w.reads("k3s", func(s *v1.PlanStatus) bool { return s.Clusters != nil && s.Clusters.Applying == 1 })
	w.has(a, "k3s", false)
}

func testMembersAway(t *testing.T, w *world) {
	w.cluster("a", nil)
	b, c := w.member("b", nil), w.member("c", nil)
	w.plan("k3s")
	w.has(b, "k3s", false)
	b.Kill()
	w.reads("k3s", func(s *v1.PlanStatus) bool { return len(s.Members) == 1 && s.Members[0].Reason == v1.ReasonMembersAway })
	w.lacks(c, "k3s")
	b = w.connect("b", b.Sets)
	says(b, "k3s", v1.ReasonComplete, 1, 1)
	w.has(c, "k3s", false)
	says(c, "k3s", v1.ReasonComplete, 1, 1)
	w.becomes("k3s", v1.ReasonMembersAway)
	a := w.connect("a", testkit.NewSets())
	w.has(a, "k3s", false)
}

func testADeselectedMember(t *testing.T, w *world) {
	a := w.member("a", map[string]string{"env": "prod"})
	w.plan("k3s", func(s *v1.PlanSpec) {
		s.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	})
	w.has(a, "k3s", false)
	says(a, "k3s", v1.ReasonApplying, 2, 1, 1)
	w.relabel("a", map[string]string{"env": "dev"})
	w.has(a, "k3s", true)
	says(a, "k3s", v1.ReasonPaused, 2, 1)
	w.eventually(func(context.Context) error {
		if claim, _ := w.claim("a", "k3s"); claim != "" || delivered(a, "k3s") != nil {
			return fmt.Errorf("claim %q, delivered %v", claim, delivered(a, "k3s"))
		}
		return nil
	})
	w.becomes("k3s", v1.ReasonNoClusters)
}

func testAnAgentThatRefuses(t *testing.T, w *world) {
	a := w.member("a", nil)
	a.Sets.Answer(422)
	w.plan("k3s")
	s := w.reads("k3s", func(s *v1.PlanStatus) bool {
		return len(s.Members) == 1 && s.Members[0].Reason == v1.ReasonDeliveryFailed
	})
	if !strings.Contains(s.Members[0].Message, "422") {
		t.Errorf("status %+v", s.Members)
	}
}

func testAPlanWithoutMembers(t *testing.T, w *world) {
	a := w.member("a", nil)
	w.plan("own", func(s *v1.PlanSpec) { s.ClusterSelector = nil })
	w.plan("k3s")
	w.has(a, "k3s", false)
	w.lacks(a, "own")
	p := &v1.Plan{}
	if err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: w.workspace, Name: "own"}, p); err != nil || p.Status.ObservedGeneration != 0 {
		t.Errorf("the member's own plan: %+v, %v, want no status written by the hub", p.Status, err)
	}
}

func testAPlanForNoCluster(t *testing.T, w *world) {
	w.plan("k3s", func(s *v1.PlanSpec) { s.ClusterSelector, s.ClusterName = nil, "prod" })
	w.becomes("k3s", v1.ReasonClusterNotFound)
	a := w.member("prod", nil)
	w.has(a, "k3s", false)
}

func testTwoPlansOfAMember(t *testing.T, w *world) {
	a := w.member("a", nil)
	w.plan("k3s")
	w.plan("os")
	for _, name := range []string{"k3s", "os"} {
		w.has(a, name, false)
		says(a, name, v1.ReasonComplete, 1, 1)
	}
	w.becomes("k3s", v1.ReasonComplete)
	w.becomes("os", v1.ReasonComplete)
	for _, name := range []string{"k3s", "os"} {
		if claim, label := w.claim("a", name); claim == "" || label == "" {
			t.Errorf("%s: claim %q, label %q", name, claim, label)
		}
	}
}
