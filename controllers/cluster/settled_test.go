// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"
)

func TestSettled(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		led      time.Duration // after the start
		clusters int
		want     time.Duration
	}{
		"agents that lost their hub get their first few attempts":         {0, 10, settleTime + 25*time.Millisecond},
		"those of a former leader come to one that had been running":      {time.Hour, 10, time.Hour + takeoverTime + 25*time.Millisecond},
		"ten thousand are let in at a pace, and none of them is lost yet": {0, 10_000, settleTime + 25*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Started: start, led: start.Add(tt.led), crowding: crowding(tt.clusters)}
			if got := r.settled().Sub(start); got != tt.want {
				t.Errorf("settled after %s, want %s", got, tt.want)
			}
		})
	}
}
