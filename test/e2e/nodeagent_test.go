// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// TestLong_NodeAgents runs an agent and two node agents of one member as processes. The Deployment and the DaemonSet
// are real and have real controllers. The test acts as the kubelet of their pods.
func TestLong_NodeAgents(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.addNode(t, "one")
	s.addNode(t, "two")
	cluster, _ := s.created(t, "member")
	agent := s.agent(t, s.withNodeAgents(t, cluster), "agent", s.member, protocol.AgentNamespace)
	s.await(t, cluster, 30*time.Second, framework.Ready)
	t.Run("a DaemonSet brings a pod on the network of each node", func(t *testing.T) {
		testkit.Eventually(t, 10*time.Second, func(context.Context) error {
			if n := *s.deployment(t).Spec.Replicas; n != 2 {
				return fmt.Errorf("%d replicas of the agent, want one for each node", n)
			}
			return nil
		})
		s.runPods(t, s.deployment(t))
		testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
			set := &appsv1.DaemonSet{}
			if err := s.member.Client.Get(ctx, types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.NodeAgentName}, set); err != nil {
				return err
			}
			if n := set.Status.CurrentNumberScheduled; n != 2 {
				return fmt.Errorf("%d pods of node agents, want one on each of two nodes: %+v", n, set.Status)
			}
			return nil
		})
		s.awaitAgent(t, cluster, 30*time.Second, metav1.ConditionTrue, v1.ReasonAgentUpdated)
	})
	nodes := s.nodeAgents(t, cluster, "node-a", "node-b")
	t.Run("while the agent is connected no node agent is", func(t *testing.T) {
		if n := s.cluster(t, cluster).Status.Agent.Replicas; n != 1 || reached(t, nodes) != 0 {
			t.Errorf("%d replicas and %d node agents have connected, want 1 and 0", n, reached(t, nodes))
		}
	})
	t.Run("the agent is killed: a node agent serves within a minute", func(t *testing.T) {
		kill(t, agent.Process)
		took := s.awaitWithin(t, cluster, time.Minute, isReadyBy(v1.ReasonConnectedByNodeAgent))
		t.Logf("reached by a node agent after %s", took.Round(time.Second))
		if out, err := s.kubectl(t, cluster, demoToken, "get", "namespaces"); err != nil {
			t.Errorf("the node agent does not serve: %v\n%s", err, out)
		}
		if n := reached(t, nodes); n != 1 {
			t.Errorf("%d node agents have connected, want 1", n)
		}
	})
	t.Run("the agent is back: the hub prefers it, the node agent leaves, and no request fails", func(t *testing.T) {
		s.startAgent(t, agent)
		s.await(t, cluster, 30*time.Second, isReadyBy(v1.ReasonConnected))
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			if out, err := s.kubectl(t, cluster, demoToken, "get", "namespaces"); err != nil {
				t.Fatalf("a request failed while the node agent left: %v\n%s", err, out)
			}
			if !logged(t, nodes, "this node agent no longer serves") {
				return errors.New("the node agent still serves")
			}
			return nil
		})
		if c := s.cluster(t, cluster); !isReadyBy(v1.ReasonConnected)(c) || c.Status.Agent.Replicas != 1 {
			t.Errorf("the status is %+v", c.Status)
		}
	})
	t.Run("deletion leaves nothing behind", func(t *testing.T) { testNodeAgentsRemoved(t, s, cluster) })
}

// withNodeAgents enables node agents for a Cluster, and returns the manifest.
func (s *system) withNodeAgents(t *testing.T, cluster types.NamespacedName) (manifest []byte) {
	t.Helper()
	s.changeAgent(t, cluster, v1.Agent{NodeAgent: true})
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if manifest = s.registrationOf(t, cluster).Data[registration.KeyManifest]; !bytes.Contains(manifest, []byte(v1.AnnotationNodeAgent)) {
			return errors.New("the manifest is without node agents")
		}
		return nil
	})
	return manifest
}

// nodeAgents starts processes of node agents.
func (s *system) nodeAgents(t *testing.T, cluster types.NamespacedName, names ...string) (nodes []*framework.Agent) {
	t.Helper()
	for _, name := range names {
		node, err := framework.InstallAgent(within(t, time.Minute), s.member, s.registrationOf(t, cluster).Data[registration.KeyManifest], name, protocol.AgentNamespace)
		if err != nil {
			t.Fatal(err)
		}
		node.AsNodeAgent()
		s.startAgent(s.t, node)
		nodes = append(nodes, node)
	}
	return nodes
}

// isReadyBy returns a check for await that a Cluster is Ready with the given reason.
func isReadyBy(reason string) func(*v1.Cluster) bool {
	return func(c *v1.Cluster) bool {
		ready := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionReady)
		return ready != nil && ready.Status == metav1.ConditionTrue && ready.Reason == reason
	}
}

// logged reports whether one of the agents has logged the given text.
func logged(t *testing.T, agents []*framework.Agent, text string) bool {
	t.Helper()
	for _, agent := range agents {
		if raw, err := os.ReadFile(agent.Log); err == nil && strings.Contains(string(raw), text) {
			return true
		}
	}
	return false
}

// reached returns how many of the agents have opened a tunnel.
func reached(t *testing.T, agents []*framework.Agent) (n int) {
	t.Helper()
	for _, agent := range agents {
		if logged(t, []*framework.Agent{agent}, "connected to the hub") {
			n++
		}
	}
	return n
}

func testNodeAgentsRemoved(t *testing.T, s *system, cluster types.NamespacedName) {
	if err := s.hub.Client.Delete(t.Context(), s.cluster(t, cluster)); err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: protocol.NodeAgentName}
	for _, object := range []client.Object{
		&appsv1.DaemonSet{ObjectMeta: meta},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
	} {
		if err := s.member.AwaitGone(within(t, time.Minute), object); err != nil {
			t.Error(err)
		}
	}
	out, err := s.hub.Kubectl(t.Context(), nil, "get", "events.events.k8s.io", "-o", "wide", "--field-selector", "reason="+v1.ReasonLeftBehind)
	if err != nil || strings.Contains(out, "cluster/"+cluster.Name+" ") {
		t.Errorf("%v: something was left behind:\n%s", err, out)
	}
}
