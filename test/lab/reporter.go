// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// terminalInterval and logInterval are the intervals at which a running step is reported on a terminal and in a
	// log.
	terminalInterval = time.Second
	logInterval      = 10 * time.Second
)

// reporter reports steps that take a long time. On a terminal, it rewrites a single line. Otherwise, it writes one
// line for each report.
type reporter struct {
	out      io.Writer
	terminal bool
}

// newReporter returns a reporter that writes to out. If out is nil, nothing is reported.
func newReporter(out io.Writer) *reporter {
	if out == nil {
		return &reporter{out: io.Discard}
	}
	r := &reporter{out: out}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		r.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	return r
}

func (r *reporter) say(format string, args ...any) {
	fmt.Fprintf(r.out, "lab: "+format+"\n", args...)
}

// during runs work. While work is running, it regularly reports the name and the duration.
func (r *reporter) during(what string, work func() error) error {
	start := time.Now()
	r.step(what, 0)
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() { r.tick(what, start, stop) })
	err := work()
	close(stop)
	ticking.Wait()
	if r.terminal {
		fmt.Fprint(r.out, "\r\x1b[K")
	}
	outcome := "done"
	if err != nil {
		outcome = "stopped"
	}
	r.say("%s: %s after %s", what, outcome, time.Since(start).Round(100*time.Millisecond))
	return err
}

func (r *reporter) tick(what string, start time.Time, stop <-chan struct{}) {
	interval := logInterval
	if r.terminal {
		interval = terminalInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			r.step(what, time.Since(start))
		}
	}
}

func (r *reporter) step(what string, elapsed time.Duration) {
	elapsed = elapsed.Round(time.Second)
	switch {
	case r.terminal:
		fmt.Fprintf(r.out, "\r\x1b[Klab: %s, %s", what, elapsed)
	case elapsed == 0:
		r.say("%s", what)
	default:
		r.say("%s, %s", what, elapsed)
	}
}
