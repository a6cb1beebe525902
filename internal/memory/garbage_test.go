// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/testkit"
)

func TestGarbageIsCollectedWhenGOGCRequiresOrLater(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, tt := range map[string]struct {
		configured int
		held       []uint64 // after each collection; 0 means that memory is returned before the next one
		want       []int
	}{
		"a small process may have 32 MiB of garbage":       {50, []uint64{20 * mib}, []int{160}},
		"a larger process may have as much as GOGC allows": {50, []uint64{64 * mib, 640 * mib}, []int{50, 50}},
		"a GOGC that allows more is respected":             {400, []uint64{20 * mib}, []int{400}},
		"the runtime assumes a heap of at least 4 MiB":     {50, []uint64{1}, []int{800}},
		"a process that has become smaller may use its former size": {50,
			[]uint64{400 * mib, 300 * mib, 200 * mib, 350 * mib},
			[]int{50, 100, 200, 71}},
		"but only until the memory is returned": {50, []uint64{400 * mib, 0, 200 * mib}, []int{50, 50}},
		"the allowed size does not grow by itself": {50, []uint64{400 * mib, 200 * mib, 400 * mib, 200 * mib},
			[]int{50, 200, 50, 200}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := collector{configured: tt.configured, garbage: 32 * mib}
			var got []int
			for _, held := range tt.held {
				if held == 0 {
					c.returned()
					continue
				}
				got = append(got, c.percentLocked(held))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("garbage may grow to %d %%, want %d %%", got, tt.want)
			}
		})
	}
}

// theCollector is shared by all runs of a test, since a process has only one collector.
var theCollector = sync.OnceValue(func() *collector {
	debug.SetGCPercent(50)
	return startCollector(64 << 20)
})

func TestRuntimeCollectsLaterInASmallProcess(t *testing.T) {
	t.Parallel()
	const mib, allowed = 1 << 20, 64 << 20
	c := theCollector()
	c.returned()
	garbage := func(want string, as func(uint64) bool) {
		testkit.Eventually(t, 10*time.Second, func(context.Context) error {
			runtime.GC()
			live, goal := gauge("/gc/heap/live:bytes"), gauge("/gc/heap/goal:bytes")
			if !as(goal - live) {
				return fmt.Errorf("%d MiB are held and collected at %d, want %s garbage", live/mib, goal/mib, want)
			}
			return nil
		})
	}
	garbage("64 MiB of", func(n uint64) bool { return n >= allowed*9/10 })
	kept := make([]byte, 256*mib)
	garbage("half as much", func(n uint64) bool { return n >= 128*mib && n < 140*mib })
	runtime.KeepAlive(kept)
	garbage("what was allowed before of", func(n uint64) bool { return n >= 300*mib })
	c.returned()
	garbage("64 MiB of", func(n uint64) bool { return n >= allowed*9/10 && n < 80*mib })
}
