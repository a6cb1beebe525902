// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

var etcdTaint = corev1.Taint{Key: "node-role.kubernetes.io/etcd", Effect: corev1.TaintEffectNoExecute}

func (b *fixture) says(w rollout.Wait, reason string, words ...string) {
	b.Helper()
	b.reason(w, reason)
	for _, word := range words {
		if !strings.Contains(w.Message, word) {
			b.Errorf("the message is %q, want it to say %q", w.Message, word)
		}
	}
}

func TestNodeWithAnUntoleratedTaintIsNotTouched(t *testing.T) {
	tolerating := func(s *v1.PlanSpec) { s.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }
	t.Run("the message names it before it is cordoned, and other nodes continue", func(t *testing.T) {
		b := newFixture(t, "a", "b")
		b.m.Nodes[0].Taints = []corev1.Taint{etcdTaint}
		p := aPlan("p", nil)
		b.steps(p)
		b.after(time.Hour)
		b.says(b.steps(p), v1.ReasonAwaitingNodes, "node a has the taint node-role.kubernetes.io/etcd:NoExecute",
			"spec.tolerations")
		b.want("b begin, b cordon, b upgrade, b complete, b clean")
		progress, err := rollout.ProgressOf(b.m.Member, p, b.now)
		if err != nil || progress.Nodes.Held != 1 || progress.Nodes.Complete != 1 {
			t.Errorf("nodes %+v, %v, want one complete and one held", progress.Nodes, err)
		}
	})
	for name, tt := range map[string]struct {
		taint  corev1.Taint
		change func(*v1.PlanSpec)
	}{
		"all taints are tolerated": {etcdTaint, tolerating},
		"that taint is tolerated": {etcdTaint, func(s *v1.PlanSpec) {
			s.Tolerations = []corev1.Toleration{{Key: etcdTaint.Key, Operator: corev1.TolerationOpExists}}
		}},
		"the taint is only a preference": {corev1.Taint{Key: "a", Effect: corev1.TaintEffectPreferNoSchedule}, nil},
		"its value is tolerated": {corev1.Taint{Key: "team", Value: "db", Effect: corev1.TaintEffectNoSchedule},
			func(s *v1.PlanSpec) {
				s.Tolerations = []corev1.Toleration{{Key: "team", Value: "web"},
					{Key: "team", Value: "db", Effect: corev1.TaintEffectNoSchedule}}
			}},
		"its number is below the limit of the toleration": {corev1.Taint{Key: "sla", Value: "5",
			Effect: corev1.TaintEffectNoSchedule}, func(s *v1.PlanSpec) {
			s.Tolerations = []corev1.Toleration{{Key: "sla", Operator: corev1.TolerationOpLt, Value: "6"}}
		}},
		"the node has just become ready": {
			corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}, nil,
		},
		"the node was cordoned": {
			corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}, nil,
		},
	} {
		t.Run("it begins if "+name, func(t *testing.T) {
			b := newFixture(t, "a")
			b.m.Nodes[0].Taints = []corev1.Taint{tt.taint}
			b.steps(aPlan("p", tt.change))
			b.want("a begin, a cordon, a upgrade")
		})
	}
	for name, toleration := range map[string]corev1.Toleration{
		"another key": {Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists},
		"another effect": {
			Key: etcdTaint.Key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
		},
		"another value":               {Key: etcdTaint.Key, Value: "true"},
		"a limit that does not match": {Key: etcdTaint.Key, Operator: corev1.TolerationOpGt, Value: "1"},
	} {
		t.Run("it does not begin if the toleration has "+name, func(t *testing.T) {
			b := newFixture(t, "a")
			b.m.Nodes[0].Taints = []corev1.Taint{etcdTaint}
			b.says(b.steps(aPlan("p", func(s *v1.PlanSpec) { s.Tolerations = []corev1.Toleration{toleration} })),
				v1.ReasonAwaitingNodes, "node a has the taint")
			b.want("")
		})
	}
	t.Run("a node that gets the taint while it is prepared is released and not cordoned", func(t *testing.T) {
		b := newFixture(t, "a")
		p := aPlan("p", func(s *v1.PlanSpec) { s.Prepare = &v1.PlanContainer{Image: "i"} })
		b.steps(p)
		b.m.Nodes[0].Taints = []corev1.Taint{etcdTaint}
		b.m.Jobs[0].State = rollout.Succeeded
		b.says(b.steps(p), v1.ReasonAwaitingNodes, "node a has the taint")
		b.want("a begin, a prepare, a release, a clean")
		if b.m.Nodes[0].Unschedulable {
			t.Error("the node is cordoned, want it as it was")
		}
	})
	t.Run("a node that gets it after a failure waits for the next attempt and says why", func(t *testing.T) {
		b := newFixture(t, "a")
		p := aPlan("p", func(s *v1.PlanSpec) { s.Retries = &v1.PlanRetries{Backoff: &metav1.Duration{Duration: time.Second}} })
		b.steps(p)
		b.m.Jobs[0].State = rollout.Failed
		b.m.Nodes[0].Taints = []corev1.Taint{etcdTaint}
		b.steps(p)
		b.after(time.Minute)
		b.says(b.steps(p), v1.ReasonAwaitingRetry, "node a has the taint")
		b.m.Nodes[0].Taints = nil
		b.steps(p)
		b.want("a begin, a cordon, a upgrade, a fail, a retry, a clean, a cordon, a upgrade")
	})
}

func TestNodeThatCannotRunPodsOfPlansIsLeftOutAndNamed(t *testing.T) {
	b := newFixture(t, "a", "w")
	b.m.Nodes[1].OS = "windows"
	p := aPlan("p", nil)
	b.says(b.steps(p), v1.ReasonApplying, "0 of 1 complete", "node w is left out: it runs windows")
	b.after(time.Hour)
	b.says(b.steps(p), v1.ReasonComplete, "1 node complete", "node w is left out")
	b.want("a begin, a cordon, a upgrade, a complete, a clean")

	if progress, err := rollout.ProgressOf(b.m.Member, p, b.now); err != nil || progress.Nodes.LeftOut != 1 ||
		progress.Nodes.Summary != "1/1" {
		t.Errorf("nodes %+v, %v, want one complete of one, and one left out", progress.Nodes, err)
	}

	b.m.Nodes[1].Labels[v1.PlanLabel("p")] = v1.PlanDisabled
	if w := b.steps(p); strings.Contains(w.Message, "left out") {
		t.Errorf("the message is %q, want it not to mention a node that a user left out", w.Message)
	}
	only := newFixture(t, "w")
	only.m.Nodes[0].OS = "windows"
	only.says(only.steps(p), v1.ReasonNoNodes, "no node is selected", "node w is left out")
}

func TestPlanSaysWhyThePodOfANodeHasNotStarted(t *testing.T) {
	b := newFixture(t, "a")
	p := aPlan("p", nil)
	b.steps(p)
	b.m.Jobs[0].Waiting = "its pod has not started: ImagePullBackOff: no such image"
	b.says(b.steps(p), v1.ReasonApplying, "node a: its pod has not started: ImagePullBackOff: no such image")
}
