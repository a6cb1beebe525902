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

// Patience is how many times longer than on an idle machine a wait for a condition may last before the test fails.
// Machines that run tests are often half as fast and busy with other packages. A time that is itself tested is compared
// by the test, see e2e's awaitWithin.
const Patience = 5

// memoryForHub is what a hub and a member with their programs take at most, in bytes, measured as 0.9 GiB.
const memoryForHub = 3 << 29

// Parallel lets n tests of a package run at once, unless the command line says otherwise. It is for a TestMain of tests
// that mostly wait: by default as many run as there are processors.
func Parallel(n int) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(n))
	}
}

// Hubs returns how many tests with a hub and a member of their own may run at once: two for each processor, since they
// mostly wait, as far as there is memory for them.
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
