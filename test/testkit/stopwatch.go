// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Stopwatch measures a time for which a test has a limit. It does not count the time that threads of the test and of
// its child processes waited for a processor, or the time that the whole (virtual) machine was suspended. Both are
// almost zero on an idle machine, so a busy machine does not make the test fail.
type Stopwatch struct {
	began      time.Time
	waited     map[string]time.Duration
	standstill time.Duration
}

// StartStopwatch returns a running Stopwatch.
func StartStopwatch() Stopwatch {
	return Stopwatch{waited: waitedForProcessors(), standstill: standstill(), began: time.Now()}
}

// Took returns the elapsed time minus the time that Lost returns.
func (s Stopwatch) Took() time.Duration { return time.Since(s.began) - s.Lost() }

// Lost returns the total time that threads waited for a processor or that the machine was suspended.
func (s Stopwatch) Lost() time.Duration {
	lost := standstill() - s.standstill
	for thread, waited := range waitedForProcessors() {
		lost += waited - s.waited[thread]
	}
	return lost
}

// standstill returns how long this process has not run at all since the first call.
func standstill() time.Duration { return observed().observe() }

var observed = sync.OnceValue(func() *observer {
	o := &observer{last: time.Now()}
	go func() {
		for range time.Tick(20 * time.Millisecond) {
			o.observe()
		}
	}()
	return o
})

// observer adds up the long gaps between calls to observe, which are normally frequent.
type observer struct {
	mu   sync.Mutex // guards the rest
	last time.Time
	sum  time.Duration
}

func (o *observer) observe() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if gap := now.Sub(o.last); gap > 100*time.Millisecond {
		o.sum += gap
	}
	o.last = now
	return o.sum
}

// waitedForProcessors returns how long each thread of this process and of its children has waited for a processor so
// far. It returns an empty map on systems that do not record it.
func waitedForProcessors() map[string]time.Duration {
	all := map[string]time.Duration{}
	processes := []string{strconv.Itoa(os.Getpid())}
	children, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range children {
		raw, _ := os.ReadFile(file)
		processes = append(processes, strings.Fields(string(raw))...)
	}
	for _, process := range processes {
		threads, _ := filepath.Glob("/proc/" + process + "/task/*/schedstat")
		for _, thread := range threads {
			raw, _ := os.ReadFile(thread)
			if fields := bytes.Fields(raw); len(fields) == 3 { // time on a processor, time of waiting for one, number of turns
				waited, _ := strconv.ParseInt(string(fields[1]), 10, 64)
				all[thread] = time.Duration(waited)
			}
		}
	}
	return all
}
