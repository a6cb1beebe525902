// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/nodesim"
	"github.com/drover-dev/drover/test/testkit"
)

// TestPlansRun is not parallel, because one of its cases measures memory.
func TestPlansRun(t *testing.T) {
	s := newEnv(t)
	// These cases have their own runners, one after the other.
	t.Run("plans elsewhere take no memory", func(t *testing.T) { testPlansElsewhereTakeNoMemory(t, s) })
	t.Run("a plan says that it is complete without waiting for its limiter", func(t *testing.T) { testPrompt(t, s) })
	t.Run("a member that cannot be upgraded safely is not touched", func(t *testing.T) { testRefused(t, s) })
	t.Run("the hub decides when a member starts that has refused", func(t *testing.T) { testRefusedToHub(t, s) })
	r := s.run(t, options{ask: s.ask})
	cases := map[string]func(*testing.T, *env){
		"prepare, cordon, drain, upgrade, label, uncordon, node after node":      testWholeSequence,
		"a plan that is edited mid-way does the begun node to its end and again": testEdited,
		"a plan that is deleted mid-way leaves nothing behind":                   testDeleted,
		"a paused plan begins nothing and goes on":                               testPaused,
		"a node that is removed takes its claim along":                           testNodeRemoved,
		"a Job that fails is tried again, then the plan stalls with its log":     testFails,
		"a Job that hangs fails at its deadline":                                 testHangs,
		"an image that cannot be pulled fails at the deadline":                   testUnpullable,
		"a node with a taint is named and not touched, the others go on":         testTainted,
		"a node of Windows is left out and named":                                testWindowsNode,
		"a pod that waits for its image says so while it waits":                  testImageIsNamed,
		"a pod that admission refuses says so while the Job waits":               testPodRefused,
		"a node that dies at work fails at the deadline, and waits to be back":   testNodeDies,
		"a pod that is evicted costs no attempt":                                 testEvicted,
		"a Job that a user deletes is created again":                             testJobDeleted,
		"a Job that the API server refuses fails with its words":                 testJobRefused,
		"a node that a user cordoned stays cordoned":                             testForeignCordon,
		"a node that a user uncordons is no longer ours":                         testUncordoned,
		"exclusive plans take turns":                                             testExclusive,
		"a Secret that changes does nodes again, unless its updates are ignored": testSecrets,
		"a node settles for postCompleteDelay with its labels on":                testSettles,
		"concurrency in percent is kept":                                         testConcurrency,
		"a window that is closed is waited for":                                  testWindowClosed,
		"a drain that pods hinder fails and uncordons":                           testDrainHindered,
		"a drain that is no longer wanted ends":                                  testDrainCanceled,
		"the status of a plan elsewhere says where plans run":                    testWrongNamespace,
		"a plan elsewhere has no say about the hub's": func(t *testing.T,
			s *env) {
			testElsewhere(t, s, r)
		},
		"a plan follows its channel, and says so when that leads nowhere":        testChannel,
		"a window that closes under way lets the node finish and no other begin": testWindowCloses,
		"a pod that a PodDisruptionBudget holds goes when that lets it":          testBudget,
		"a label that no version fits into is reported before any step":          testLongLabel,
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// begun waits until a Job of the plan runs a pod on the node.
func (s *env) begun(t *testing.T, plan, node string) *batchv1.Job {
	t.Helper()
	var found batchv1.Job
	eventually(t, func(ctx context.Context) error {
		jobs := &batchv1.JobList{}
		err := s.client.List(ctx, jobs, client.InNamespace(v1.PlansNamespace),
			client.MatchingLabels{"upgrade.cattle.io/plan": plan, "upgrade.cattle.io/node": node})
		if err != nil {
			return err
		}
		for _, job := range jobs.Items {
			if job.Status.Active == 1 && strings.HasPrefix(job.Name, "apply-") && job.DeletionTimestamp == nil {
				found = job
				return nil
			}
		}
		return fmt.Errorf("no Job of %s runs on %s", plan, node)
	})
	return &found
}

// pod creates a pod of an application on a node. No controller creates it again, but its owner makes drains believe so.
func (s *env) pod(t *testing.T, name, node string, change func(*corev1.Pod)) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "app"}},
		TerminationGracePeriodSeconds: new(int64(1)),
	}}
	change(p)
	if err := s.client.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func (s *env) gone(t *testing.T, object client.Object) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(object), object); client.IgnoreNotFound(err) != nil ||
			err == nil {
			return errors.Join(err, fmt.Errorf("%s still exists", object.GetName()))
		}
		return nil
	})
}

