// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// leastHeap is the smallest heap size that the runtime assumes, in bytes. The runtime does not collect garbage until
// there is GOGC percent of this size.
const leastHeap = 4 << 20

// leastObject is an object size, in bytes, for which the allocator uses a separate block. In a shared block, other
// objects would keep the object alive.
const leastObject = 16

// collector determines, after each garbage collection, when the next one happens. The next collection happens when GOGC
// requires it, or later.
type collector struct {
	configured int    // the value of GOGC
	garbage    uint64 // garbage that may always exist before it is collected, in bytes

	mu      sync.Mutex // guards the fields below
	present int
	peak    uint64 // the largest size that has been allowed since memory was last returned, in bytes
}

// startCollector starts to control when garbage is collected. It does nothing if GOGC is off.
func startCollector(garbage uint64) *collector {
	configured := debug.SetGCPercent(100) // there is no other way to find out whether GOGC is off
	debug.SetGCPercent(configured)
	c := &collector{configured: configured, present: configured, garbage: garbage}
	if configured >= 0 {
		c.adjust(struct{}{})
	}
	return c
}

// adjust runs after each collection.
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

// percentLocked returns the limit for garbage as a percentage of held. The argument held counts the same memory as the
// runtime does, which is objects, stacks and globals.
func (c *collector) percentLocked(held uint64) int {
	held = max(held, leastHeap)
	c.peak = max(c.peak, held+c.garbage, held+held*uint64(max(c.configured, 0))/100)
	return max(c.configured, int(100*float64(c.peak-held)/float64(held)))
}

// returned is called before memory is returned. It resets the allowed size to the initial size.
func (c *collector) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peak = 0
}

// gauge returns the value of one of the runtime metrics.
func gauge(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
