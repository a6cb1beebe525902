// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

func TestProgressCountsAttempts(t *testing.T) {
	now := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	failed := &rollout.Failure{At: now, Reason: v1.ReasonUpgradeFailed}
	for name, tt := range map[string]struct {
		claim               rollout.Claim
		applying, inFailure int32
	}{
		"the first attempt of a later version":      {rollout.Claim{Attempt: 4}, 1, 0},
		"the second attempt":                        {rollout.Claim{Attempt: 5, Spent: 1}, 2, 0},
		"the first attempt, which failed":           {rollout.Claim{Attempt: 4, Spent: 1, Failure: failed}, 1, 1},
		"a failure that does not use up an attempt": {rollout.Claim{Attempt: 4, Failure: failed}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tt.claim.UID = "u"
			p, err := rollout.ProgressOf(rollout.Member{Nodes: []rollout.Node{{Name: "a", Hostname: "a",
				Claims: map[string]rollout.Claim{"p": tt.claim}}}},
				rollout.Plan{Name: "p", UID: "u"}, now)
			if err != nil || len(p.Applying) != 1 || p.Applying[0].Attempt != tt.applying {
				t.Errorf("applying %+v, want attempt %d: %v", p.Applying, tt.applying, err)
			}
			if tt.inFailure > 0 && (len(p.Failures) != 1 || p.Failures[0].Attempt != tt.inFailure) {
				t.Errorf("failures %+v, want attempt %d", p.Failures, tt.inFailure)
			}
		})
	}
}

func TestFailureOfAnEarlierVersionDoesNotCount(t *testing.T) {
	now := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	claim := rollout.Claim{UID: "u", Hash: "h1", Generation: 1, Attempt: 3, Spent: 3,
		Failure: &rollout.Failure{At: now, Final: true, Reason: v1.ReasonUpgradeFailed}}
	m := rollout.Member{Nodes: []rollout.Node{{Name: "a", Hostname: "a", Ready: true,
		Claims: map[string]rollout.Claim{"p": claim}}}}
	for name, tt := range map[string]struct {
		plan   rollout.Plan
		failed int32
		reason string
	}{
		"the unchanged plan":          {rollout.Plan{Hash: "h1", Generation: 1}, 1, v1.ReasonNodeFailed},
		"another version, paused":     {rollout.Plan{Hash: "h2", Generation: 2}, 0, v1.ReasonPaused},
		"the same version, resumed":   {rollout.Plan{Hash: "h1", Generation: 3}, 0, v1.ReasonHeld},
		"another content of a Secret": {rollout.Plan{Hash: "h3", Generation: 1}, 0, v1.ReasonHeld},
	} {
		t.Run(name, func(t *testing.T) {
			tt.plan.Name, tt.plan.UID, tt.plan.Spec.Paused = "p", "u", tt.reason == v1.ReasonPaused
			m.Hold = "not now" // keeps it from starting again immediately
			if d := rollout.Next(m, tt.plan, now); d.Step != nil || d.Wait.Reason != tt.reason {
				t.Errorf("%+v, want to wait for %s", d, tt.reason)
			}
			p, err := rollout.ProgressOf(m, tt.plan, now)
			if err != nil || p.Nodes.Failed != tt.failed || p.Nodes.Applying != 0 || len(p.Applying) > 0 ||
				len(p.Failures) != 1 {
				t.Errorf("got %+v: %v, want one failure, and no node at work", p, err)
			}
		})
	}
}
