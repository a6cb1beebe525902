// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

var planMembers = flag.Int("plan-members", 30, "of the test of a plan in many members")

const (
	planWaves = 5
	planNodes = 10
)

// works makes an agent in memory run each plan that it receives, node by node, as fast as it can report.
func works(sets *testkit.Sets, running *sync.WaitGroup, atWork *atomic.Int32, most *atomic.Int32) {
	sets.Become(func(content set.Content) protocol.SetState {
		state := protocol.SetState{Phase: protocol.SetApplied}
		for _, o := range content.Objects {
			p := &v1.Plan{}
			if o.GetKind() != "Plan" || runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, p) != nil || p.Spec.Paused {
				continue
			}
			running.Go(func() {
				now := atWork.Add(1)
				for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
				}
				for done := range planNodes {
					sets.Plans.SetStatus(p.Name, progressOf(p, done, v1.ReasonApplying))
				}
				atWork.Add(-1)
				sets.Plans.SetStatus(p.Name, progressOf(p, planNodes, v1.ReasonComplete))
			})
		}
		return state
	})
}

func progressOf(p *v1.Plan, done int, reason string) v1.PlanStatus {
	count := rollout.Count(planNodes, done, min(1, planNodes-done), 0, 0)
	return v1.PlanStatus{Revision: p.Annotations[v1.AnnotationRevision], Nodes: &count, Conditions: []metav1.Condition{
		{Type: v1.ConditionComplete, Status: metav1.ConditionFalse, Reason: reason}}}
}

// writes counts the writes of a kind from now on.
func (w *world) writes(list client.ObjectList) *atomic.Int32 {
	w.t.Helper()
	c, err := client.NewWithWatch(w.Config, client.Options{Scheme: testkit.Scheme(w.t)})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := c.List(w.t.Context(), list, client.InNamespace(w.workspace)); err != nil {
		w.t.Fatal(err)
	}
	changes, err := c.Watch(w.t.Context(), list, &client.ListOptions{Namespace: w.workspace, Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})
	if err != nil {
		w.t.Fatal(err)
	}
	var n atomic.Int32
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for change := range changes.ResultChan() {
			if change.Type == watch.Modified {
				n.Add(1)
			}
		}
	}()
	w.t.Cleanup(func() {
		changes.Stop()
		<-ended
	})
	return &n
}

// TestAPlanInManyMembers rolls out a plan in five waves, and counts the writes to the hub's API server.
func TestAPlanInManyMembers(t *testing.T) {
	w := newWholeWorld(t)
	var running sync.WaitGroup
	var atWork, most atomic.Int32
	for i := range *planMembers {
		name := fmt.Sprintf("member-%03d", i)
		w.cluster(name, map[string]string{"ring": fmt.Sprint(i % planWaves)})
		sets := testkit.NewSets()
		works(sets, &running, &atWork, &most)
		w.connect(name, sets)
	}
	t.Cleanup(running.Wait)
	clusters, plans := w.writes(&v1.ClusterList{}), w.writes(&v1.PlanList{})
	begun, cpu := time.Now(), processTime(t)
	w.plan("k3s", func(s *v1.PlanSpec) {
		s.Rollout = &v1.Rollout{MaxConcurrentClusters: 5}
		for ring := range planWaves {
			s.Rollout.Waves = append(s.Rollout.Waves, v1.Wave{Name: fmt.Sprintf("ring-%d", ring),
				ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": fmt.Sprint(ring)}}})
		}
	})
	testkit.Eventually(t, 5*time.Minute, func(ctx context.Context) error {
		p := &v1.Plan{}
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.workspace, Name: "k3s"}, p); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionComplete) {
			return fmt.Errorf("the status is %v of %v", p.Status.Clusters, p.Status.Conditions)
		}
		return nil
	})
	took := time.Since(begun)
	t.Logf("%d members x %d nodes in %d waves: %s, %s of CPU with agents in memory, %d writes of Clusters, %d of the Plan",
		*planMembers, planNodes, planWaves, took.Round(time.Millisecond), (processTime(t) - cpu).Round(time.Millisecond), clusters.Load(), plans.Load())
	if got, want := int(clusters.Load()), 2**planMembers; got > want {
		t.Errorf("%d writes of Clusters, want %d: one to begin and one to complete for each member", got, want)
	}
	if most.Load() > 5 {
		t.Errorf("%d members at work at once, 5 are allowed", most.Load())
	}
	// At most one write per second, plus one for each change of the condition.
	if got, limit := int(plans.Load()), int(took.Seconds())+2+2*planWaves; got > limit {
		t.Errorf("%d writes of the status within %s, want at most %d", got, took, limit)
	}
}

// processTime returns the CPU time of this process.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
