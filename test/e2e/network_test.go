// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

func testNetwork(t *testing.T, s *system, m *changingMember) {
	t.Run("a network that loses everything silently shows in thirty seconds", func(t *testing.T) {
		m.relay.Stall()
		t.Logf("noticed after %s", s.awaitWithin(t, m.cluster, 30*time.Second, framework.NotReady(v1.ReasonTunnelLost)))
		m.relay.Flow()
		t.Logf("healed after %s", s.await(t, m.cluster, 40*time.Second, framework.Ready))
	})
	t.Run("a network that cuts and refuses shows at once, and heals when it no longer does", func(t *testing.T) {
		m.relay.Refuse(true)
		m.relay.Cut()
		t.Logf("noticed after %s", s.awaitWithin(t, m.cluster, 5*time.Second, framework.NotReady(v1.ReasonTunnelLost)))
		testkit.Eventually(t, 40*time.Second, func(context.Context) error {
			if _, refused := m.relay.Counts(); refused < 2 {
				return fmt.Errorf("the agent tried %d times", refused)
			}
			return nil
		})
		m.relay.Refuse(false)
		t.Logf("healed after %s", s.await(t, m.cluster, 40*time.Second, framework.Ready))
	})
	t.Run("a network that leads to another server shows, and no secret is sent to it", func(t *testing.T) {
		i := startImpostor(t)
		m.relay.Redirect(i.server.Listener.Addr().String())
		m.relay.Cut()
		s.await(t, m.cluster, 5*time.Second, framework.NotReady(v1.ReasonTunnelLost))
		awaitLog(t, m.agent, 10*time.Second, "certificate signed by unknown authority")
		if seen := i.requests(); len(seen) > 0 {
			t.Errorf("the agent said %s %s", seen[0].Method, seen[0].URL)
		}
		m.relay.Redirect(s.hub.Address)
		t.Logf("healed after %s", s.await(t, m.cluster, 40*time.Second, framework.Ready))
	})
}

func testAddress(t *testing.T, s *system, m *changingMember) {
	kill(t, m.agent.Process) // a new one does not wait as long as after many failures
	s.startAgent(t, m.agent)
	direct := s.hub.URL()
	s.announce(t, "https://"+m.relay.Address(), direct)
	t.Run("the agent learns the second address", func(t *testing.T) {
		s.awaitSettings(t, func(settings protocol.Settings) error {
			if !slices.Equal(settings.Servers, s.hub.Announced) {
				return fmt.Errorf("the agent knows %v", settings.Servers)
			}
			return nil
		})
		s.await(t, m.cluster, 30*time.Second, framework.Ready)
	})
	t.Run("it reaches the hub there when the first address dies", func(t *testing.T) {
		m.relay.Refuse(true)
		m.relay.Cut()
		awaitLog(t, m.agent, 40*time.Second, `"connected to the hub","server":"`+direct+`"`)
		s.await(t, m.cluster, 10*time.Second, framework.Ready)
	})
	t.Run("so does it after a restart, by what it has stored", func(t *testing.T) {
		kill(t, m.agent.Process)
		s.await(t, m.cluster, 10*time.Second, framework.NotReady(v1.ReasonTunnelLost))
		s.startAgent(t, m.agent)
		s.await(t, m.cluster, 20*time.Second, framework.Ready)
	})
	m.relay.Refuse(false)
}

// awaitSettings waits until the settings that the agent has stored meet the given conditions.
func (s *system) awaitSettings(t *testing.T, wanted func(protocol.Settings) error) {
	t.Helper()
	name := types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.IdentitySecret}
	testkit.Eventually(t, 40*time.Second, func(ctx context.Context) error {
		identity, settings := &corev1.Secret{}, protocol.Settings{}
		if err := s.member.Client.Get(ctx, name, identity); err != nil {
			return err
		}
		if len(identity.Data["settings"]) == 0 {
			return errors.New("the agent has stored no settings")
		}
		if err := json.Unmarshal(identity.Data["settings"], &settings); err != nil {
			return err
		}
		return wanted(settings)
	})
}
