// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/test/testkit"
)

// TestOutcomeSaysWhyASetCannotBeSent changes the connection of a member whose agent accepts sets.
func TestOutcomeSaysWhyASetCannotBeSent(t *testing.T) {
	a := member("a")
	for name, tt := range map[string]struct {
		change func(*members.State)
		synced bool
		stage  delivery.Stage
		reason string
		text   string
	}{
		"two clusters have its identity": {
			func(s *members.State) { s.Clones = &members.Clones{Agents: []string{"a", "b"}} }, true, delivery.Refused,
			v1.ReasonIdentityMismatch, "neither",
		},
		"none of its replicas leads": {
			func(s *members.State) { s.NoLeader = time.Now() }, false, delivery.Failed, v1.ReasonNoLeader,
			v1.ConditionMaintained,
		},
	} {
		t.Run(name, func(t *testing.T) {
			registry := members.New(logr.Discard(), time.Now)
			t.Cleanup(registry.Close)
			var changed atomic.Bool
			changed.Store(true)
			o := &fixture{t: t, registry: registry}
			o.Store = delivery.New(delivery.Options{
				State: func(name types.NamespacedName) members.State {
					report := testkit.HealthyReport()
					state := members.State{Peers: []members.Peer{{Instance: "a"}}, Report: &report}
					if changed.Load() {
						tt.change(&state)
					}
					return state
				},
				Leading: registry.Leading, Pause: time.Millisecond, Log: logr.Discard(),
			})
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = o.Start(ctx) })
			t.Cleanup(func() { cancel(); running.Wait() })
			if tt.synced {
				o.Synced(a, nil)
			}
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.until("the outcome says why", func() bool {
				o.Changed(a)
				out := o.Outcomes("crtb/x", []types.NamespacedName{a})[0]
				return out.Stage == tt.stage && out.Reason == tt.reason && len(out.Failures) == 1 &&
					strings.Contains(out.Failures[0].Message, tt.text)
			})
			summary := delivery.Summarize(o.Outcomes("crtb/x", []types.NamespacedName{a}))
			if summary.Ready || summary.Reason != tt.reason {
				t.Errorf("the summary is %+v, want %s", summary, tt.reason)
			}
			changed.Store(false)
			o.Changed(a)
			if out := o.Outcomes("crtb/x", []types.NamespacedName{a})[0]; out.Reason == tt.reason {
				t.Errorf("the outcome is %+v after the problem has ended, want another reason", out)
			}
		})
	}
}