func testWholeSequence(t *testing.T, s *env) {
	s.nodes(t, "whole", "whole-a", "whole-b")
	s.pod(t, "whole-app", "whole-a", func(*corev1.Pod) {})
	s.pod(t, "whole-agent", "whole-a",
		func(p *corev1.Pod) { p.Labels = map[string]string{"app.kubernetes.io/name": "drover-agent"} })
	s.pod(t, "whole-disguised", "whole-a", func(p *corev1.Pod) {
		p.Namespace, p.Labels = metav1.NamespaceSystem,
			map[string]string{"app.kubernetes.io/name": "drover-agent", "upgrade.cattle.io/controller": "x"}
	})
	p := newPlan("whole", 0)
	p.Spec.Prepare = &v1.PlanContainer{Image: "rancher/k3s-upgrade", Args: []string{"prepare", "other"}}
	p.Spec.Drain = &v1.Drain{Force: true, Timeout: &metav1.Duration{Duration: 20 * time.Second}}
	s.create(t, p)
	p = s.await(t, "whole", v1.ReasonComplete)
	s.expectNode(t, "whole-a", "whole", p.Status.LatestHash, false)
	s.expectNode(t, "whole-b", "whole", p.Status.LatestHash, false)
	s.gone(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "whole-app", Namespace: metav1.NamespaceDefault}})
	s.gone(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "whole-disguised", Namespace: metav1.NamespaceSystem}})
	if err := s.client.Get(t.Context(), client.ObjectKey{Name: "whole-agent", Namespace: metav1.NamespaceDefault},
		&corev1.Pod{}); err != nil {
		t.Errorf("the agent's own pod: %v", err)
	}
	var nodes []string
	for _, node := range s.sim.Seen() {
		if strings.HasPrefix(node, "whole-") {
			nodes = append(nodes, node)
		}
	}
	if got := fmt.Sprint(nodes); got != "[whole-a whole-a whole-b whole-b]" { // prepare and upgrade on each node
		t.Errorf("pods ran on %s", got)
	}
}

func testEdited(t *testing.T, s *env) {
	s.nodes(t, "edited", "edited-a")
	s.script("edited-a", nodesim.Script{Takes: 2 * time.Second})
	p := newPlan("edited", 0)
	p.Spec.Cordon = true
	s.create(t, p)
	first := s.begun(t, "edited", "edited-a")
	s.change(t, p, func() { p.Spec.Version = "v1.37.0" })
	p = s.await(t, "edited", v1.ReasonComplete)
	s.expectNode(t, "edited-a", "edited", p.Status.LatestHash, false)
	job := &batchv1.Job{}
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(first), job); err == nil && job.Status.Succeeded != 1 {
		t.Errorf("the Job that had begun did not finish: %+v", job.Status)
	}
}

func testDeleted(t *testing.T, s *env) {
	s.nodes(t, "deleted", "deleted-a")
	s.script("deleted-a", nodesim.Script{Hangs: true})
	p := newPlan("deleted", 0)
	p.Spec.Cordon = true
	s.create(t, p)
	job := s.begun(t, "deleted", "deleted-a")
	if n := s.node(t, "deleted-a"); !n.Spec.Unschedulable {
		t.Error("the node is not cordoned")
	}
	if err := s.client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	s.gone(t, job)
	eventually(t, func(context.Context) error {
		if n := s.node(t, "deleted-a"); n.Spec.Unschedulable || n.Annotations[v1.PlanLabel("deleted")] != "" {
			return errors.New("the node is not released")
		}
		return nil
	})
}

func testPaused(t *testing.T, s *env) {
	s.nodes(t, "paused", "paused-a", "paused-b")
	s.script("paused-a", nodesim.Script{Takes: time.Second})
	p := newPlan("paused", 0)
	s.create(t, p)
	s.begun(t, "paused", "paused-a")
	s.change(t, p, func() { p.Spec.Paused = true })
	eventually(t, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if p.Status.Nodes == nil || p.Status.Nodes.Complete != 1 {
			return fmt.Errorf("status %+v", p.Status)
		}
		return nil
	})
	s.await(t, "paused", v1.ReasonPaused)
	s.expectNode(t, "paused-b", "paused", "", false)
	s.change(t, p, func() { p.Spec.Paused = false })
	s.await(t, "paused", v1.ReasonComplete)
}

