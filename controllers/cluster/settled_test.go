// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

func TestSettled(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		led      time.Duration // after the start
		clusters int
		want     time.Duration
	}{
		"agents that lost their hub get their first few attempts":           {0, 10, settleTime + 25*time.Millisecond},
		"those of a former leader come to one that had been running":        {time.Hour, 10, time.Hour + takeoverTime + 25*time.Millisecond},
		"ten thousand are admitted at a limited rate, and none is lost yet": {0, 10_000, settleTime + 25*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Started: start, led: start.Add(tt.led), admissionTime: members.AdmissionTime(tt.clusters)}
			if got := r.settled().Sub(start); got != tt.want {
				t.Errorf("settled after %s, want %s", got, tt.want)
			}
		})
	}
}

func TestMemberWhoseTunnelEndedHereIsLostAtOnce(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	gone := members.State{LastSeen: now}
	for name, tt := range map[string]struct {
		member   members.State
		unsynced bool
		was      metav1.ConditionStatus
		want     time.Duration // after now, 0 for immediately
	}{
		"seen to go":                          {gone, false, metav1.ConditionTrue, 0},
		"seen to go, before it was Ready":     {gone, false, metav1.ConditionUnknown, 0},
		"seen to disconnect":                  {members.State{LastSeen: now, Left: true}, false, metav1.ConditionTrue, movingTime},
		"seen to go with many":                {members.State{LastSeen: now, Returning: now.Add(40 * time.Second)}, false, metav1.ConditionTrue, 40 * time.Second},
		"seen to go with many, and not here":  {members.State{LastSeen: now, Returning: now.Add(40 * time.Second)}, true, metav1.ConditionTrue, syncRecheck},
		"gone with many, before it was Ready": {members.State{LastSeen: now, Returning: now.Add(40 * time.Second)}, false, metav1.ConditionUnknown, 0},
		"gone with many, and refused since":   {members.State{LastSeen: now, Returning: now.Add(40 * time.Second), Refusal: &members.Rejection{Reason: v1.ReasonTunnelLost}}, false, metav1.ConditionTrue, 0},
		"gone with many that had their time":  {members.State{LastSeen: now.Add(-time.Minute), Returning: now}, false, metav1.ConditionTrue, 0},
		"seen to go, it may be at a replica":  {gone, true, metav1.ConditionTrue, syncRecheck},
		"not seen since the start":            {members.State{}, false, metav1.ConditionTrue, settleTime},
		"not seen, and known to be lost":      {members.State{}, false, metav1.ConditionFalse, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &v1.Cluster{Status: v1.ClusterStatus{Conditions: []metav1.Condition{{Type: v1.ConditionReady, Status: tt.was}}}}
			in := &input{cluster: cluster, identity: &registration.AgentIdentity{}, member: tt.member, now: now, settled: now.Add(settleTime), synced: !tt.unsynced}
			want := time.Time{}
			if tt.want > 0 {
				want = now.Add(tt.want)
			}
			if got := in.tooEarly(); !got.Equal(want) {
				t.Errorf("nothing is said until %s, want %s", got, want)
			}
		})
	}
}

func TestArrivingAgentGetsAMomentToReport(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	joined := func(before time.Duration) *registration.AgentIdentity {
		return &registration.AgentIdentity{Joined: now.Add(-before)}
	}
	connected := func(before time.Duration) members.State {
		return members.State{Peers: []members.Peer{{Epoch: now.Add(-before - time.Hour).UnixNano()}, {Epoch: now.Add(-before).UnixNano()}}}
	}
	reported, unreadable := connected(0), connected(0)
	reported.Report, unreadable.ReportErr = &protocol.Report{}, errors.New("not JSON")
	for name, tt := range map[string]struct {
		identity *registration.AgentIdentity
		member   members.State
		want     time.Duration // after now, 0 for immediately
	}{
		"no agent has joined":                   {nil, members.State{}, 0},
		"joined a moment ago":                   {joined(arrivalTime / 2), members.State{}, arrivalTime / 2},
		"joined, and did not connect":           {joined(arrivalTime), members.State{}, 0},
		"connected a moment ago":                {joined(time.Hour), connected(arrivalTime / 4), 3 * arrivalTime / 4},
		"connected, and did not report":         {joined(time.Hour), connected(arrivalTime), 0},
		"connected and reported":                {joined(0), reported, 0},
		"its report cannot be read":             {joined(0), unreadable, 0},
		"joined a moment ago, and already gone": {joined(0), members.State{LastSeen: now}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			in := &input{cluster: &v1.Cluster{}, identity: tt.identity, member: tt.member, now: now, settled: now.Add(-time.Minute), synced: true}
			want := time.Time{}
			if tt.want > 0 {
				want = now.Add(tt.want)
			}
			if got := in.tooEarly(); !got.Equal(want) {
				t.Errorf("nothing is said until %s, want %s", got, want)
			}
		})
	}
}

func TestReplicaGetsAMomentToConnectBesideANodeAgent(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	connected := func(nodeAgents ...bool) members.State {
		s := members.State{Report: &protocol.Report{}}
		for i, is := range nodeAgents { // one second after the other, the last one a second ago
			s.Peers = append(s.Peers, members.Peer{NodeAgent: is, Epoch: now.Add(time.Duration(i-len(nodeAgents)) * time.Second).UnixNano()})
		}
		return s
	}
	for name, tt := range map[string]struct {
		member members.State
		was    metav1.ConditionStatus
		reason string
		want   time.Duration // after now, 0 for immediately
	}{
		"by a node agent, where a replica was before":     {connected(true), metav1.ConditionTrue, v1.ReasonConnected, replicaTime - time.Second},
		"by two, one of which came before":                {connected(true, true), metav1.ConditionTrue, v1.ReasonConnected, replicaTime - 2*time.Second},
		"by a node agent, where one was before":           {connected(true), metav1.ConditionTrue, v1.ReasonConnectedByNodeAgent, 0},
		"by a node agent, where the member was not ready": {connected(true), metav1.ConditionFalse, v1.ReasonTunnelLost, 0},
		"by a replica, too":                               {connected(true, false), metav1.ConditionTrue, v1.ReasonConnectedByNodeAgent, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &v1.Cluster{Status: v1.ClusterStatus{Conditions: []metav1.Condition{{Type: v1.ConditionReady, Status: tt.was, Reason: tt.reason}}}}
			in := &input{cluster: cluster, identity: &registration.AgentIdentity{}, member: tt.member, now: now, settled: now, synced: true}
			want := time.Time{}
			if tt.want > 0 {
				want = now.Add(tt.want)
			}
			if got := in.tooEarly(); !got.Equal(want) {
				t.Errorf("nothing is said until %s, want %s", got, want)
			}
		})
	}
}
