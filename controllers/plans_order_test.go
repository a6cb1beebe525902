// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/test/testkit"
)

func testPlanOfOneMember(t *testing.T, w *world) {
	a := w.member("prod", nil)
	w.plan("k3s", func(s *v1.PlanSpec) { s.ClusterSelector, s.ClusterName = nil, "prod" })
	w.has(a, "k3s", false)
	p := delivered(a, "k3s")
	if p.Namespace != v1.PlansNamespace || p.Spec.ClusterName != "" || p.Spec.Rollout != nil || p.Spec.Version != "v1.36.3+k3s1" {
		t.Errorf("the member was given %+v", p)
	}
	says(a, "k3s", v1.ReasonApplying, 3, 1, 1)
	w.reads("k3s", func(s *v1.PlanStatus) bool {
		return s.Nodes != nil && s.Nodes.Summary == "1/3" && len(s.Applying) == 1 && s.Applying[0].Cluster == "prod" && len(s.Members) == 1
	})
	says(a, "k3s", v1.ReasonComplete, 3, 3, 0, 0, 0, 2)
	s := w.becomes("k3s", v1.ReasonComplete)
	if ready := meta.FindStatusCondition(s.Conditions, v1.ConditionReady); s.Nodes.LeftOut != 2 || !strings.Contains(ready.Message, "left out because they do not run Linux: 2") {
		t.Errorf("%d nodes are left out, and the message is %q, want 2, and that it says so", s.Nodes.LeftOut, ready.Message)
	}
	if s.Clusters.Summary != "1/1" || s.LatestVersion != "v1.36.3-k3s1" || !meta.IsStatusConditionTrue(s.Conditions, v1.ConditionReady) {
		t.Errorf("status %+v", s)
	}
	if claim, label := w.claim("prod", "k3s"); !strings.Contains(claim, "complete") || label != s.LatestHash {
		t.Errorf("claim %s, label %s", claim, label)
	}
	if err := w.Client.Delete(t.Context(), &v1.Plan{ObjectMeta: w.meta("k3s")}); err != nil {
		t.Fatal(err)
	}
	w.eventually(func(context.Context) error {
		claim, label := w.claim("prod", "k3s")
		if claim != "" || label != "" || delivered(a, "k3s") != nil {
			return fmt.Errorf("claim %q, label %q, delivered %v", claim, label, delivered(a, "k3s"))
		}
		return nil
	})
}

