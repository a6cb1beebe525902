// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import "runtime"

// heap returns the size of the reachable objects, in bytes.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
