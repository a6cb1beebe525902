// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/relay"
)

// TestLong_Changes runs tests one after the other on a whole hub that is its own member and is reached through a relay.
func TestLong_Changes(t *testing.T) {
	t.Parallel()
	s := startAlone(t)
	link := startRelay(t, s.hub.Address)
	s.announce(t, "https://"+link.Address())
	cluster, agent := s.imported(t, "member", s.member, protocol.AgentNamespace)
	s.await(t, cluster, 30*time.Second, framework.Ready)
	if open, _ := link.Counts(); open != 2 {
		t.Fatalf("the agent does not use the relay: %d connections", open)
	}
	m := &changingMember{cluster: cluster, agent: agent, relay: link}
	t.Run("an idle fleet writes nothing", func(t *testing.T) { testIdle(t, s, cluster) })
	t.Run("the hub's CA changes and no agent is lost", func(t *testing.T) { testAuthority(t, s, m) })
	t.Run("a network that fails shows and heals", func(t *testing.T) { testNetwork(t, s, m) })
	t.Run("the hub's address changes and no agent is lost", func(t *testing.T) { testAddress(t, s, m) })
}

// changingMember is a Cluster whose agent reaches the hub through a relay.
type changingMember struct {
	cluster types.NamespacedName
	agent   *framework.Agent
	relay   *relay.Relay
}

// announce restarts the manager with other base URLs.
func (s *system) announce(t *testing.T, urls ...string) {
	t.Helper()
	if err := s.hub.Manager.Stop(within(t, 20*time.Second)); err != nil { // gracefully: it hands the leadership over
		t.Fatal(err)
	}
	s.hub.Announced = urls
	s.restartManager(t)
}
