// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/rollout"
)

func TestHeldBack(t *testing.T) {
	percent := func(members int) int { return members / 100 }
	two := func(int) int { return 2 }
	for name, tt := range map[string]struct {
		groups  map[string]rollout.Group
		allowed func(int) int
		held    string
		all     bool
	}{
		"no failure": {
			map[string]rollout.Group{"a": {10, 0}, "b": {10, 0}}, percent, "", false,
		},
		"one group fails and is held back alone": {
			map[string]rollout.Group{"a": {10, 10}, "b": {10, 0}}, percent, "a", false,
		},
		"failures in two of a few groups stop all": {
			map[string]rollout.Group{"a": {10, 1}, "b": {10, 1}, "c": {10, 0}}, percent, "a b", true,
		},
		"the only group is held back": {map[string]rollout.Group{"a": {10, 1}}, percent, "a", false},
		"as many failures as are allowed": {
			map[string]rollout.Group{"a": {300, 3}, "b": {100, 1}}, percent, "", false,
		},
		"one failure more than allowed": {
			map[string]rollout.Group{"a": {300, 4}, "b": {100, 1}}, percent, "a", false,
		},
		"a large group fails, and one member elsewhere": {
			map[string]rollout.Group{"a": {900, 900}, "b": {100, 1}}, percent, "a", false,
		},
		"many failures in two small groups": {
			map[string]rollout.Group{"a": {10, 10}, "b": {10, 10}, "c": {980, 0}}, percent, "a b", false,
		},
		"a number applies to each group and to all": {
			map[string]rollout.Group{"a": {10, 3}, "b": {10, 2}, "c": {10, 1}}, two, "a", true,
		},
		"a number that other groups do not reach": {
			map[string]rollout.Group{"a": {10, 3}, "b": {10, 2}}, two, "a", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			held, all := rollout.HeldBack(tt.groups, tt.allowed)
			if got := strings.Join(slices.Sorted(maps.Keys(held)), " "); got != tt.held || all != tt.all {
				t.Errorf("held back are %q and all stop: %t, want %q and %t", got, all, tt.held, tt.all)
			}
		})
	}
}
