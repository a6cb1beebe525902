// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"testing"
	"time"
)

func TestProcessIsObserved(t *testing.T) {
	p := shell(t, "echo ready; while :; do :; done", nil)
	waitReady(t, p)
	state := func() string {
		fields, err := readStat(p.PID())
		if err != nil {
			t.Fatal(err)
		}
		return fields[statState]
	}
	t.Run("its memory, threads and processor time are read", func(t *testing.T) {
		eventually(t, "it uses the processor", func() bool {
			u, err := p.Usage()
			if err != nil || u.RSS < 1<<16 || u.Anonymous <= 0 || u.Anonymous > u.RSS || u.Threads != 1 {
				t.Fatalf("the process uses %+v, %v, want at least 64 KiB and one thread", u, err)
			}
			return u.CPU > 20*time.Millisecond
		})
	})
	t.Run("it is paused and resumed", func(t *testing.T) {
		if err := p.Pause(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is stopped", func() bool { return state() == "T" })
		if err := p.Resume(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it runs", func() bool { return state() == "R" })
	})
}
