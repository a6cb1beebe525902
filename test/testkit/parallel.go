// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bufio"
	"flag"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Patience is the factor by which Eventually extends the time limits for idle machines before it fails a test. Machines
// that run tests are often half as fast, and busy with other packages. A test of a duration measures it itself; see
// awaitWithin in e2e.
const Patience = 5

// memoryForHub is the maximum memory, in bytes, that a hub and a member with their programs need. The measured value is
// 0.9 GiB.
const memoryForHub = 3 << 29

// Parallel runs up to n tests of a package at the same time, unless the command line sets another number. Use it in the
// TestMain of tests that mostly wait. The default is the number of processors.
func Parallel(n int) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(n))
	}
}

// Hubs returns the number of tests with their own hub and member that may run at the same time. It is two for each
// processor, because the tests mostly wait, and is limited by the available memory.
func Hubs() int {
	n := 2 * runtime.GOMAXPROCS(0)
	if free, ok := availableMemory(); ok {
		n = min(n, int(free/memoryForHub))
	}
	return max(1, n)
}

// availableMemory returns the available memory in bytes. It is known only on Linux.
func availableMemory() (uint64, bool) {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), "MemAvailable:"); found {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}

// pause returns how long to wait between two checks of a condition. The time increases, because a check may start a
// program.
func pause(last time.Duration) time.Duration {
	const first, most = 20 * time.Millisecond, 500 * time.Millisecond
	return min(most, max(first, last*5/4))
}
