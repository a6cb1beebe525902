// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// leastHeap is what a heap is taken for at least, in bytes: the runtime collects no garbage before there are GOGC
// percent of it.
const leastHeap = 4 << 20

// leastObject is a size, in bytes, that the allocator does not put into one block with other objects, which would keep
// it.
const leastObject = 16

// collector sets after each collection when the next one is due: as GOGC says, or later.
type collector struct {
	configured int    // GOGC
	garbage    uint64 // the least that there may be before it is collected, in bytes

	mu      sync.Mutex // guards what follows
	present int
	peak    uint64 // the largest size that was allowed since memory was returned last, in bytes
}

// startCollector sets when garbage is collected, from now on. It does nothing if GOGC is off.
func startCollector(garbage uint64) *collector {
	configured := debug.SetGCPercent(100) // there is no other way to read one that is off
	debug.SetGCPercent(configured)
	c := &collector{configured: configured, present: configured, garbage: garbage}
	if configured >= 0 {
		c.adjust(struct{}{})
	}
	return c
}

// adjust is called after each collection.
func (c *collector) adjust(struct{}) {
	held := gauge("/gc/heap/live:bytes") + gauge("/gc/scan/stack:bytes") + gauge("/gc/scan/globals:bytes")
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.percentLocked(held); p != c.present {
		debug.SetGCPercent(p)
		c.present = p
	}
	runtime.AddCleanup(new([leastObject]byte), c.adjust, struct{}{})
}

// percentLocked returns the share of what is held that garbage may grow to. Held is what the runtime counts: objects,
// stacks and globals.
func (c *collector) percentLocked(held uint64) int {
	held = max(held, leastHeap)
	c.peak = max(c.peak, held+c.garbage, held+held*uint64(max(c.configured, 0))/100)
	return max(c.configured, int(100*float64(c.peak-held)/float64(held)))
}

// returned is called before memory is returned: from then on, less is allowed again.
func (c *collector) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peak = 0
}

// gauge returns the value of one of the runtime's metrics.
func gauge(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
