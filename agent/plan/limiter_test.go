// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writes returns when a status is written that changes every tenth of a second for the given time.
func writes(lasting time.Duration, urgent bool) []time.Duration {
	start := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	p := limiter{}
	var all []time.Duration
	for at := time.Duration(0); at < lasting; at += 100 * time.Millisecond {
		if now := start.Add(at); !now.Before(p.due(urgent)) {
			p = p.wrote(now)
			all = append(all, at)
		}
	}
	return all
}

func TestLimiter(t *testing.T) {
	t.Run("changing counts are written once a second", func(t *testing.T) {
		for i, at := range writes(10*time.Second, false) {
			if at != time.Duration(i)*time.Second {
				t.Errorf("write %d came at %s", i, at)
			}
		}
	})
	t.Run("a flapping plan is written three times at once, and then once a second", func(t *testing.T) {
		all := writes(10*time.Second, true)
		if len(all) != 12 || all[2] != 200*time.Millisecond || all[3] != time.Second || all[11] != 9*time.Second {
			t.Errorf("writes came at %s", all)
		}
	})
	t.Run("a changed condition is written at once between changing counts", func(t *testing.T) {
		now, p := time.Unix(1e9, 0), limiter{}
		for range 10 {
			p, now = p.wrote(now), now.Add(time.Second)
		}
		now = now.Add(-999 * time.Millisecond)
		if now.Before(p.due(true)) || !now.Before(p.due(false)) {
			t.Errorf("at %s the next write is due at %s, and at %s for counts", now, p.due(true), p.due(false))
		}
	})
}

func TestConditionsChanged(t *testing.T) {
	before := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Applying", Message: "1 of 9",
		ObservedGeneration: 1}}
	for name, c := range map[string]struct {
		change func(*metav1.Condition)
		want   bool
	}{
		"another message is no change":          {func(c *metav1.Condition) { c.Message = "2 of 9" }, false},
		"another time is none":                  {func(c *metav1.Condition) { c.LastTransitionTime = metav1.Now() }, false},
		"another status is a change":            {func(c *metav1.Condition) { c.Status = metav1.ConditionTrue }, true},
		"another reason is a change":            {func(c *metav1.Condition) { c.Reason = "NodeFailed" }, true},
		"another observed spec is a change":     {func(c *metav1.Condition) { c.ObservedGeneration = 2 }, true},
		"another type of condition is a change": {func(c *metav1.Condition) { c.Type = "Stalled" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			after := before[0]
			c.change(&after)
			if got := conditionsChanged(before, []metav1.Condition{after}); got != c.want {
				t.Errorf("got %t, want %t", got, c.want)
			}
		})
	}
}
