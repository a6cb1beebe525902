// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// memoryInterval is how often the agent looks at what it has allocated.
const memoryInterval = 5 * time.Second

// Bounds on what the agent allocates, in bytes. An idle agent allocates less than calmBytes in memoryInterval.
const (
	calmBytes  = 512 << 10
	worthBytes = 1 << 20
)

// returnMemory returns memory to the system once the agent is calm, until ctx ends. The runtime would keep what a burst has used: it collects garbage when
// the heap has grown, or after two minutes, and an idle heap does not grow.
func returnMemory(ctx context.Context) {
	ticks := time.NewTicker(memoryInterval)
	defer ticks.Stop()
	for h := (heap{}); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if h.calm(allocated()) {
			debug.FreeOSMemory() // some milliseconds of CPU
		}
	}
}

// heap is what the agent had allocated since its start, in bytes.
type heap struct {
	seen     uint64 // when it was looked at last
	returned uint64 // when memory was returned last
}

// calm reports whether memory should be returned: there has been work since the last time, and there is none at the moment.
func (h *heap) calm(now uint64) bool {
	busy := now-h.seen > calmBytes
	h.seen = now
	if busy || now-h.returned < worthBytes {
		return false
	}
	h.returned = now
	return true
}

// allocated returns how many bytes the process has allocated since its start.
func allocated() uint64 {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}
