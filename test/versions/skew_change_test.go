// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// deploy applies what "make deploy" of a version applies.
func (s *skew) deploy(t *testing.T, r release) {
	t.Helper()
	s.hub.Use(r.Programs)
	s.programs = r.Programs
	apply := []string{"apply", "--server-side", "--force-conflicts"}
	for _, command := range []struct {
		stdin []byte
		args  []string
	}{
		{args: append(apply, "-k", "config/crd")},
		{args: []string{"wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"}},
		{args: append(apply, "-f", "-"), stdin: render(t, r.Programs)},
	} {
		if _, err := s.hub.Kubectl(t.Context(), command.stdin, command.args...); err != nil {
			t.Fatal(err)
		}
	}
}

// mix deploys a version and restarts the replica that does not lead, which is then of that version.
func (s *skew) mix(t *testing.T, r release) {
	s.agentsStay = true
	s.hubImage = r.image
	s.deploy(t, r)
	s.restart(t, s.other)
}

// replace restarts the leader, too. The other replica leads then.
func (s *skew) replace(t *testing.T) {
	s.restart(t, s.leader)
	s.leader, s.other = s.other, s.leader
}

// restart restarts a replica of the manager. The other one leads from then on.
func (s *skew) restart(t *testing.T, replica *framework.Replica) {
	t.Helper()
	if err := replica.Process.Stop(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		lease, key := &coordinationv1.Lease{}, client.ObjectKey{Namespace: "drover-system", Name: "drover-manager"}
		if err := s.hub.Client.Get(ctx, key, lease); err != nil {
			return err
		}
		holder, renewed := lease.Spec.HolderIdentity, lease.Spec.RenewTime
		if holder == nil || *holder == "" || renewed == nil || renewed.Time.Before(stopped) {
			return fmt.Errorf("the Lease is %+v, want a leader since %s stopped at %s", lease.Spec, replica.Name, stopped)
		}
		return nil
	})
	ctx := within(t, time.Minute)
	s.images[replica] = s.hubImage
	if err := replica.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.hub.AwaitBalanced(ctx); err != nil {
		t.Fatal(err)
	}
}

// changeAgents lets the hub give the member's agent another version. The old agent changes its own Deployment; the test
// is the kubelet of its pods.
func (s *skew) changeAgents(t *testing.T, to release) {
	s.agentsStay = false
	s.restart(t, s.other)
	s.replace(t)
	testkit.Eventually(t, 2*time.Minute, func(context.Context) error {
		if got := s.deployment(t).Spec.Template.Spec.Containers[0].Image; got != to.image {
			return fmt.Errorf("the agent's Deployment has the image %s, want %s", got, to.image)
		}
		return nil
	})
	s.member.Use(to.Programs)
	next, err := framework.UpdatedAgent(within(t, time.Minute), s.member, s.now.agent+"-"+fmt.Sprint(s.round))
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Start(); err != nil {
		t.Fatal(err)
	}
	both := func(c *v1.Cluster) bool { return c.Status.Agent.Replicas == 2 }
	if _, err := s.hub.AwaitCluster(within(t, time.Minute), s.cluster, both); err != nil {
		t.Fatal(err)
	}
	s.runAgentPods(t)
	if err := s.agent.Process.Stop(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.agent, s.agentNow = next, to
	s.changeHostAgent(t, to)
}

// awaitAgent waits until the Cluster is ready with one agent of a version. The condition AgentUpToDate has to tell if
// the hub has another version for it.
func (s *skew) awaitAgent(t *testing.T, want release) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		c := &v1.Cluster{}
		if err := s.hub.Client.Get(ctx, s.cluster, c); err != nil {
			return err
		}
		agent, reason := c.Status.Agent, v1.ReasonAgentUpdated
		if want.image != s.images[s.leader] {
			reason = v1.ReasonAgentWaiting
		}
		said := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionAgentUpToDate)
		if !framework.Ready(c) || agent == nil || agent.Replicas != 1 || agent.Version != want.version ||
			agent.Image != want.image || said == nil || said.Reason != reason {
			return fmt.Errorf("the agent is %+v with the conditions %+v, want version %s with the reason %s",
				agent, c.Status.Conditions, want.version, reason)
		}
		return nil
	})
}

func (s *skew) deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: protocol.AgentNamespace, Name: protocol.AgentName}
	if err := s.member.Client.Get(t.Context(), key, d); err != nil {
		t.Fatal(err)
	}
	return d
}

// runAgentPods does the work of the kubelets until the agent's Deployment is rolled out.
func (s *skew) runAgentPods(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := s.member.Client.List(ctx, pods, client.InNamespace(protocol.AgentNamespace)); err != nil {
			return err
		}
		image := s.deployment(t).Spec.Template.Spec.Containers[0].Image
		for i := range pods.Items {
			p := &pods.Items[i]
			if !p.DeletionTimestamp.IsZero() || p.Spec.Containers[0].Image != image || p.Status.Phase == corev1.PodRunning {
				continue
			}
			p.Status.Phase = corev1.PodRunning
			ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}
			p.Status.Conditions = []corev1.PodCondition{ready}
			if err := s.member.Client.Status().Update(ctx, p); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		now := s.deployment(t)
		st := now.Status
		if st.ObservedGeneration < now.Generation || st.AvailableReplicas != *now.Spec.Replicas ||
			st.UpdatedReplicas != st.Replicas {
			return fmt.Errorf("the Deployment's status is %+v", st)
		}
		return nil
	})
}
