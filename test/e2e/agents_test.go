// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// TestLong_TwoAgents runs two replicas of one member's agent. Its Deployment is real and has a real controller. The
// test acts as the kubelet of its pods, and the agents are processes.
func TestLong_TwoAgents(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.addNode(t, "one")
	cluster, manifest := s.created(t, "member")
	pair := []*framework.Agent{
		s.agent(t, manifest, "first", s.member, protocol.AgentNamespace),
		s.agent(t, manifest, "second", s.member, protocol.AgentNamespace),
	}
	s.await(t, cluster, 30*time.Second, func(c *v1.Cluster) bool {
		return framework.Ready(c) && c.Status.Agent.Replicas == 2 && c.Status.Nodes != nil && c.Status.Nodes.Total == 1
	})
	t.Run("the leader's Deployment is rolled out", func(t *testing.T) {
		s.runPods(t, s.deployment(t))
		s.awaitAgent(t, cluster, 30*time.Second, metav1.ConditionTrue, v1.ReasonAgentUpdated)
	})
	t.Run("a second node brings a second replica", func(t *testing.T) {
		s.addNode(t, "two")
		testkit.Eventually(t, 10*time.Second, func(context.Context) error {
			if n := *s.deployment(t).Spec.Replicas; n != 2 {
				return fmt.Errorf("%d replicas", n)
			}
			return nil
		})
		s.runPods(t, s.deployment(t))
		s.await(t, cluster, 10*time.Second, func(c *v1.Cluster) bool { return c.Status.Nodes.Total == 2 })
	})
	t.Run("the leader is killed: the other serves at once, then leads and reports", func(t *testing.T) { testLeaderKilled(t, s, cluster, pair) })
	t.Run("a leader that is stopped until another leads, and goes on, is no second cluster", func(t *testing.T) { testLeaderStopped(t, s, cluster, pair) })
	t.Run("a change of spec.agent reaches the Deployment", func(t *testing.T) {
		s.changeAgent(t, cluster, v1.Agent{Env: []v1.AgentEnv{{Name: "NO_PROXY", Value: "10.0.0.0/8"}}})
		d := s.awaitDeployment(t, "NO_PROXY")
		s.awaitAgent(t, cluster, 10*time.Second, metav1.ConditionFalse, v1.ReasonAgentUpdating)
		s.runPods(t, d)
		s.awaitAgent(t, cluster, 30*time.Second, metav1.ConditionTrue, v1.ReasonAgentUpdated)
	})
	t.Run("one that does not become ready is rolled back, which shows, and is not tried again", func(t *testing.T) { testRolledBack(t, s, cluster) })
	t.Run("deletion leaves nothing behind", func(t *testing.T) {
		if err := s.hub.Client.Delete(t.Context(), s.cluster(t, cluster)); err != nil {
			t.Fatal(err)
		}
		if err := s.member.AwaitGone(within(t, time.Minute), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}}); err != nil {
			t.Error(err)
		}
	})
}

func testLeaderKilled(t *testing.T, s *system, cluster types.NamespacedName, pair []*framework.Agent) {
	leader, other := pair[0], pair[1]
	if raw, err := os.ReadFile(other.Log); err != nil || strings.Contains(string(raw), `"leading"`) {
		leader, other = other, leader
	}
	awaitLog(t, leader, time.Second, `"leading"`)
	holder := s.holder(t)
	kill(t, leader.Process)
	killed := time.Now()
	s.await(t, cluster, 5*time.Second, func(c *v1.Cluster) bool {
		if !framework.Ready(c) || c.Status.Nodes == nil || c.Status.Nodes.Total != 2 {
			t.Errorf("between leaders the status is %+v", c.Status)
		}
		return c.Status.Agent.Replicas == 1
	})
	if out, err := s.kubectl(t, cluster, demoToken, "get", "namespaces"); err != nil {
		t.Errorf("the other replica does not serve: %v\n%s", err, out)
	}
	awaitLog(t, other, 25*time.Second, `"leading"`)
	t.Logf("another leads after %s", time.Since(killed).Round(time.Millisecond))
	if s.holder(t) == holder {
		t.Error("the Lease is still the old leader's")
	}
	s.addNode(t, "three")
	s.await(t, cluster, 10*time.Second, func(c *v1.Cluster) bool { return framework.Ready(c) && c.Status.Nodes.Total == 3 })
	s.startAgent(t, leader)
	s.await(t, cluster, 20*time.Second, func(c *v1.Cluster) bool { return c.Status.Agent.Replicas == 2 })
}

