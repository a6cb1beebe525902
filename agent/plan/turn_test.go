// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/upgradecheck"
)

func TestPlansAreCheckedOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, finish := make(chan string, 2), make(chan struct{})
		check := func(_ context.Context, target *upgradecheck.Target) ([]upgradecheck.Finding, error) {
			began <- target.Plan
			<-finish
			return nil, nil
		}
		c := newChecks(Options{Check: check, Now: time.Now}, func() {})
		var running sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			plan := &v1.Plan{}
			plan.Name = name
			c.start(t.Context(), &running, resolved{object: plan, plan: rollout.Plan{UID: name}, version: "v1.36.3"})
		}
		synctest.Wait()
		if len(began) != 1 {
			t.Errorf("%d plans are being checked, want one at a time", len(began))
		}
		close(finish)
		running.Wait()
		if len(began) != 2 {
			t.Errorf("%d plans have been checked, want both", len(began))
		}
	})
}
