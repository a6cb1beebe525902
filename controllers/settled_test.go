// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// Agents wait up to 30 s between attempts, the hub gives up an attempt after 10 s, and it admits 400 agents per second.
func TestManagerWaitsForTheSlowestAgent(t *testing.T) {
	t.Parallel()
	for clusters, least := range map[int]time.Duration{0: 40 * time.Second, 400: 41 * time.Second, 10_000: 65 * time.Second} {
		if got := returnTime(clusters); got < least || got > least+10*time.Second {
			t.Errorf("with %d Clusters a manager waits %s, want %s and little more", clusters, got, least)
		}
	}
}

// If a front proxy opens minutes after the manager has started, no agent can connect before that, so no agent has had
// time to reconnect.
func TestReturnTimeBeginsWithTheFirstAgent(t *testing.T) {
	t.Parallel()
	s := shared{client: fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).Build()}
	long := returnTime(0) + time.Minute
	for what, c := range map[string]struct {
		first time.Time
		want  bool
	}{
		"no agent was connected yet":        {time.Time{}, false},
		"the first was connected just now":  {time.Now(), false},
		"the first was connected long ago":  {time.Now().Add(-long), true},
		"the first came before most others": {time.Now().Add(-protocol.AttemptTime), false},
	} {
		settled := s.settled(func() time.Time { return c.first })
		if got := settled(); got != c.want {
			t.Errorf("%s: agents have had time to come back: %t, want %t", what, got, c.want)
		}
	}
}

func TestFirstConnectedAgentIsRecorded(t *testing.T) {
	t.Parallel()
	all := members.New(logr.Discard(), time.Now)
	t.Cleanup(all.Close)
	first := firstConnected(all.States, all.Notices)
	if at := first(); !at.IsZero() {
		t.Errorf("before any agent was connected it is %s", at)
	}
	before := time.Now()
	connect := func(name string) {
		t.Helper()
		agent := testkit.ConnectAgent(t, protocol.Report{Protocol: protocol.Version, MinProtocol: protocol.MinVersion, Leader: true})
		all.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: name, UID: name}, Instance: name}, agent.Session)
	}
	connect(protocol.HostMember("rack1"))
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if first().IsZero() {
			return errors.New("no agent was noted")
		}
		return nil
	})
	noted := first()
	connect("edge")
	if noted.Before(before) || !first().Equal(noted) {
		t.Errorf("the first was connected at %s, and after the second it is %s; want a time after %s that stays", noted, first(), before)
	}
}