func testLeaderStopped(t *testing.T, s *system, cluster types.NamespacedName, pair []*framework.Agent) {
	before, leader := s.holder(t), pair[0]
	for _, agent := range pair {
		raw, err := os.ReadFile(agent.Log)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), before) && strings.LastIndex(string(raw), `"leading"`) > strings.LastIndex(string(raw), "no longer leading") {
			leader = agent
		}
	}
	if err := leader.Process.Pause(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if now := s.holder(t); now == before {
			return fmt.Errorf("%s leads still, want the other replica", now)
		}
		return nil
	})
	if err := leader.Process.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitLog(t, leader, 30*time.Second, "no longer leading")
	s.await(t, cluster, 30*time.Second, func(c *v1.Cluster) bool {
		if ready := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionReady); ready.Reason == v1.ReasonIdentityMismatch {
			t.Errorf("Ready is %+v, want that it is one cluster", ready)
		}
		return framework.Ready(c) && c.Status.Agent.Replicas == 2
	})
	if out, err := s.kubectl(t, cluster, demoToken, "get", "namespaces"); err != nil {
		t.Errorf("kubectl fails with %v, want the namespaces: %s", err, out)
	}
}

func testRolledBack(t *testing.T, s *system, cluster types.NamespacedName) {
	before := s.deployment(t)
	s.changeAgent(t, cluster, v1.Agent{Image: "registry.invalid/drover:none"})
	d := s.awaitDeployment(t, "registry.invalid/drover:none")
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"progressDeadlineSeconds":3}}`)) // two minutes are long for a test
	if err := s.member.Client.Patch(t.Context(), d, patch); err != nil {
		t.Fatal(err)
	}
	message := s.awaitAgent(t, cluster, time.Minute, metav1.ConditionFalse, v1.ReasonAgentRolledBack)
	t.Log(message)
	after := s.deployment(t)
	if got, want := after.Spec.Template.Spec.Containers[0].Image, before.Spec.Template.Spec.Containers[0].Image; got != want {
		t.Errorf("the image is %s, want %s", got, want)
	}
	if got, want := after.Spec.Template.Annotations[v1.AnnotationAgentDigest], before.Spec.Template.Annotations[v1.AnnotationAgentDigest]; got != want {
		t.Errorf("the digest is %s, want %s", got, want)
	}
	if !framework.Ready(s.cluster(t, cluster)) {
		t.Error("the Cluster is not Ready")
	}
	s.changeAgent(t, cluster, v1.Agent{Env: []v1.AgentEnv{{Name: "NO_PROXY", Value: "10.0.0.0/8"}}})
	s.awaitAgent(t, cluster, 30*time.Second, metav1.ConditionTrue, v1.ReasonAgentUpdated)
}

// addNode adds a ready node to the member.
func (s *system) addNode(t *testing.T, name string) {
	t.Helper()
	have := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")}
	create(t, s.member, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}, Status: corev1.NodeStatus{
		Capacity: have, Allocatable: have, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}})
}

func (s *system) deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := s.member.Client.Get(t.Context(), types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.AgentName}, d); err != nil {
		t.Fatal(err)
	}
	return d
}

// holder returns the holder of the leader's Lease.
func (s *system) holder(t *testing.T) string {
	t.Helper()
	lease := &coordinationv1.Lease{}
	if err := s.member.Client.Get(t.Context(), types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.LeaderLease}, lease); err != nil {
		t.Fatal(err)
	}
	return *lease.Spec.HolderIdentity
}

// changeAgent replaces spec.agent.
func (s *system) changeAgent(t *testing.T, cluster types.NamespacedName, agent v1.Agent) {
	t.Helper()
	testkit.Update(t, s.hub.Client, s.cluster(t, cluster), func(c *v1.Cluster) {
		agent.Trust = c.Spec.Agent.Trust
		c.Spec.Agent = agent
	})
}

// awaitDeployment waits until the container of the agent's Deployment contains a text.
func (s *system) awaitDeployment(t *testing.T, text string) (d *appsv1.Deployment) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		if d = s.deployment(t); !strings.Contains(d.Spec.Template.Spec.Containers[0].String(), text) {
			return errors.New("the Deployment is as it was")
		}
		return nil
	})
	return d
}

// awaitAgent waits for the AgentUpToDate condition and returns its message.
func (s *system) awaitAgent(t *testing.T, cluster types.NamespacedName, limit time.Duration, state metav1.ConditionStatus, reason string) (message string) {
	t.Helper()
	s.await(t, cluster, limit, func(c *v1.Cluster) bool {
		condition := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionAgentUpToDate)
		if condition == nil || condition.Status != state || condition.Reason != reason || condition.ObservedGeneration != c.Generation {
			return false
		}
		message = condition.Message
		return true
	})
	return message
}

// runPods does the work of the scheduler and the kubelet until the Deployment is rolled out.
func (s *system) runPods(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	digest := d.Spec.Template.Annotations[v1.AnnotationAgentDigest]
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := s.member.Client.List(ctx, &pods, client.InNamespace(protocol.AgentNamespace)); err != nil {
			return err
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if !p.DeletionTimestamp.IsZero() || p.Annotations[v1.AnnotationAgentDigest] != digest || p.Status.Phase == corev1.PodRunning {
				continue
			}
			p.Status.Phase = corev1.PodRunning
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			if err := s.member.Client.Status().Update(ctx, p); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		now := s.deployment(t)
		if st := now.Status; st.ObservedGeneration < now.Generation || st.AvailableReplicas != *now.Spec.Replicas || st.UpdatedReplicas != st.Replicas {
			return fmt.Errorf("the Deployment's status is %+v", st)
		}
		return nil
	})
}