func testNodeRemoved(t *testing.T, s *env) {
	s.nodes(t, "removed", "removed-a", "removed-b")
	s.script("removed-a", nodesim.Script{Hangs: true})
	s.create(t, newPlan("removed", 0))
	job := s.begun(t, "removed", "removed-a")
	if err := s.client.Delete(t.Context(), s.node(t, "removed-a")); err != nil {
		t.Fatal(err)
	}
	p := s.await(t, "removed", v1.ReasonComplete)
	if p.Status.Nodes.Summary != "1/1" {
		t.Errorf("nodes %s, want 1/1", p.Status.Nodes.Summary)
	}
	s.gone(t, job)
}

func testFails(t *testing.T, s *env) {
	s.nodes(t, "fails", "fails-a", "fails-b")
	bad := nodesim.Script{Exit: 3, Log: "checking\nno space left on device\n"}
	s.script("fails-a", bad, bad)
	p := newPlan("fails", 1)
	p.Spec.Cordon = true
	s.create(t, p)
	p = s.await(t, "fails", v1.ReasonNodeFailed)
	if len(p.Status.Failures) != 1 {
		t.Fatalf("failures %+v, want one", p.Status.Failures)
	}
	f := p.Status.Failures[0]
	if f.Node != "fails-a" || f.Attempt != 2 || !f.Final || f.Reason != v1.ReasonUpgradeFailed ||
		f.Log != "checking\nno space left on device" {
		t.Errorf("failure %+v, want the second and last attempt on fails-a, with its log", f)
	}
	if !meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionStalled) {
		t.Error("not Stalled")
	}
	if n := s.node(t, "fails-a"); n.Spec.Unschedulable {
		t.Error("the failed node is still cordoned")
	}
	s.expectNode(t, "fails-b", "fails", "", false)
	s.change(t, p, func() { p.Spec.Upgrade.Args = []string{"again"} })
	p = s.await(t, "fails", v1.ReasonComplete)
	s.expectNode(t, "fails-a", "fails", p.Status.LatestHash, false)
}

func testHangs(t *testing.T, s *env) {
	s.nodes(t, "hangs", "hangs-a")
	s.script("hangs-a", nodesim.Script{Hangs: true})
	p := newPlan("hangs", 0)
	p.Spec.JobActiveDeadlineSecs = new(int64(10))
	s.create(t, p)
	p = s.await(t, "hangs", v1.ReasonNodeFailed)
	if f := p.Status.Failures[0]; f.Reason != v1.ReasonDeadlineExceeded || strings.Contains(f.Message, "pod") {
		t.Errorf("failure %+v, want DeadlineExceeded, and nothing about a pod that waits", f)
	}
}

func testNodeDies(t *testing.T, s *env) {
	s.nodes(t, "dies", "dies-a", "dies-b")
	s.script("dies-a", nodesim.Script{Dies: true})
	p := newPlan("dies", 1)
	p.Spec.JobActiveDeadlineSecs = new(int64(10))
	s.create(t, p)
	first := s.begun(t, "dies", "dies-a")
	p = s.await(t, "dies", v1.ReasonNodeFailed)
	stalled := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionStalled)
	if stalled == nil || !strings.Contains(stalled.Message, "node dies-a is at work and not ready") ||
		p.Status.Nodes.Failed != 1 {
		t.Errorf("nodes %+v, stalled %+v, want one failed, and Stalled to name dies-a", p.Status.Nodes, stalled)
	}
	if f := p.Status.Failures[0]; f.Reason != v1.ReasonDeadlineExceeded || f.Final ||
		!strings.Contains(f.Message, "node dies-a is not ready") {
		t.Errorf("failure %+v, want DeadlineExceeded, not final, for dies-a", f)
	}
	pods := &corev1.PodList{}
	if err := s.client.List(t.Context(), pods, client.InNamespace(v1.PlansNamespace),
		client.MatchingLabels{"upgrade.cattle.io/plan": "dies"}); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp == nil || pods.Items[0].Spec.NodeName != "dies-a" {
		t.Errorf("pods %+v, want the first, which nothing ended", pods.Items)
	}
	s.change(t, p, func() { p.Spec.JobActiveDeadlineSecs = nil })
	if err := s.sim.Revive(t.Context(), "dies-a"); err != nil {
		t.Fatal(err)
	}
	p = s.await(t, "dies", v1.ReasonComplete)
	s.expectNode(t, "dies-a", "dies", p.Status.LatestHash, false)
	s.gone(t, &corev1.Pod{ObjectMeta: pods.Items[0].ObjectMeta})
	if again := s.job(t, first.Name); again.UID == first.UID {
		t.Error("the node was labelled without another attempt")
	}
}

