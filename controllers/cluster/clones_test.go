// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// connectedCluster returns the input for a Cluster whose agent has joined and is connected.
func connectedCluster(report *protocol.Report) *input {
	return &input{
		cluster: &v1.Cluster{}, name: types.NamespacedName{Namespace: "team-a", Name: "prod"}, now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), synced: true,
		identity: &registration.AgentIdentity{ClusterUID: "uid"},
		member:   members.State{Report: report, Peers: []members.Peer{{Instance: "a"}, {Instance: "b"}}},
	}
}

func (in *input) write() *status.Update {
	update := status.Begin(in.cluster)
	writeStatus(in, update)
	return update
}

func (in *input) has(kind string) metav1.Condition {
	if c := meta.FindStatusCondition(in.cluster.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func healthy() *protocol.Report {
	return &protocol.Report{Protocol: protocol.Version, MinProtocol: protocol.Version, Leader: true, Health: protocol.Health{Healthy: true}, Version: "v1.36.3",
		Capabilities: protocol.Capabilities{Features: []string{protocol.FeatureSets}}}
}

func TestTwoClustersWithOneIdentityAreReported(t *testing.T) {
	t.Parallel()
	in := connectedCluster(healthy())
	in.write()
	if c := in.has(v1.ConditionReady); c.Reason != v1.ReasonConnected {
		t.Fatalf("Ready is %+v, want Connected", c)
	}
	in.member.Clones = &members.Clones{Agents: []string{"a", "b"}}
	in.member.Report = healthy()
	in.member.Report.Version = "v1.35.0" // of the other cluster
	in.write()
	for _, kind := range []string{v1.ConditionConnected, v1.ConditionReady} {
		c := in.has(kind)
		if c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonIdentityMismatch {
			t.Errorf("%s is %+v, want IdentityMismatch", kind, c)
		}
		for _, part := range []string{"agent a ", "agent b ", "stays in force in the copy", "scale deployment drover-agent --replicas=0", "Secret prod-agent"} {
			if !strings.Contains(c.Message, part) {
				t.Errorf("%s says %q, want %q in it", kind, c.Message, part)
			}
		}
	}
	if c := in.has(v1.ConditionStalled); c.Status != metav1.ConditionTrue || c.Reason != v1.ReasonIdentityMismatch {
		t.Errorf("Stalled is %+v, want IdentityMismatch", c)
	}
	if in.cluster.Status.Version != "v1.36.3" {
		t.Errorf("the version is %s, want the one from before: it is not known whose facts these are", in.cluster.Status.Version)
	}
	in.member.Clones, in.settled = nil, in.now.Add(time.Minute)
	if early := in.tooEarly(); !early.Equal(in.settled) {
		t.Errorf("a manager that has just started decides at %s, want at %s: it does not know yet that they are two", early, in.settled)
	}
	in.now = in.settled
	if early := in.tooEarly(); !early.IsZero() {
		t.Errorf("later it waits until %s, want that it decides", early)
	}
	in.write()
	if c := in.has(v1.ConditionReady); c.Status != metav1.ConditionTrue || in.has(v1.ConditionStalled).Type != "" {
		t.Errorf("Ready is %+v once they are one, want True and nothing stalled", c)
	}
}

func TestAgentWithoutALeaderIsReported(t *testing.T) {
	t.Parallel()
	follows := healthy()
	follows.Leader = false
	in := connectedCluster(follows)
	in.write()
	if c := in.has(v1.ConditionMaintained); c.Type != "" {
		t.Errorf("Maintained is %+v before a minute is over, want nothing", c)
	}
	in.member.NoLeader = in.now.Add(-time.Minute)
	in.write()
	if c := in.has(v1.ConditionMaintained); c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonNoLeader || !strings.Contains(c.Message, "2026-05-01T11:59:00Z") {
		t.Errorf("Maintained is %+v, want NoLeader with the time", c)
	}
	if c := in.has(v1.ConditionReady); c.Status != metav1.ConditionTrue {
		t.Errorf("Ready is %+v, want True: users are served", c)
	}
	in.member.NoLeader = time.Time{} // another manager, which has not waited for a minute
	in.write()
	if c := in.has(v1.ConditionMaintained); c.Reason != v1.ReasonNoLeader {
		t.Errorf("Maintained is %+v, want it as it was until a replica leads", c)
	}
	in.member.Report = healthy()
	in.write()
	if c := in.has(v1.ConditionMaintained); c.Type != "" {
		t.Errorf("Maintained is %+v once a replica leads, want nothing", c)
	}
}

func TestRestoredMemberIsReportedForADay(t *testing.T) {
	t.Parallel()
	in := connectedCluster(healthy())
	in.write()
	if c := in.has(v1.ConditionContinuous); c.Type != "" {
		t.Errorf("Continuous is %+v, want nothing", c)
	}
	began := in.now
	in.member.Report.Restored = began.Add(-10 * time.Second)
	in.write()
	c := in.has(v1.ConditionContinuous)
	if c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonMemberRestored || !strings.Contains(c.Message, "2026-05-01T11:59:50Z") || !strings.Contains(c.Message, "were in force again") {
		t.Errorf("Continuous is %+v, want MemberRestored with the time and what it meant", c)
	}
	if wait := in.lookAgain(); wait != 24*time.Hour {
		t.Errorf("it looks again after %s, want after a day", wait)
	}
	in.now = began.Add(time.Hour)
	in.write()
	if again := in.has(v1.ConditionContinuous); !again.LastTransitionTime.Equal(&c.LastTransitionTime) {
		t.Errorf("it begins again at %s, want %s", again.LastTransitionTime, c.LastTransitionTime)
	}
	in.member.Report = healthy() // the agent was restarted
	in.write()
	if c := in.has(v1.ConditionContinuous); c.Type == "" {
		t.Error("it is gone with the agent's process, want it for a day")
	}
	in.member.Report.Restored = began.Add(time.Hour)
	in.write()
	if again := in.has(v1.ConditionContinuous); again.LastTransitionTime.Equal(&c.LastTransitionTime) {
		t.Error("another restore is not told, want it told")
	}
	in.now = in.now.Add(24 * time.Hour) // the agent's process keeps running
	in.write()
	if c := in.has(v1.ConditionContinuous); c.Type != "" {
		t.Errorf("Continuous is %+v after a day, want nothing", c)
	}
}
