// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/limit"
)

func TestLimitsAndAudit(t *testing.T) {
	t.Run("the defaults equal the defaults of the packages", func(t *testing.T) {
		c, err := config.Parse([]byte(minimal))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Limits.Settings(); got != limit.Defaults() {
			t.Errorf("got  %+v\nwant %+v", got, limit.Defaults())
		}
		want := audit.Settings{Level: audit.LevelOff, Mode: audit.ModeDropping, Path: "-", MaxSize: 100 << 20, MaxBackups: 5}
		if got := c.Audit.Settings(); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
	for name, tt := range map[string]struct{ file, want string }{
		"a user's limit beyond the total is refused": {
			"limits: {short: {user: 3000}}\n", "limits.short: want 1 ≤ user ≤ all",
		},
		"a member's limit beyond the total is refused": {
			"limits: {long: {member: 9000}}\n", "limits.long: want 1 ≤ user ≤ all and 1 ≤ member ≤ all",
		},
		"a negative limit is refused":     {"limits: {long: {all: -1}}\n", "limits.long"},
		"a user's queue beyond the total": {"limits: {queue: {all: 3}}\n", "limits.queue: want"},
		"a wait beyond the patience of clients": {
			"limits: {queue: {wait: 1m}}\n", "limits.queue.wait: want at most 30s",
		},
		"a member's backlog beyond the total":       {"limits: {backlog: {memberMiB: 512}}\n", "limits.backlog: want"},
		"more tunnels of one Cluster than in total": {"limits: {workspace: {tunnels: 3}}\n", "limits.workspace: want"},
		"too few tunnels for an agent to move": {
			"limits: {workspace: {clusterTunnels: 1}}\n", "limits.workspace: want",
		},
		"more connections of one address than in total": {"limits: {connections: {all: 3}}\n", "limits.connections: want"},
		"an unknown level is refused": {
			"audit: {level: Everything}\n", `audit.level: "Everything" is none of`,
		},
		"an unknown mode is refused":                  {"audit: {mode: Sometimes}\n", `audit.mode: "Sometimes" is neither`},
		"a relative path of the audit log is refused": {"audit: {path: audit.log}\n", `audit.path: "audit.log" is neither`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(minimal + tt.file))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want it to contain %q", err, tt.want)
			}
		})
	}
}
