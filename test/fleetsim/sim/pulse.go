// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"sync"
	"time"
)

// Rates are the rates of spontaneous changes in a fleet.
type Rates struct {
	// Churn is the fraction of all tunnels that are cut each minute, for example 0.1 for a tenth. Their agents reconnect.
	Churn float64
	// Changes is the fraction of all members that report a change each minute.
	Changes float64
}

// pacer calls a function at a rate that can be changed while it runs.
type pacer struct {
	mu     sync.Mutex // guards sending to change
	change chan time.Duration
}

func newPulse() *pacer { return &pacer{change: make(chan time.Duration, 1)} }

// set sets the number of beats per minute. With 0, there are none.
func (p *pacer) set(perMinute float64) {
	var interval time.Duration
	if perMinute > 0 {
		interval = max(time.Duration(float64(time.Minute)/perMinute), time.Microsecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.change: // not taken yet; the newest counts
	default:
	}
	p.change <- interval
}

// run calls beat until ctx ends.
func (p *pacer) run(ctx context.Context, beat func()) {
	ticker := time.NewTicker(time.Hour)
	defer ticker.Stop()
	ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case interval := <-p.change:
			if ticker.Stop(); interval > 0 {
				ticker.Reset(interval)
			}
		case <-ticker.C:
			beat()
		}
	}
}
