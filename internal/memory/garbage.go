// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// leastHeap is the minimum heap size that the runtime assumes, in bytes. The runtime does not start a collection until
// the garbage exceeds GOGC percent of this size.
const leastHeap = 4 << 20

// leastObject is the minimum size, in bytes, of an object that does not share a memory block with other objects.
// Objects that share a block keep each other alive.
const leastObject = 16

// collector determines, after each garbage collection, when the next collection starts. It never starts earlier than
// GOGC specifies.
type collector struct {
	configured int    // the value of GOGC
	garbage    uint64 // amount of garbage that is always tolerated, in bytes

	mu      sync.Mutex // guards the fields below
	present int
	peak    uint64 // largest heap size that was allowed since memory was last returned to the system, in bytes
}

// startCollector returns a collector that adjusts GOGC after each collection. It adjusts nothing if GOGC is off.
func startCollector(garbage uint64) *collector {
	configured := debug.SetGCPercent(100) // there is no other way to find out whether GOGC is off
	debug.SetGCPercent(configured)
	c := &collector{configured: configured, present: configured, garbage: garbage}
	if configured >= 0 {
		c.adjust(struct{}{})
	}
	return c
}

// adjust sets the percentage for the next collection. It runs after each collection.
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

// percentLocked returns the limit for garbage as a percentage of held, the size of the held memory. Like the runtime,
// held counts objects, stacks and globals.
func (c *collector) percentLocked(held uint64) int {
	held = max(held, leastHeap)
	c.peak = max(c.peak, held+c.garbage, held+held*uint64(max(c.configured, 0))/100)
	return max(c.configured, int(100*float64(c.peak-held)/float64(held)))
}

// returned is called before memory is returned to the system. It resets the allowed heap size to the initial value.
func (c *collector) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peak = 0
}

func gauge(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
