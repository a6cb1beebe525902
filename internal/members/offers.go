// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits on complete reports that are still being received. All streams of one member share these limits. They protect
// the hub from a malicious agent: a member may have twelve tunnels, and each report is held in memory until it is
// complete. An agent that moves to another replica sends complete reports through two tunnels at once.
const (
	maxOffered = 2 * (maxSets + maxPlans)          // bytes at once
	offerRate  = rate.Limit(maxSets+maxPlans) / 10 // bytes per second
)

// Limits on all other lines. All streams of one member share these limits. A line costs one unit, plus one unit per
// KiB, because decoding 64 KiB can take 10 ms of CPU time.
const (
	lineRate, lineBurst = 400, 10_000
	lineUnit            = 1 << 10
)

// reportBytes counts the bytes of complete reports that are still being received, across all streams of a member.
type reportBytes struct {
	pace  *rate.Limiter
	lines *rate.Limiter // limits all other lines

	mu   sync.Mutex // guards held
	held int
}

func newOffers() *reportBytes {
	return &reportBytes{pace: rate.NewLimiter(offerRate, maxOffered), lines: rate.NewLimiter(lineRate, lineBurst)}
}

// take reports whether additional bytes may be held in memory. If so, it counts these bytes.
func (o *reportBytes) take(bytes int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held+bytes > maxOffered || !o.pace.AllowN(time.Now(), bytes) {
		return false
	}
	o.held += bytes
	return true
}

// give records that bytes are no longer held in memory.
func (o *reportBytes) give(bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held -= bytes
}
