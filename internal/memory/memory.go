// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package memory lets a process use additional memory during a burst of work, and returns the memory to the system
// afterward.
package memory

import (
	"context"
	"runtime/debug"
	"time"
)

// interval is how often the allocations of the process are checked.
const interval = 5 * time.Second

// A process is calm if, during an interval, it allocates less than calmBytes or less than 1/share of the memory that it
// holds. Returning memory is worthwhile once worthBytes or 1/share of the held memory have been allocated since memory
// was last returned. The cost of a collection is proportional to the held memory.
const (
	calmBytes  = 512 << 10
	worthBytes = 1 << 20
	share      = 16
)

// ReturnWhenCalm returns memory to the system whenever the process becomes calm after a burst of work, until ctx is
// done. Otherwise, the process would keep the memory that it used during the burst. The runtime collects garbage only
// when the heap has grown by GOGC percent, or after two minutes, and an idle heap hardly grows.
func ReturnWhenCalm(ctx context.Context) { returnWhenCalm(ctx, func() {}) }

// Manage does the same as ReturnWhenCalm, and also lets the process use more memory until the memory is returned. The
// garbage may reach the given number of bytes before it is collected, even if GOGC allows less. The heap may grow to
// the largest size that was allowed earlier. This saves CPU time, because a collection scans every object and stack,
// even if there is little garbage. In a small process, collections would otherwise take a tenth of the CPU time of a
// request. They would take even more when half of the members lose their connections at the same time and reconnect.
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
			debug.FreeOSMemory() // takes a millisecond of CPU time per MB of held memory
		}
	}
}

// heap tracks how much memory the process has allocated since its start, in bytes.
type heap struct {
	seen     uint64 // value at the last check
	returned uint64 // value when memory was last returned
}

// calm reports whether memory should be returned. This is the case if the process has worked since memory was last
// returned, and is not working at the moment. allocated is the number of bytes allocated since the start. live is the
// number of bytes that remained after the last collection.
func (h *heap) calm(allocated, live uint64) bool {
	busy := allocated-h.seen > max(calmBytes, live/share)
	h.seen = allocated
	if busy || allocated-h.returned < max(worthBytes, live/share) {
		return false
	}
	h.returned = allocated
	return true
}

// read returns the number of bytes that the process has allocated since its start. It also returns the number of bytes
// that remained after the last collection.
func read() (allocated, live uint64) {
	return gauge("/gc/heap/allocs:bytes"), gauge("/gc/heap/live:bytes")
}
