// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
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
			r := &Reconciler{Started: start, led: start.Add(tt.led), admissionTime: admissionTime(tt.clusters)}
			if got := r.settled().Sub(start); got != tt.want {
				t.Errorf("settled after %s, want %s", got, tt.want)
			}
		})
	}
}

func TestAMemberThatThisManagerSawGoIsLostAtOnce(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	gone := members.State{LastSeen: now}
	for name, tt := range map[string]struct {
		member   members.State
		unsynced bool
		was      metav1.ConditionStatus
		want     time.Duration // after now, 0 for at once
	}{
		"seen to go":                         {gone, false, metav1.ConditionTrue, 0},
		"seen to go, before it was Ready":    {gone, false, metav1.ConditionUnknown, 0},
		"seen to disconnect":                 {members.State{LastSeen: now, Left: true}, false, metav1.ConditionTrue, movingTime},
		"seen to go, it may be at a replica": {gone, true, metav1.ConditionTrue, syncRecheck},
		"not seen since the start":           {members.State{}, false, metav1.ConditionTrue, settleTime},
		"not seen, and known to be lost":     {members.State{}, false, metav1.ConditionFalse, 0},
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
