// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// leastHeap is what a heap is taken for at least, in bytes: the runtime collects no garbage before there are GOGC percent of it.
const leastHeap = 4 << 20

// AllowGarbage lets garbage grow to that many bytes between two collections where GOGC allows less. A collection scans every stack and wakes other threads, however little there
// is to collect: a process that holds little spends an eighth of a request's CPU on it. It must be called once. It changes nothing if GOGC is off.
func AllowGarbage(bytes uint64) {
	configured := debug.SetGCPercent(100) // there is no other way to read one that is off
	if debug.SetGCPercent(configured); configured < 0 {
		return
	}
	present := configured
	var adjust func(struct{})
	adjust = func(struct{}) {
		if p := percent(configured, bytes, gauge("/gc/heap/live:bytes")+gauge("/gc/scan/stack:bytes")+gauge("/gc/scan/globals:bytes")); p != present {
			debug.SetGCPercent(p)
			present = p
		}
		runtime.AddCleanup(new([leastObject]byte), adjust, struct{}{}) // after the next collection
	}
	adjust(struct{}{})
}

// leastObject is a size, in bytes, that the allocator does not put into one block with other objects, which would keep it.
const leastObject = 16

// percent returns the share of what is held that garbage may grow to: the configured one, or more for a heap that is so small that it would allow less than garbage.
// Held is what the runtime counts: objects, stacks and globals.
func percent(configured int, garbage, held uint64) int {
	return max(configured, int(100*float64(garbage)/float64(max(held, leastHeap))))
}

// gauge returns the value of one of the runtime's metrics.
func gauge(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
