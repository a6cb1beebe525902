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

// Patience is the factor by which Eventually extends the limits of idle machines before it fails a test. Machines that
// run tests are often half as fast and busy with other packages. A test that checks a time measures it itself, see
// e2e's awaitWithin.
const Patience = 5

// memoryForHub is the most memory in bytes that a hub and a member with their programs need. Measurements show 0.9 GiB.
const memoryForHub = 3 << 29

// Parallel lets n tests of a package run at once, unless the command line sets another number. It is for the TestMain
// of tests that mostly wait; the default is the number of processors.
func Parallel(n int) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(n))
	}
}

// Hubs returns how many tests with their own hub and member may run at once. It is two for each processor, since the
// tests mostly wait, limited by the available memory.
func Hubs() int {
	n := 2 * runtime.GOMAXPROCS(0)
	if free, ok := availableMemory(); ok {
		n = min(n, int(free/memoryForHub))
	}
	return max(1, n)
}

// availableMemory is in bytes, and known on Linux only.
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

// pause returns how long to wait between two checks of a condition: longer each time, since a check may start a
// program.
func pause(last time.Duration) time.Duration {
	const first, most = 20 * time.Millisecond, 500 * time.Millisecond
	return min(most, max(first, last*5/4))
}