// job returns the current state of a Job of a plan.
func (s *env) job(t *testing.T, name string) *batchv1.Job {
	t.Helper()
	job := &batchv1.Job{}
	if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: v1.PlansNamespace, Name: name}, job); err != nil {
		t.Fatal(err)
	}
	return job
}

func testUnpullable(t *testing.T, s *env) {
	s.nodes(t, "pull", "pull-a")
	s.script("pull-a", nodesim.Script{Unpullable: true})
	p := newPlan("pull", 0)
	// Long enough for a slow machine: the kubelet must have reported the image before the Job ends.
	p.Spec.JobActiveDeadlineSecs = new(int64(15))
	s.create(t, p)
	p = s.await(t, "pull", v1.ReasonNodeFailed)
	if f := p.Status.Failures[0]; f.Reason != v1.ReasonDeadlineExceeded ||
		!strings.Contains(f.Message, "ImagePullBackOff: no such image") {
		t.Errorf("failure %+v, want DeadlineExceeded and what the kubelet said of the image", f)
	}
}

func testEvicted(t *testing.T, s *env) {
	s.nodes(t, "evicted", "evicted-a")
	s.script("evicted-a", nodesim.Script{Evicted: true})
	s.create(t, newPlan("evicted", 0))
	p := s.await(t, "evicted", v1.ReasonComplete)
	s.expectNode(t, "evicted-a", "evicted", p.Status.LatestHash, false)
}

func testJobDeleted(t *testing.T, s *env) {
	s.nodes(t, "byhand", "byhand-a")
	s.script("byhand-a", nodesim.Script{Hangs: true})
	s.create(t, newPlan("byhand", 0))
	job := s.begun(t, "byhand", "byhand-a")
	if err := s.client.Delete(t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	s.await(t, "byhand", v1.ReasonComplete)
}

func testJobRefused(t *testing.T, s *env) {
	s.nodes(t, "jobrefused", "jobrefused-a")
	p := newPlan("jobrefused", 0)
	p.Spec.Cordon = true
	p.Spec.Upgrade.Envs = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}} // the schema accepts it
	s.create(t, p)
	p = s.await(t, "jobrefused", v1.ReasonNodeFailed)
	if f := p.Status.Failures[0]; f.Reason != v1.ReasonJobRefused || !strings.Contains(f.Message, "valueFrom") {
		t.Errorf("failure %+v, want JobRefused because of valueFrom", f)
	}
	if n := s.node(t, "jobrefused-a"); n.Spec.Unschedulable {
		t.Error("the node is still cordoned")
	}
}

func testForeignCordon(t *testing.T, s *env) {
	s.nodes(t, "foreign", "foreign-a")
	n := s.node(t, "foreign-a")
	s.change(t, n, func() { n.Spec.Unschedulable = true })
	p := newPlan("foreign", 0)
	p.Spec.Drain = &v1.Drain{}
	s.create(t, p)
	p = s.await(t, "foreign", v1.ReasonComplete)
	s.expectNode(t, "foreign-a", "foreign", p.Status.LatestHash, true)
}

func testUncordoned(t *testing.T, s *env) {
	s.nodes(t, "under", "under-a")
	s.script("under-a", nodesim.Script{Takes: 2 * time.Second})
	p := newPlan("under", 0)
	p.Spec.Cordon = true
	s.create(t, p)
	s.begun(t, "under", "under-a")
	n := s.node(t, "under-a")
	s.change(t, n, func() { n.Spec.Unschedulable = false })
	eventually(t, func(context.Context) error {
		if claim := s.node(t, "under-a").Annotations[v1.PlanLabel("under")]; strings.Contains(claim, "cordoned") {
			return errors.New(claim)
		}
		return nil
	})
	s.change(t, n, func() { n.Spec.Unschedulable = true }) // now the cordon is the user's
	p = s.await(t, "under", v1.ReasonComplete)
	s.expectNode(t, "under-a", "under", p.Status.LatestHash, true)
}

