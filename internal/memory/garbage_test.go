// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/testkit"
)

func TestASmallHeapMayHaveAsMuchGarbageAsIsAllowed(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, tt := range map[string]struct {
		configured    int
		garbage, held uint64
		want          int
	}{
		"a process that holds 20 MiB":                                               {50, 32 * mib, 20 * mib, 160},
		"one that holds as much as allows that anyway":                              {50, 32 * mib, 64 * mib, 50},
		"one that holds more is left to GOGC":                                       {50, 32 * mib, 640 * mib, 50},
		"a GOGC that allows more is kept":                                           {400, 32 * mib, 20 * mib, 400},
		"before the first collection nothing is held, and the runtime counts 4 MiB": {50, 32 * mib, 0, 800},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := percent(tt.configured, tt.garbage, tt.held); got != tt.want {
				t.Errorf("garbage may grow to %d %%, want %d", got, tt.want)
			}
		})
	}
}

func TestTheRuntimeCollectsLaterWhileLittleIsHeld(t *testing.T) {
	t.Parallel()
	const mib, allowed = 1 << 20, 64 << 20
	former := debug.SetGCPercent(50)
	t.Cleanup(func() { debug.SetGCPercent(former) })
	AllowGarbage(allowed)
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
	garbage("64 MiB of", func(n uint64) bool { return n >= allowed*9/10 && n < 80*mib })
}
