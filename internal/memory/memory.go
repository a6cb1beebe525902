// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package memory lets a burst of work use memory, and returns it to the system afterwards.
package memory

import (
	"context"
	"runtime/debug"
	"time"
)

// interval is how often the process looks at what it has allocated.
const interval = 5 * time.Second

// A process is calm if it allocates less than calmBytes in an interval, or than a share of what it holds. Memory is
// worth returning once worthBytes were allocated, or that share of what is held: a collection costs as much as there is
// to hold.
const (
	calmBytes  = 512 << 10
	worthBytes = 1 << 20
	share      = 16
)

// ReturnWhenCalm returns memory to the system whenever the process is calm after work, until ctx ends. The runtime
// would keep what a burst has used: it collects garbage when the heap has grown by GOGC percent, or after two minutes,
// and an idle heap hardly grows.
func ReturnWhenCalm(ctx context.Context) { returnWhenCalm(ctx, func() {}) }

// Manage does the same, and until memory is returned it lets the process use it: garbage may grow to some bytes before
// it is collected where GOGC allows less, and the heap to the largest size that it was allowed before. A collection
// scans every object and stack, however little garbage there is: a small process spends a tenth of a request's CPU on
// it, and one that has lost half of its members at once collects all the more often while they come back.
func Manage(ctx context.Context, garbage uint64) {
	returnWhenCalm(ctx, startCollector(garbage).returned)
}

func returnWhenCalm(ctx context.Context, returning func()) {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for h := (heap{}); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if h.calm(read()) {
			returning()
			debug.FreeOSMemory() // a millisecond of CPU for each MB that is held
		}
	}
}

// heap is what the process had allocated since its start, in bytes.
type heap struct {
	seen     uint64 // when it was looked at last
	returned uint64 // when memory was returned last
}

// calm reports whether memory should be returned: there has been work since the last time, and there is none at the
// moment. allocated is since the start, live what the last collection has left, in bytes.
func (h *heap) calm(allocated, live uint64) bool {
	busy := allocated-h.seen > max(calmBytes, live/share)
	h.seen = allocated
	if busy || allocated-h.returned < max(worthBytes, live/share) {
		return false
	}
	h.returned = allocated
	return true
}

// read returns how many bytes the process has allocated since its start, and how many the last collection has left.
func read() (allocated, live uint64) {
	return gauge("/gc/heap/allocs:bytes"), gauge("/gc/heap/live:bytes")
}
