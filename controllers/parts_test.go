// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"
	"time"
)

// Agents wait up to 30 s between two attempts, the hub gives up an attempt after 10 s, and it admits 400 agents in a second.
func TestAManagerWaitsForAgentsUntilTheSlowestMustBeBack(t *testing.T) {
	t.Parallel()
	for clusters, least := range map[int]time.Duration{0: 40 * time.Second, 400: 41 * time.Second, 10_000: 65 * time.Second} {
		if got := returnTime(clusters); got < least || got > least+10*time.Second {
			t.Errorf("with %d Clusters a manager waits %s, want %s and little more", clusters, got, least)
		}
	}
}