func testExclusive(t *testing.T, s *env) {
	s.nodes(t, "excl1", "excl1-a")
	s.nodes(t, "excl2", "excl2-a")
	s.script("excl1-a", nodesim.Script{Takes: 8 * time.Second})
	first, second := newPlan("excl1", 0), newPlan("excl2", 0)
	first.Spec.Exclusive, second.Spec.Exclusive = true, true
	s.create(t, first)
	s.begun(t, "excl1", "excl1-a")
	s.create(t, second)
	p := s.await(t, "excl2", v1.ReasonAwaitingSlot)
	if message := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady).Message; !strings.Contains(message,
		"excl1") {
		t.Errorf("message %q does not name the other plan", message)
	}
	s.await(t, "excl1", v1.ReasonComplete)
	s.await(t, "excl2", v1.ReasonComplete)
}

func testSecrets(t *testing.T, s *env) {
	s.nodes(t, "secrets", "secrets-a")
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1.PlansNamespace},
			StringData: map[string]string{"k": "v"}}
	}
	counted, ignored := secret("counted"), secret("ignored")
	p := newPlan("secrets", 0)
	p.Spec.Secrets = []v1.PlanSecret{{Name: "counted"}, {Name: "ignored", IgnoreUpdates: true}}
	s.create(t, p)
	p = s.await(t, "secrets", v1.ReasonSecretNotFound)
	if !meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionStalled) ||
		meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionLatestResolved) {
		t.Errorf("conditions %+v, want Stalled, and LatestResolved False", p.Status.Conditions)
	}
	s.create(t, counted)
	s.create(t, ignored)
	before := s.await(t, "secrets", v1.ReasonComplete).Status.LatestHash
	s.change(t, ignored, func() { ignored.StringData = map[string]string{"k": "w"} })
	s.change(t, counted, func() { counted.StringData = map[string]string{"k": "w"} })
	eventually(t, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if p.Status.LatestHash == before || !meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionComplete) {
			return fmt.Errorf("status %+v", p.Status)
		}
		return nil
	})
	s.expectNode(t, "secrets-a", "secrets", p.Status.LatestHash, false)
	s.change(t, ignored, func() { ignored.StringData = map[string]string{"k": "x"} })
	pods := len(s.sim.Seen())
	s.change(t, p, func() { p.Spec.Paused = true }) // the runner sees this after it has seen the Secret
	p = s.await(t, "secrets", v1.ReasonComplete)
	for _, node := range s.sim.Seen()[pods:] {
		if node == "secrets-a" {
			t.Error("a change of a Secret that is to be ignored did the node again")
		}
	}
}

func testSettles(t *testing.T, s *env) {
	s.nodes(t, "settles", "settles-a", "settles-b")
	p := newPlan("settles", 0)
	p.Spec.Cordon = true
	p.Spec.PostCompleteDelay = &metav1.Duration{Duration: 3 * time.Second}
	p.Spec.PostCompleteLabels = map[string]v1.LabelTemplate{"example.org/version": "is-$(LATEST_VERSION)"}
	s.create(t, p)
	s.await(t, "settles", v1.ReasonSettling)
	n := s.node(t, "settles-a")
	if n.Labels["example.org/version"] != "is-v1.36.3-k3s1" || n.Spec.Unschedulable {
		t.Errorf("labels %v, unschedulable %t, want the version as a label, and the node uncordoned", n.Labels,
			n.Spec.Unschedulable)
	}
	s.expectNode(t, "settles-b", "settles", "", false)
	s.await(t, "settles", v1.ReasonComplete)
}

func testConcurrency(t *testing.T, s *env) {
	var names []string
	for i := range 6 {
		names = append(names, fmt.Sprintf("percent-%d", i))
		s.script(names[i], nodesim.Script{Takes: time.Second})
	}
	s.nodes(t, "percent", names...)
	p := newPlan("percent", 0)
	p.Spec.Concurrency = new(intstr.FromString("50%"))
	s.create(t, p)
	most := int32(0)
	eventually(t, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		nodes := &corev1.NodeList{}
		if err := s.client.List(ctx, nodes, client.MatchingLabels{"for": "percent"}); err != nil {
			return err
		}
		claims := int32(0)
		for _, n := range nodes.Items {
			if n.Annotations[v1.PlanLabel("percent")] != "" {
				claims++
			}
		}
		if most = max(most, claims); !meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionComplete) {
			return errors.New("not complete")
		}
		return nil
	})
	if most != 3 {
		t.Errorf("%d of 6 nodes were at work at once, want 3", most)
	}
}

