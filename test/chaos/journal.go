// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// journal records events and faults.
type journal struct {
	out   io.Writer
	begun time.Time

	mu     sync.Mutex // guards what follows
	faults []string
}

// note records an event.
func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.write("", fmt.Sprintf(format, args...))
}

// fault records a fault. The run fails at its end.
func (j *journal) fault(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	j.faults = append(j.faults, text)
	j.write("FAULT: ", text)
}

// write must be called with mu held, so that lines are not interleaved.
func (j *journal) write(prefix, text string) {
	fmt.Fprintf(j.out, "%s %6.1fs %s%s\n", time.Now().Format("15:04:05.000"), time.Since(j.begun).Seconds(), prefix, text)
}

// found returns the faults so far.
func (j *journal) found() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.faults)
}
