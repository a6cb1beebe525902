// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// reportInterval is the interval at which a running step is reported.
const reportInterval = 10 * time.Second

// progress writes lines about long steps. Several goroutines may use it concurrently.
type progress struct {
	mu  sync.Mutex // guards out
	out io.Writer
}

func newProgress(out io.Writer) *progress {
	if out == nil {
		out = io.Discard
	}
	return &progress{out: out}
}

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "lab: "+format+"\n", args...)
}

// during runs work. It reports every 10 s that work is still running, and at the end how long it took.
func (p *progress) during(what string, work func() error) error {
	start := time.Now()
	p.say("%s", what)
	stop := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() {
		ticker := time.NewTicker(reportInterval)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				p.say("%s, %s", what, time.Since(start).Round(time.Second))
			}
		}
	})
	err := work()
	close(stop)
	reporting.Wait()
	outcome := "done"
	if err != nil {
		outcome = "stopped"
	}
	p.say("%s: %s after %s", what, outcome, time.Since(start).Round(100*time.Millisecond))
	return err
}