func testWindowClosed(t *testing.T, s *env) {
	s.nodes(t, "window", "window-a")
	p := newPlan("window", 0)
	p.Spec.Window = &v1.TimeWindow{Days: []v1.Day{v1.Day(time.Now().UTC().Add(72 * time.Hour).Weekday().String())}}
	s.create(t, p)
	s.await(t, "window", v1.ReasonAwaitingWindow)
	s.expectNode(t, "window-a", "window", "", false)
	s.change(t, p, func() { p.Spec.Window = nil })
	s.await(t, "window", v1.ReasonComplete)
}

func testDrainHindered(t *testing.T, s *env) {
	s.nodes(t, "hinder", "hinder-a")
	s.pod(t, "hinder-app", "hinder-a", func(*corev1.Pod) {})
	p := newPlan("hinder", 0)
	p.Spec.Drain = &v1.Drain{}
	s.create(t, p)
	p = s.await(t, "hinder", v1.ReasonNodeFailed)
	if f := p.Status.Failures[0]; f.Reason != v1.ReasonDrainFailed || !strings.Contains(f.Message, "default/hinder-app") ||
		!strings.Contains(f.Message, "force") {
		t.Errorf("failure %+v, want DrainFailed with the pod and the option force", f)
	}
	if s.node(t, "hinder-a").Spec.Unschedulable {
		t.Error("the node is still cordoned")
	}
}

func testDrainCanceled(t *testing.T, s *env) {
	s.nodes(t, "cancel", "cancel-a")
	s.pod(t, "cancel-app", "cancel-a", func(p *corev1.Pod) { p.Finalizers = []string{"example.org/stays"} })
	t.Cleanup(func() {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cancel-app", Namespace: metav1.NamespaceDefault}}
		_ = s.client.Patch(context.WithoutCancel(t.Context()), pod,
			client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	})
	p := newPlan("cancel", 0)
	p.Spec.Drain = &v1.Drain{Force: true}
	s.create(t, p)
	eventually(t, func(ctx context.Context) error {
		pod := &corev1.Pod{}
		if err := s.client.Get(ctx, client.ObjectKey{Name: "cancel-app", Namespace: metav1.NamespaceDefault},
			pod); err != nil || pod.DeletionTimestamp == nil {
			return fmt.Errorf("not evicted: %w", err)
		}
		return nil
	})
	s.change(t, p, func() { p.Spec.Paused = true })
	s.await(t, "cancel", v1.ReasonPaused)
	s.expectNode(t, "cancel-a", "cancel", "", false)
}

// streamed returns the events of a stream of the runner up to Synced.
func (r *runner) streamed(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience*5*time.Second)
	defer cancel()
	server := httptest.NewServer(r.stream)
	defer server.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+protocol.StreamPath(protocol.SubjectPlans), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var all strings.Builder
	for lines := bufio.NewScanner(resp.Body); lines.Scan() && !strings.Contains(all.String(), `"synced":true`); {
		all.WriteString(lines.Text() + "\n")
	}
	return all.String()
}

// testElsewhere checks that a user who can write Plans in some namespace of a member cannot fake the status of the
// hub's Plans.
func testElsewhere(t *testing.T, s *env, r *runner) {
	s.nodes(t, "fleet", "fleet-a")
	for _, namespace := range []string{v1.PlansNamespace, "kube-system"} {
		p := newPlan("fleet", 0)
		p.Namespace, p.Annotations = namespace, map[string]string{v1.AnnotationRevision: "r1"}
		s.create(t, p)
	}
	s.await(t, "fleet", v1.ReasonComplete)
	eventually(t, func(ctx context.Context) error {
		other := &v1.Plan{}
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "fleet"}, other); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(other.Status.Conditions, v1.ConditionStalled) {
			return errors.New("the other was not looked at yet")
		}
		return nil
	})
	if told := r.streamed(t); !strings.Contains(told, `"reason":"Complete"`) ||
		strings.Contains(told, v1.ReasonWrongNamespace) {
		t.Errorf("the hub hears %s", told)
	}
}

func testWrongNamespace(t *testing.T, s *env) {
	p := newPlan("elsewhere", 0)
	p.Namespace = metav1.NamespaceDefault
	s.create(t, p)
	eventually(t, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionStalled); c == nil ||
			c.Reason != v1.ReasonWrongNamespace {
			return fmt.Errorf("conditions %+v", p.Status.Conditions)
		}
		return nil
	})
}