func testWaves(t *testing.T, w *world) {
	canary := w.member("canary", map[string]string{"ring": "canary"})
	one, two, three := w.member("one", nil), w.member("two", nil), w.member("three", nil)
	w.plan("k3s", func(s *v1.PlanSpec) {
		s.Rollout = &v1.Rollout{MaxConcurrentClusters: 2, Waves: []v1.Wave{
			{Name: "first", ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": "canary"}}}}}
	})
	w.has(canary, "k3s", false)
	says(canary, "k3s", v1.ReasonApplying, 1, 0, 1)
	w.reads("k3s", func(s *v1.PlanStatus) bool { return len(s.Applying) == 1 })
	w.lacks(one, "k3s")
	says(canary, "k3s", v1.ReasonComplete, 1, 1)
	w.has(one, "k3s", false)
	w.has(three, "k3s", false) // by name, before "two"
	w.reads("k3s", func(s *v1.PlanStatus) bool { return len(s.Members) == 2 && s.Members[0].Wave == rollout.Rest })
	w.lacks(two, "k3s")
	says(three, "k3s", v1.ReasonComplete, 1, 1)
	w.has(two, "k3s", false)
	says(one, "k3s", v1.ReasonComplete, 1, 1)
	says(two, "k3s", v1.ReasonNoNodes, 0, 0)
	if s := w.becomes("k3s", v1.ReasonComplete); s.Clusters.Summary != "4/4" || len(s.Waves) != 2 || s.Nodes.Summary != "3/3" {
		text, _ := json.Marshal(s)
		t.Errorf("status %s", text)
	}
}

func testSoak(t *testing.T, w *world) {
	first, second := w.member("first", map[string]string{"ring": "0"}), w.member("second", nil)
	w.plan("k3s", func(s *v1.PlanSpec) {
		s.Rollout = &v1.Rollout{MaxConcurrentClusters: 2, Waves: []v1.Wave{{Name: "one", Soak: &metav1.Duration{Duration: 2 * time.Second},
			ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": "0"}}}}}
	})
	w.has(first, "k3s", false)
	says(first, "k3s", v1.ReasonComplete, 1, 1)
	s := w.becomes("k3s", v1.ReasonSoaking)
	until := s.Waves[0].SoakUntil
	w.lacks(second, "k3s")
	w.has(second, "k3s", false)
	if until == nil || time.Now().Before(until.Time) {
		t.Errorf("it began before %v", until)
	}
}

func testTooManyFailures(t *testing.T, w *world) {
	a, b := w.member("a", nil), w.member("b", nil)
	c := w.member("c", nil)
	w.plan("k3s", func(s *v1.PlanSpec) { s.Rollout = &v1.Rollout{MaxConcurrentClusters: 2} })
	w.has(a, "k3s", false)
	w.has(b, "k3s", false)
	says(a, "k3s", v1.ReasonNodeFailed, 3, 1, 0, 1)
	s := w.becomes("k3s", v1.ReasonTooManyFailures)
	if !meta.IsStatusConditionTrue(s.Conditions, v1.ConditionStalled) || len(s.Failures) != 1 || s.Failures[0].Cluster != "a" || s.Failures[0].Log != "boom" {
		t.Errorf("status %+v", s)
	}
	w.has(b, "k3s", true)
	w.has(a, "k3s", false) // its own agent starts no further node, so that its failures can be repaired in the member
	w.lacks(c, "k3s")
	w.change("k3s", func(s *v1.PlanSpec) { s.Rollout.MaxFailedClusters = 1 })
	w.has(b, "k3s", false)
	w.has(c, "k3s", false) // a failed member does not occupy a slot
	w.change("k3s", func(s *v1.PlanSpec) { s.Version = "v1.36.4+k3s1" })
	w.eventually(func(context.Context) error {
		if p := delivered(a, "k3s"); p.Spec.Version != "v1.36.4+k3s1" || !p.Spec.Paused {
			return fmt.Errorf("a has %s, paused %v", p.Spec.Version, p.Spec.Paused)
		}
		return nil
	})
	for _, m := range []*testkit.Agent{a, b, c} {
		w.has(m, "k3s", true)
		says(m, "k3s", v1.ReasonPaused, 3, 0)
	}
	w.has(a, "k3s", false)
	w.has(b, "k3s", false)
	says(a, "k3s", v1.ReasonComplete, 3, 3)
	says(b, "k3s", v1.ReasonComplete, 3, 3)
	w.has(c, "k3s", false)
	says(c, "k3s", v1.ReasonComplete, 3, 3)
	if s := w.becomes("k3s", v1.ReasonComplete); len(s.Failures) > 0 || len(s.Members) > 0 {
		t.Errorf("status %+v", s)
	}
}

func testPause(t *testing.T, w *world) {
	a, b := w.member("a", nil), w.member("b", nil)
	w.plan("k3s")
	w.has(a, "k3s", false)
	w.change("k3s", func(s *v1.PlanSpec) { s.Paused = true })
	w.has(a, "k3s", true)
	says(a, "k3s", v1.ReasonPaused, 1, 0)
	w.becomes("k3s", v1.ReasonPaused)
	w.change("k3s", func(s *v1.PlanSpec) { s.Paused = false })
	w.has(a, "k3s", false)
	says(a, "k3s", v1.ReasonComplete, 1, 1)
	w.has(b, "k3s", false)
}

func testClosedWindow(t *testing.T, w *world) {
	a := w.member("a", nil)
	tomorrow := time.Now().UTC().AddDate(0, 0, 2).Weekday().String()
	w.plan("k3s", func(s *v1.PlanSpec) { s.Window = &v1.TimeWindow{Days: []v1.Day{v1.Day(tomorrow)}} })
	w.becomes("k3s", v1.ReasonAwaitingWindow)
	w.lacks(a, "k3s")
	w.change("k3s", func(s *v1.PlanSpec) { s.Window = nil })
	w.has(a, "k3s", false)
}
