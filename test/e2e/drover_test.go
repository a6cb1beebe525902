// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the whole of Drover with real API servers and real processes that are killed.
package e2e

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
)

func TestAMemberIsImportedAndReached(t *testing.T) {
	t.Parallel()
	s := start(t)
	cluster, agent := s.imported(t, "member", s.member, protocol.AgentNamespace)
	took := s.await(t, cluster, 30*time.Second, framework.Ready)
	t.Logf("agent start to Ready: %s", took)

	t.Run("kubectl get clusters says True Connected and the version", func(t *testing.T) {
		out, err := s.hub.Kubectl(t.Context(), nil, "get", "clusters", "member")
		if err != nil || !strings.Contains(out, "True    Connected   v1.36") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("kubectl works in the member through the hub", func(t *testing.T) {
		for _, args := range [][]string{
			{"get", "namespaces"}, {"create", "configmap", "a", "--from-literal=k=v"}, {"patch", "configmap", "a", "-p", `{"data":{"k":"w"}}`},
			{"get", "configmap", "a", "-o", "jsonpath={.data.k}"}, {"delete", "configmap", "a"},
		} {
			if out, err := s.kubectl(t, cluster, demoToken, args...); err != nil {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
	})
	t.Run("a user without the right is refused, as kubectl shows it", func(t *testing.T) { testRefusals(t, s, cluster) })
	t.Run("an agent that is killed shows in two seconds and heals", func(t *testing.T) {
		if err := agent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s.awaitWithin(t, cluster, 2*time.Second, framework.NotReady(v1.ReasonTunnelLost))
		if _, err := s.kubectl(t, cluster, demoToken, "get", "namespaces"); err == nil || !strings.Contains(err.Error(), "not connected") {
			t.Errorf("kubectl says %v", err)
		}
		s.startAgent(t, agent)
		s.await(t, cluster, 10*time.Second, framework.Ready)
	})
	t.Run("an agent that hangs shows in thirty seconds and heals", func(t *testing.T) {
		if err := agent.Process.Pause(); err != nil {
			t.Fatal(err)
		}
		took := s.awaitWithin(t, cluster, 30*time.Second, framework.NotReady(v1.ReasonTunnelLost))
		t.Logf("noticed after %s", took)
		if err := agent.Process.Resume(); err != nil {
			t.Fatal(err)
		}
		s.await(t, cluster, 40*time.Second, framework.Ready)
	})
	t.Run("a manager that is killed and started again changes no status and the agent comes back", func(t *testing.T) { testManagerRestart(t, s, cluster) })
	t.Run("a manager that is stopped in good order and started again, often, leaves the status true", func(t *testing.T) { testManagerStops(t, s, cluster) })
	t.Run("an agent that stops while the manager is away shows within thirty seconds of its return", func(t *testing.T) {
		if err := s.hub.Manager.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := agent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s.restartManager(t)
		s.awaitWithin(t, cluster, 60*time.Second, framework.NotReady(v1.ReasonTunnelLost))
		s.startAgent(t, agent)
		s.await(t, cluster, 30*time.Second, framework.Ready)
	})
	t.Run("a second cluster with the used token is refused and that shows", func(t *testing.T) { testSecondCluster(t, s, cluster) })
	t.Run("the level of a running agent's log changes", func(t *testing.T) { testLogLevel(t, s, agent) })
	t.Run("no secret is in a log, a status or an event", func(t *testing.T) { testNothingLeaks(t, s) })
	t.Run("a Cluster deleted while connected leaves nothing in the member", func(t *testing.T) { testRemoval(t, s, cluster, agent) })
	t.Run("a new agent removes what an earlier one left, and one command all of it", func(t *testing.T) { testUninstall(t, s) })
}
