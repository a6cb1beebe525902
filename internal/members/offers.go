// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds on what the streams of one member report of everything that there is, before they say that it was all: a
// member may have twelve tunnels, each report is held in memory until its end, and the agent may be malicious. An agent
// that moves reports all through two tunnels at once.
const (
	maxOffered = 2 * (maxSets + maxPlans)          // bytes at once
	offerRate  = rate.Limit(maxSets+maxPlans) / 10 // bytes a second
)

// Bounds on the other lines of all streams of one member together. A line costs one, and one more for each KiB: to
// decode 64 KiB can take 10 ms of CPU.
const (
	lineRate, lineBurst = 400, 10_000
	lineUnit            = 1 << 10
)

// reportBytes counts the bytes of such reports, for all streams of a member together.
type reportBytes struct {
	pace  *rate.Limiter
	lines *rate.Limiter // of all other lines

	mu   sync.Mutex // guards held
	held int
}

func newOffers() *reportBytes {
	return &reportBytes{pace: rate.NewLimiter(offerRate, maxOffered), lines: rate.NewLimiter(lineRate, lineBurst)}
}

// take reports whether so many more bytes may be held.
func (o *reportBytes) take(bytes int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held+bytes > maxOffered || !o.pace.AllowN(time.Now(), bytes) {
		return false
	}
	o.held += bytes
	return true
}

// give says that so many bytes are held no longer.
func (o *reportBytes) give(bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held -= bytes
}
