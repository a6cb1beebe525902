// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/config"
)

const head = "apiVersion: config.drover.dev/v1\nkind: ManagerConfig\nserver: {urls: [\"https://hub\"]}\n"

func TestRolloutOfAgents(t *testing.T) {
	for name, tt := range map[string]struct {
		rollout            string
		concurrent, failed int // for 250 Clusters
		waves              int
		problem            string
	}{
		"the default is staged": {"{}", 25, 2, 2, ""},
		"numbers":               {"{maxConcurrentClusters: 7, maxFailedClusters: 0}", 7, 0, 2, ""},
		"shares, rounded up and down": {
			"{maxConcurrentClusters: 1%, maxFailedClusters: 1%, waves: []}", 3, 2, 0, "",
		},
		"at least one at a time": {"{maxConcurrentClusters: 0}", 1, 2, 2, ""},
		"configured waves": {
			"{waves: [{name: canary, clusterSelector: {matchLabels: {ring: canary}}, soak: 1h}]}", 25, 2, 1, "",
		},
		"an invalid share": {"{maxFailedClusters: half}", 0, 0, 0, "agent.rollout.maxFailedClusters"},
		"a share of more than all": {
			"{maxConcurrentClusters: 101%}", 0, 0, 0, "agent.rollout.maxConcurrentClusters",
		},
		"two waves with the same name": {"{waves: [{name: a}, {name: a}]}", 0, 0, 0, "agent.rollout.waves[1]"},
		"a wave of more than all":      {"{waves: [{name: a, share: 101}]}", 0, 0, 0, "agent.rollout.waves[0]"},
		"an invalid selector": {
			"{waves: [{name: a, clusterSelector: {matchExpressions: [{key: a, operator: Like}]}}]}", 0, 0, 0,
			"waves[0].clusterSelector",
		},
		"a window that never opens": {
			"{window: {startTime: \"02:00\", endTime: \"02:00\"}}", 0, 0, 0, "agent.rollout.window",
		},
		"a window in the machine's local time":  {"{window: {timeZone: Local}}", 0, 0, 0, "agent.rollout.window"},
		"a key that is not one (the unit is %)": {"{waves: [{name: a, percent: 1}]}", 0, 0, 0, "percent"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse([]byte(head + "agent: {rollout: " + tt.rollout + "}\n"))
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Errorf("the error is %v, want one of %s", err, tt.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p := c.Agent.Rollout.Pace(250); p.MaxConcurrent != tt.concurrent || p.MaxFailed != tt.failed ||
				len(p.Waves) != tt.waves {
				t.Errorf("the pace is %+v, want %d at once, %d failed, %d waves", p, tt.concurrent, tt.failed, tt.waves)
			}
		})
	}
}
