// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReplicasKnowWhetherAManagerLeads uses a simulated clock. Each replica knows only the Leases that it reads and
// writes.
func TestReplicasKnowWhetherAManagerLeads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, seconds := &fakeLeases{}, int32(15)
		leader, standby := NewRecorder(client), NewRecorder(client)
		led := func(when string, want bool) {
			t.Helper()
			if _, err := standby.Leases("").Get(t.Context(), "", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := []bool{leader.Led(), standby.Led()}; got[0] != want || got[1] != want {
				t.Errorf("%s: leader and standby say %v, want %t", when, got, want)
			}
		}
		if none := (*Recorder)(nil); !none.Led() || !standby.Led() {
			t.Error("without an election, and before the Lease is read: want that a manager leads")
		}
		client.lease = &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds}}
		leader.write(t, 0, "first")
		led("after the first renewal", true)
		time.Sleep(14 * time.Second)
		led("before the Lease expires", true)
		leader.write(t, 0, "first")
		led("after another renewal", true)
		time.Sleep(14 * time.Second)
		led("14 s after it", true)
		time.Sleep(time.Second)
		led("after the Lease has expired", false)
		leader.write(t, 0, "first")
		led("after a late renewal", true)
		leader.write(t, 0, "")
		led("after the leader has released the Lease", false)
	})
}