func testChannel(t *testing.T, s *env) {
	s.nodes(t, "channel", "channel-a")
	p := newPlan("channel", 0)
	p.Spec.Version, p.Spec.Channel = "", "https://example.org/nowhere"
	s.create(t, p)
	eventually(t, func(context.Context) error {
		p = s.await(t, "channel", v1.ReasonChannelFailed)
		if c := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady); !strings.Contains(c.Message,
			"does not lead to a version: it answers 404") {
			return errors.New(c.Message)
		}
		return nil
	})
	s.change(t, p, func() { p.Spec.Channel = "https://example.org/stable" })
	p = s.await(t, "channel", v1.ReasonComplete)
	s.expectNode(t, "channel-a", "channel", p.Status.LatestHash, false)
	if p.Status.LatestVersion != "v9.0.0-k3s1" {
		t.Errorf("version %q, want v9.0.0-k3s1", p.Status.LatestVersion)
	}
}

func testWindowCloses(t *testing.T, s *env) {
	s.nodes(t, "closes", "closes-a", "closes-b")
	s.script("closes-a", nodesim.Script{Takes: 2 * time.Second})
	p := newPlan("closes", 0)
	p.Spec.Cordon = true
	p.Spec.Window = &v1.TimeWindow{}
	s.create(t, p)
	s.begun(t, "closes", "closes-a")
	s.change(t, p, func() {
		p.Spec.Window.Days = []v1.Day{v1.Day(time.Now().UTC().Add(72 * time.Hour).Weekday().String())}
	})
	eventually(t, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if p.Status.Nodes == nil || p.Status.Nodes.Complete != 1 {
			return fmt.Errorf("status %+v", p.Status)
		}
		return nil
	})
	p = s.await(t, "closes", v1.ReasonAwaitingWindow)
	s.expectNode(t, "closes-a", "closes", p.Status.LatestHash, false)
	s.expectNode(t, "closes-b", "closes", "", false)
}

func testBudget(t *testing.T, s *env) {
	s.nodes(t, "budget", "budget-a")
	labels := map[string]string{"app": "budget"}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault,
		Name: "budget"}}
	budget.Spec.Selector, budget.Spec.MaxUnavailable = &metav1.LabelSelector{MatchLabels: labels}, new(intstr.FromInt32(0))
	s.create(t, budget)
	s.pod(t, "budget-app", "budget-a", func(p *corev1.Pod) { p.Labels = labels })
	p := newPlan("budget", 0)
	p.Spec.Drain = &v1.Drain{Force: true, Timeout: &metav1.Duration{Duration: 5 * time.Second}}
	s.create(t, p)
	p = s.await(t, "budget", v1.ReasonNodeFailed)
	if f := p.Status.Failures[0]; f.Reason != v1.ReasonDrainFailed || !strings.Contains(f.Message, "default/budget-app") ||
		!strings.Contains(f.Message, "disruption budget") {
		t.Errorf("failure %+v, want DrainFailed with the pod and its disruption budget", f)
	}
	if s.node(t, "budget-a").Spec.Unschedulable {
		t.Error("the failed node is still cordoned")
	}
	s.change(t, p, func() { p.Spec.Drain.Timeout = &metav1.Duration{Duration: time.Minute} })
	eventually(t, func(context.Context) error {
		if !s.node(t, "budget-a").Spec.Unschedulable {
			return errors.New("the node is not drained again")
		}
		return nil
	})
	if err := s.client.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	p = s.await(t, "budget", v1.ReasonComplete)
	s.expectNode(t, "budget-a", "budget", p.Status.LatestHash, false)
}

func testLongLabel(t *testing.T, s *env) {
	s.nodes(t, "long", "long-a")
	p := newPlan("long", 0)
	p.Spec.Version = "v1." + strings.Repeat("0", 61)
	p.Spec.PostCompleteLabels = map[string]v1.LabelTemplate{"example.org/version": "$(LATEST_VERSION)"}
	s.create(t, p)
	p = s.await(t, "long", v1.ReasonInvalidPlan)
	if !meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionStalled) {
		t.Error("not Stalled")
	}
	s.expectNode(t, "long-a", "long", "", false)
	s.change(t, p, func() { p.Spec.PostCompleteLabels = nil })
	s.await(t, "long", v1.ReasonComplete)
}
